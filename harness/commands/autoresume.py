"""--autoresume: the same call begins a run, resumes it, or finds it complete, as schedulers repeat their calls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from base.errors import OptionError
from base.storage.tables import run_table
from harness.checkpoints import averages, find
from harness.checkpoints.checkpoint import AVERAGES
from harness.diagnostics import numerics
from harness.processes import folders
from harness.run import validations
from harness.run.run import Run


def folder_of_run(logs_path: Sequence[str] | None) -> Path | None:
    """Return the folder that --logs-path names if a run in it has a checkpoint; None where the call is to begin one.
    OptionError without --logs-path."""
    if not logs_path:
        raise OptionError("--autoresume needs --logs-path: the folder of the run that it begins or goes on with")
    folder = Path(logs_path[0])
    return folder if find.numbered(folder) else None


def unsaved_end(folder: Path) -> int | None:
    """Return the updates of the run in a folder that is complete without a checkpoint, as its options had it; None for any
    other. FolderError as of `folders.unsaved_run`."""
    recorded = folders.unsaved_run(folder)
    if not recorded or recorded.get("ckpts_per_epoch") or recorded.get("epochs_per_ckpt"):
        return None
    total, names = recorded.get("total_iterations"), ["training.csv"]
    names += ["validation.csv"] * bool(recorded.get("validation") and recorded.get("validation_images"))
    with suppress(OSError, ValueError):
        tables = [run_table(folder, name).read() for name in names]
        if all(rows and int(rows[-1]["iteration"]) == total for rows in tables):
            return total
    return None


def is_complete(run: Run, folder: Path, updates: int) -> bool:
    """Return whether a run of `updates` has nothing left to do: it is beyond --stop-after; or it is there, or all updates
    are done, or its --patience is over, the last checkpoint is validated, and the averages and the observation are made that
    it asks for."""
    checkpoint, training = run.options.checkpoint, run.options.training
    if training.stop_after is not None and updates > training.stop_after:
        return True
    try:
        rows = run_table(folder, "validation.csv").read()
    except (OSError, ValueError):  # resuming mends rows, or tells of them
        return False
    checkpoints = validations.by_update(rows, updates)
    validates = bool(checkpoint.validation and run.data_source.spec.validation_images)
    validated = any(int(row["iteration"]) == updates for row in checkpoints)
    if validates and run.length.is_checkpoint(updates) and not validated:
        return False
    every = run.options.logging.numerics
    if every and numerics.is_missing(folder, updates, every):
        return False
    if updates == run.length.iterations or validations.patience_is_over(checkpoints, checkpoint.patience):
        listed = [row["name"] for row in rows if int(row["iteration"]) < 0]
        wanted = [name for name, _ in averages.requested_averages(training)]
        if not _has_averages(folder, updates, listed, wanted) or (validates and not set(listed) >= set(wanted)):
            return False
    elif updates != training.stop_after:
        return False
    return True


def _has_averages(folder: Path, updates: int, listed: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether the averages that are wanted are there, of no earlier end of the run, and none is listed twice, or
    without its file."""
    if not all(averages.is_up_to_date(folder, name, updates) for name in wanted):
        return False
    return len(set(listed)) == len(listed) and all((folder / AVERAGES / f"{name}.index").exists() for name in listed)
