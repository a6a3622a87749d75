"""Open the run directory of a training: lock it, open the log, record the options and start the checkpoint writer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from platform import node
from typing import Any

from cnn_harness.base import bounds
from cnn_harness.base.errors import Leave, WrongInput
from cnn_harness.base.process import tf_runtime
from cnn_harness.base.process.signals import Signals, StopRequest
from cnn_harness.base.storage import locks
from cnn_harness.base.storage.run_files import ARGUMENTS
from cnn_harness.harness.checkpoints import run_record, write
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.checkpoints.write import SaveError, Writer
from cnn_harness.harness.commands import run_log
from cnn_harness.harness.distributed import folders
from cnn_harness.harness.distributed.team import Team
from cnn_harness.harness.evaluation import inference_record
from cnn_harness.harness.options.sections import LoggingOptions
from cnn_harness.harness.reports import mlperf, profile
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.recorded_arguments import ARITHMETIC, CLASSES, DECLINED, RUN_ID, arguments, ends_untrained
from cnn_harness.harness.run.run import Run
from cnn_harness.harness.training import divergence, summary
from cnn_harness.log import RunLog, write_arguments

_SKIP = "--skip-bad-records"
_REPORTED_VERBATIM = (StopRequest, FloatingPointError, SaveError, OSError)


def _ignore(row: Mapping[str, Any]) -> None:
    pass


@dataclass(frozen=True)
class Listener:
    """Callbacks of a training. They are called in the main thread between host steps. An error in them ends the training.

    `on_step` is called once for each weight update, with {"iteration", "epoch", "lr", "loss", "accuracy"}. The accuracy is
    in per cent. `on_validation` is called with each new row of validation.csv, as a dictionary by column.
    """

    on_step: Callable[[Mapping[str, Any]], None] = _ignore
    on_validation: Callable[[Mapping[str, Any]], None] = _ignore


@dataclass(frozen=True)
class TrainingContext:
    """The objects that all parts of a training share.

    `writer` writes checkpoints. `mlperf` logs lines in MLPerf's format. `profile` names the files in which this instance
    profiles one update. `recorded` contains the options of this call, for checkpoints and arguments.json.
    """

    run: Run
    execution: Execution
    team: Team
    log: RunLog
    writer: Writer
    signals: Signals
    mlperf: mlperf.Events
    profile: profile.ProfileRequest | None
    recorded: Mapping[str, Any] = field(default_factory=dict)
    listener: Listener = Listener()

    @property
    def folder(self) -> Path:
        """The run directory of this instance."""
        return self.execution.folder

    @property
    def saves(self) -> bool:
        """True if the run saves checkpoints."""
        return self.run.length.iterations_per_ckpt > 0

    @property
    def writes(self) -> bool:
        """True if this instance writes checkpoints."""
        return self.team.is_first or self.run.options.checkpoint.ckpt_all_instances

    def write_record(self) -> None:
        """Write arguments.json, or arguments_restore.json if the run directory contains arguments.json already."""
        if self.run.options.logging.logs and folders.writes(self.execution, self.run.options.checkpoint):
            later = any((self.folder / name).exists() for name in ARGUMENTS)
            write_arguments(self.folder, self.recorded, restored=later)


@contextmanager
def open_run(run: Run, execution: Execution, team: Team, resumed: Checkpoint | None, call: str) -> Iterator[TrainingContext]:
    """Open the run directory in a `with` statement. If the run ends early, log the command that resumes it.

    `call` is the command line to log if this process has saved no checkpoint.
    """
    folder, writes = execution.folder, folders.writes(execution, run.options.checkpoint)
    request = profile.requested(run.options.device, folder, os.environ) if team.is_first else None
    held = locks.lock_folder(folder) if writes else nullcontext()
    newest = resumed.name if resumed else None
    with held, Signals() as signals, Writer(newest) as writer, profile.copied_output(request):
        write.remove_unfinished(folder)
        recorded = _record(run, execution, resumed)
        lines = _open_log(run, execution, recorded)
        events = mlperf.Events(run, execution.seed, lines)
        context = TrainingContext(run, execution, team, lines, writer, signals, events, request, recorded)
        if not resumed:
            context.write_record()
            if run.options.logging.logs and writes:
                inference_record.record_inference(run, folder)
        stopped = partial(summary.log_stopped, context, call)

        def instance_lost(reason: str) -> None:
            stopped(reason, *_skip_more_records(reason, run))
            lines.close()

        team.before_exit, team_reports = instance_lost, False
        try:
            yield context
        except BaseException as error:
            lines.ending()
            team_reports = team.is_of_runtime(error)
            reason = _reason_to_stop(error, team)
            if reason is not None:
                context.mlperf.log_run_stop("aborted")
                remedies = divergence.remedies(error, run)
                stopped(reason, *(remedies or _skip_more_records(tf_runtime.data_error(error) or "", run)))
            elif isinstance(error, WrongInput):
                lines.file_only(f"error: {error}")
            if isinstance(error, StopRequest) and writer.latest:
                raise Leave(error, hinted=True) from None
            raise
        finally:
            if not team_reports:
                lines.close()
            if team.is_first and not run.options.logging.logs:
                locks.remove_if_empty(folder)


def _record(run: Run, execution: Execution, resumed: Checkpoint | None) -> dict[str, Any]:
    """Return the options and other facts that this call records. A resumed run keeps the earlier digest of class names,
    and the result of the trial."""
    folder = execution.folder
    values = arguments(run, execution, run_log.command_line(), {
        "checkpoint_path": str(folder / "ckpt"),
        "datetime": datetime.now().astimezone().isoformat(timespec="seconds"),
        "hostname": node(),
        "logs_path": str(folder),
        "restoring": resumed is not None,
        "restored_from": resumed.name if resumed else None,
        RUN_ID: execution.run_id,
        ARITHMETIC: run.arithmetic,
    })  # fmt: skip
    earlier = run_record.arguments(folder) if resumed else {}
    declined = {DECLINED: True} if ends_untrained(run, earlier) else {}
    return {**values, CLASSES: earlier.get(CLASSES) or values[CLASSES], **declined}


def _open_log(run: Run, execution: Execution, recorded: Mapping[str, Any]) -> RunLog:
    """Return the log, after writing its first lines and connecting experiment trackers."""
    logging, folder, is_first = run.options.logging, execution.folder, execution.cluster.instance == 0
    has_log = is_first or execution.all_log
    head = run_log.training_head(run, execution)
    lines = run_log.open_run_log(run, execution, folder if logging.logs and has_log else None, None, head, console=has_log)
    if is_first and (logging.wandb or logging.mlflow):
        _follow(lines, logging, folder, recorded, bool(run.options.main.release))
    return lines


def _follow(
    lines: RunLog, logging: LoggingOptions, folder: Path, recorded: Mapping[str, Any], by_column: bool
) -> None:  # fmt: skip
    """Send the log's rows to Weights & Biases (--wandb) and MLflow (--mlflow).

    `by_column` names the values in Weights & Biases like the columns of the tables, as the original does.
    """
    from cnn_harness.harness.reports import trackers

    if logging.wandb:
        start = partial(trackers.WeightsAndBiases, logging.wandb_project, folder.name, recorded, logging.wandb_id)
        lines.follow("--wandb", start, by_column)
    if logging.mlflow:
        lines.follow(
            "--mlflow", partial(trackers.MLflow, logging.mlflow_experiment, folder.name, recorded, logging.mlflow_id)
        )


def _reason_to_stop(error: BaseException, team: Team) -> str | None:
    """Return the reason to log. Return None for wrong input, and for errors that `Team` reports."""
    if isinstance(error, _REPORTED_VERBATIM):
        return str(error)
    if isinstance(error, WrongInput) or not isinstance(error, Exception) or team.is_of_runtime(error):
        return None
    if tf_runtime.is_of_tensorflow(error):
        return tf_runtime.device_error(error)
    return tf_runtime.starved_message(error) or f"{type(error).__name__}: {bounds.reason(error)}"


def _skip_more_records(reason: str, run: Run) -> list[str]:
    """Return --skip-bad-records with a larger number if the reason for stopping mentions this option; otherwise []."""
    return [_SKIP, str(max(1, 2 * run.options.dataset.skip_bad_records))] if _SKIP in reason else []
