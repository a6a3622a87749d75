"""Decide for --autoresume whether to start a run, to resume it, or to do nothing because it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.base.storage.tables import run_table
from cnn_harness.harness.checkpoints import averages, find
from cnn_harness.harness.checkpoints.checkpoint import AVERAGES
from cnn_harness.harness.distributed import folders
from cnn_harness.harness.reports import numerics_record
from cnn_harness.harness.run import validations
from cnn_harness.harness.run.run import Run


def folder_of_run(logs_path: str | None) -> Path | None:
    """Return the directory of --logs-path if it has a checkpoint. Return None if the call starts a new run.

    Raise OptionError without --logs-path.
    """
    if not logs_path:
        raise OptionError("--autoresume needs --logs-path, the run directory to start or to resume")
    folder = Path(logs_path)
    return folder if find.numbered(folder) else None


def unsaved_end(folder: Path) -> int | None:
    """Return the number of updates of a complete run that saves no checkpoints; return None for any other run.

    Raise FolderError in the same cases as `folders.unsaved_run`.
    """
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


def is_complete(run: Run, folder: Path, updates: int, untrained: bool) -> bool:
    """Return whether a run has nothing left to do after `updates` updates.

    A run is complete if --stop-after, --patience or the number of updates ends it, and if its last validation, its averages
    and --numerics are done. A run beyond --stop-after is always complete. An `untrained` run ends before its first update,
    because a trial found that training does not help.
    """
    checkpoint, training = run.options.checkpoint, run.options.training
    if training.stop_after is not None and updates > training.stop_after:
        return True
    try:
        rows = run_table(folder, "validation.csv").read()
    except (OSError, ValueError):  # the resumed run repairs or reports the file
        return False
    checkpoints = validations.by_update(rows, updates)
    validates = bool(checkpoint.validation and run.data_source.spec.validation_images)
    validated = any(int(row["iteration"]) == updates for row in checkpoints)
    if validates and (untrained or run.length.is_checkpoint(updates)) and not validated:
        return False
    every = run.options.logging.numerics
    if every and numerics_record.is_missing(folder, updates, every):
        return False
    if untrained or updates == run.length.iterations or validations.patience_is_over(checkpoints, checkpoint.patience):
        listed = [row["name"] for row in rows if int(row["iteration"]) < 0]
        wanted = [name for name, _ in averages.requested_averages(training, updates)]
        if not _has_averages(folder, updates, listed, wanted) or (validates and not set(listed) >= set(wanted)):
            return False
    elif updates != training.stop_after:
        return False
    return True


def _has_averages(folder: Path, updates: int, listed: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether all `wanted` averages are up to date, and the `listed` averages are unique and have files."""
    if not all(averages.is_up_to_date(folder, name, updates) for name in wanted):
        return False
    return len(set(listed)) == len(listed) and all((folder / AVERAGES / f"{name}.index").exists() for name in listed)
