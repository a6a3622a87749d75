"""List the runs in a folder with their networks, progress, accuracy and state.

This module writes no files, and does not follow links inside the folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.base.storage import locks
from cnn_harness.base.storage.run_files import ARGUMENTS
from cnn_harness.base.storage.tables import Row, Table, run_table
from cnn_harness.harness.checkpoints import find, manifest, run_record
from cnn_harness.harness.checkpoints.checkpoint import CheckpointError
from cnn_harness.harness.checkpoints.write import STAGING_PREFIX
from cnn_harness.harness.run import recorded_arguments, validations
from cnn_harness.harness.run.recorded_arguments import DECLINED, RUN_ID

RUNNING, STOPPED, COMPLETE, DAMAGED = "running", "stopped", "complete", "damaged"
VALIDATION = "validation"  # the state of a directory that a validation or inference wrote
ORDERS = ("time", "accuracy", "name")
COLUMNS = ("run", "network", "data", "updates", "best accuracy", "last change", "state")
LOGS = "logs"  # the folder of runs if the user gives no other
_DEEPEST = 8  # the number of folder levels that are searched
_LISTED = 8  # the largest number of runs in a message


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run, or the directory of a validation.

    name: the path relative to the searched folder
    updates: the number of finished updates, out of `total_updates`
    accuracy: the best top-1 accuracy in per cent
    accuracy_epoch: the epoch of the best accuracy; None for an average of checkpoints
    checkpoint: the checkpoint with the best accuracy
    damage: the reason why the run is damaged, or None
    changed: the time of the last change, in seconds since 1970
    """

    name: str
    folder: str
    network: str
    dataset: str
    updates: int
    total_updates: int | None
    accuracy: float | None
    accuracy_epoch: float | None
    checkpoint: str | None
    state: str
    damage: str | None
    changed: float


def find_runs(top: Path, warn: Callable[[str], None] = lambda line: None) -> list[RunSummary]:
    """Return the runs in a folder at any depth; the folder itself may be a run. Raise OptionError if it does not exist.

    Call `warn` with a line for each folder that cannot be read.
    """
    if not top.is_dir():
        raise OptionError(f"{top} is not a folder; give the folder that contains the run directories, such as logs")

    def unreadable(error: OSError) -> None:
        warn(f"warning: {short(error.filename)} cannot be read ({error.strerror}), so its runs are not listed")

    return [_summary(folder, os.path.relpath(folder, top)) for folder in _folders(top, unreadable)]


def run_inside(folder: Path) -> Path | None:
    """Return a run inside a run directory, at any depth, or None if there is none."""
    for place, names, _ in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith(STAGING_PREFIX))
        if Path(place) != folder and is_run(Path(place)):
            return Path(place)
    return None


