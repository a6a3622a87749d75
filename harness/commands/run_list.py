"""List the runs below a folder: network, progress, accuracy, and whether a run can be resumed.

No file is written, and links below the folder are not followed.
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

from base.errors import OptionError
from base.fields import short
from base.storage import locks
from base.storage.run_files import ARGUMENTS
from base.storage.tables import Row, Table, run_table
from harness.checkpoints import find, manifest, run_record
from harness.checkpoints.checkpoint import CheckpointError
from harness.checkpoints.write import STAGING_PREFIX
from harness.run import validations
from harness.run.recorded_arguments import RUN_ID

RUNNING, STOPPED, COMPLETE, DAMAGED = "running", "stopped", "complete", "damaged"
VALIDATION = "validation"  # a folder of a validation or of inference
ORDERS = ("time", "accuracy", "name")
COLUMNS = ("run", "network", "data", "updates", "best accuracy", "last change", "state")
_DEEPEST = 8  # levels of folders that are searched


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run, or another folder with a record.

    name: its path below the folder that was searched
    updates: the number done, of `total_updates`
    accuracy: the best top-1 accuracy in per cent, of `checkpoint` at `accuracy_epoch` (None for averages)
    damage: why the run is damaged
    changed: seconds since 1970
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
    """Return the runs in a folder and below it, including the folder itself. OptionError if it does not exist.

    `warn` is called with a line for each folder that cannot be read.
    """
    if not top.is_dir():
        raise OptionError(f"{top} is not a folder; give the folder of --log-dir")

    def unreadable(error: OSError) -> None:
        warn(f"warning: {short(error.filename)} cannot be read ({error.strerror}), so its runs are not listed")

    return [_summary(folder, os.path.relpath(folder, top)) for folder in _folders(top, unreadable)]


def run_inside(folder: Path) -> Path | None:
    """Return a run inside a run directory, at any depth, or None."""
    for place, names, _ in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith(STAGING_PREFIX))
        if Path(place) != folder and is_run(Path(place)):
            return Path(place)
    return None


def is_run(folder: Path) -> bool:
    """Return whether a folder has the record of a run or a numbered checkpoint. A link does not count."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    with suppress(CheckpointError):
        return any((folder / record).is_file() for record in ARGUMENTS) or bool(find.numbered(folder))
    return False


def ordered(runs: Sequence[RunSummary], order: str) -> list[RunSummary]:
    """Sort runs by one of ORDERS: newest first, most accurate first, or by name."""
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
    """Return the fields of a run, with the last change in ISO 8601 and UTC."""
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
    ended = validations.patience_is_over(checkpoints, recorded.get("patience") or 0)
    done = total is not None and (updates >= total or ended)
    whole = COMPLETE if done else STOPPED if trained else VALIDATION
    return RunSummary(
        name=name, folder=str(folder),
        network=f"{recorded.get('model', '')} {recorded.get('model_size') or ''}".strip(),
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
    """Return the recorded options of a run and None, or {} and the reason why there are none."""
    try:
        recorded = run_record.options(folder)
    except CheckpointError as error:
        return {}, str(error)
    return recorded, None if recorded else f"{run_record.arguments_file(folder).name} is missing or empty"


def _damage(folder: Path) -> str | None:
    """Return the damage of the newest damaged checkpoint, or None. Tensors are not read."""
    try:
        newest_first = reversed(find.numbered(folder))
        faults = (manifest.find_damage(Path(checkpoint.prefix), digests=False) for checkpoint in newest_first)
        return next(filter(None, faults), None)
    except CheckpointError as error:
        return str(error)


def _updates(folder: Path, running: bool) -> int:
    """Return the updates of the newest checkpoint; of the last row if the run is running or saves no checkpoints."""
    with suppress(CheckpointError):
        saved = [checkpoint.updates for checkpoint in find.numbered(folder)]
        if saved and not running:
            return saved[-1]
    rows = _rows(run_table(folder, "training.csv"))
    return int(rows[-1]["iteration"]) if rows else 0


def _validated(folder: Path) -> list[Row]:
    """Return the validations with an accuracy."""
    return [row for row in _rows(run_table(folder, "validation.csv")) if _is_number(row["val_acc"])]


def _epoch(row: Row) -> float | None:
    """Return the epoch of a validation; None for an average."""
    return float(row["epoch"]) if int(row["iteration"]) >= 0 and _is_number(row["epoch"], math.inf) else None


def _is_number(cell: str, most: float = 100) -> bool:
    with suppress(ValueError):
        return 0 <= float(cell) <= most and math.isfinite(float(cell))
    return False


def _rows(rows: Table) -> list[Row]:
    """Return the complete rows; [] if the file cannot be read, which the next call of the run reports."""
    with suppress(OSError):
        return rows.read()
    return []


def _changed(folder: Path) -> float:
    """Return when the folder of a run or a file in it last changed, in seconds since 1970."""
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