def is_run(folder: Path) -> bool:
    """Return whether a folder has arguments.json or a numbered checkpoint. A link to a folder is not a run."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return any((folder / record).is_file() for record in ARGUMENTS) or _has_checkpoints(folder)


def _has_checkpoints(folder: Path) -> bool:
    with suppress(CheckpointError):
        return bool(find.numbered(folder))
    return False


def listed() -> str:
    """Return a line with the newest runs in LOGS, for a message to a user who gave none. Validations are left out."""
    folders = filter(_has_checkpoints, _folders(Path(LOGS), lambda error: None))
    folders = sorted(folders, key=lambda folder: -folder.stat().st_mtime)
    if not folders:
        return f"There are no runs in {LOGS}"
    more = f", ... ({len(folders)} runs; cnn runs lists all)" if len(folders) > _LISTED else ""
    return f"Newest runs: {', '.join(map(str, folders[:_LISTED]))}{more}"


def ordered(runs: Sequence[RunSummary], order: str) -> list[RunSummary]:
    """Sort runs by one of ORDERS: time (newest first), accuracy (best first) or name."""
    if order == "name":
        return sorted(runs, key=lambda run: run.name)
    newest = sorted(runs, key=lambda run: -run.changed)
    if order == "time":
        return newest
    return sorted(newest, key=lambda run: -math.inf if run.accuracy is None else run.accuracy, reverse=True)


def table(runs: Sequence[RunSummary]) -> str:
    """Return a table with a heading and a line for each run."""
    rows = [COLUMNS, *map(_cells, runs)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def as_json(run: RunSummary) -> dict[str, Any]:
    """Return the fields of a run for JSON. The time of the last change is in ISO 8601 and UTC."""
    return {**asdict(run), "changed": datetime.fromtimestamp(run.changed, timezone.utc).isoformat(timespec="seconds")}


def _folders(top: Path, unreadable: Callable[[OSError], None]) -> Iterator[Path]:
    for place, names, _ in os.walk(top, onerror=unreadable):  # os.walk follows no links
        folder = Path(place)
        if is_run(folder) or (folder == top and is_run(folder.resolve())):
            yield folder
        names[:] = sorted(name for name in names if not name.startswith("."))
        if len(folder.relative_to(top).parts) >= _DEEPEST:
            names.clear()


def _summary(folder: Path, name: str) -> RunSummary:
    recorded, damage = _recorded(folder)
    damage = damage or _damage(folder)
    running = locks.is_locked(folder)
    validated = _validated(folder)
    updates, best = (
        _updates(folder, running),
        next(iter(validations.ranked_for(recorded, validated)), None),
    )
    trained = bool(updates or recorded.get(RUN_ID) or (running and not validated) or damage)
    total = recorded.get("total_iterations") if trained else None
    checkpoints = validations.by_update(validated, updates)
    validates = recorded.get("validation") and recorded.get("validation_images")
    untrained = updates == 0 and recorded.get(DECLINED) and (checkpoints or not validates)
    ended = untrained or validations.patience_is_over(checkpoints, recorded.get("patience") or 0)
    done = total is not None and (updates >= total or ended)
    whole = COMPLETE if done else STOPPED if trained else VALIDATION
    return RunSummary(
        name=name, folder=str(folder),
        network=f"{recorded.get('model', '')} {recorded_arguments.network_size(recorded)}".strip(),
        dataset=recorded.get("dataset") or "",
        updates=updates, total_updates=total,
        accuracy=float(best["val_acc"]) if best else None,
        accuracy_epoch=_epoch(best) if best else None,
        checkpoint=best["name"] if best else None,
        state=RUNNING if running else DAMAGED if damage else whole,
        damage=None if running else damage,
        changed=_changed(folder),
    )  # fmt: skip


def _recorded(folder: Path) -> tuple[dict[str, Any], str | None]:
    """Return the recorded options of a run and None, or {} and the reason why they cannot be read."""
    try:
        recorded = run_record.options(folder)
    except CheckpointError as error:
        return {}, str(error)
    return recorded, None if recorded else f"{run_record.arguments_file(folder).name} is missing or empty"


def _damage(folder: Path) -> str | None:
    """Return the damage of the newest damaged checkpoint, or None. Do not read tensors."""
    try:
        newest_first = reversed(find.numbered(folder))
        faults = (manifest.find_damage(Path(checkpoint.prefix), digests=False) for checkpoint in newest_first)
        return next(filter(None, faults), None)
    except CheckpointError as error:
        return str(error)


def _updates(folder: Path, running: bool) -> int:
    """Return the number of updates of the newest checkpoint.

    If the run is running or has no checkpoints, return the number in the last row of training.csv.
    """
    with suppress(CheckpointError):
        saved = [checkpoint.updates for checkpoint in find.numbered(folder)]
        if saved and not running:
            return saved[-1]
    rows = _rows(run_table(folder, "training.csv"))
    return int(rows[-1]["iteration"]) if rows else 0


def _validated(folder: Path) -> list[Row]:
    """Return the rows of validation.csv that have an accuracy."""
    return [row for row in _rows(run_table(folder, "validation.csv")) if _is_number(row["val_acc"])]


def _epoch(row: Row) -> float | None:
    """Return the epoch of a validation, or None for an average of checkpoints."""
    return float(row["epoch"]) if int(row["iteration"]) >= 0 and _is_number(row["epoch"], math.inf) else None


def _is_number(cell: str, most: float = 100) -> bool:
    with suppress(ValueError):
        return 0 <= float(cell) <= most and math.isfinite(float(cell))
    return False


def _rows(rows: Table) -> list[Row]:
    """Return the complete rows, or [] if the file cannot be read. Resuming the run reports the error."""
    with suppress(OSError):
        return rows.read()
    return []


def _changed(folder: Path) -> float:
    """Return the time of the last change of a run directory or a file in it, in seconds since 1970."""
    times = [folder.stat().st_mtime]
    with suppress(OSError), os.scandir(folder) as entries:
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in entries if entry.name != locks.FILE]
    return max(times)


def _cells(run: RunSummary) -> tuple[str, ...]:
    best = ""
    if run.accuracy is not None:
        best = f"{run.accuracy:.2f} % "
        best += f"({run.checkpoint})" if run.accuracy_epoch is None else f"at epoch {run.accuracy_epoch:.4g}"
    updates = f"{run.updates:,} of " + ("?" if run.total_updates is None else f"{run.total_updates:,}")
    updates = "" if run.state == VALIDATION else updates
    changed = datetime.fromtimestamp(run.changed).strftime("%Y-%m-%d %H:%M")
    state = f"{run.state}: {run.damage}" if run.damage else run.state
    return tuple(map(short, (run.name, run.network, run.dataset, updates, best, changed, state)))
