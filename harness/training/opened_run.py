"""A training's folder, opened: locked, with its log and its writer of checkpoints, until the run has ended in one way or the
other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from base import bounds
from base.errors import WrongInput
from base.process import tf_runtime
from base.process.signals import Signals, StopRequest
from base.storage import locks
from harness.checkpoints import write
from harness.checkpoints.read import LoadedCheckpoint
from harness.checkpoints.write import SaveError, Writer
from harness.commands import run_log
from harness.diagnostics import divergence
from harness.evaluation import inference_record
from harness.options.sections import LoggingOptions
from harness.processes import folders
from harness.processes.team import Team
from harness.reports import mlperf, profile
from harness.run.run import Run
from harness.training import endings
from harness.training.context import TrainingContext
from harness.training.initial_state import recorded_values
from log import RunLog

_SKIP = "--skip-bad-records"
_SAID_AS_THEY_ARE = (StopRequest, FloatingPointError, SaveError, OSError)


@contextmanager
def open_run(run: Run, team: Team, folder: Path, saved: LoadedCheckpoint | None, call: str) -> Iterator[TrainingContext]:
    """A run in its folder. An early end says where the run is and how to resume. `call`: the command line that resumes a
    `saved` run as long as its options are not recorded."""
    request = profile.requested(run.options.device, folder, os.environ) if team.is_first else None
    held = locks.lock_folder(folder) if folders.writes(run) else nullcontext()
    newest = saved.checkpoint.name if saved else None
    with held, Signals() as signals, Writer(newest) as writer, profile.copied_output(request):
        write.remove_unfinished(folder)
        log = _open_log(run, team, folder, saved)
        context = TrainingContext(run, team, folder, log, writer, signals, mlperf.Events(run, log), request)
        stopped = partial(endings.stopped, context, call)

        def lost(reason: str) -> None:
            stopped(reason, *_passing_over(reason, run))
            log.close()

        team.before_exit, told_by_team = lost, False  # where another instance is lost
        try:
            yield context
        except BaseException as error:
            log.ending()
            told_by_team = team.is_of_runtime(error)
            reason = _reason_to_stop(error, team)
            if reason is not None:
                context.mlperf.log_run_stop("aborted")
                stopped(reason, *_remedies(error, run))
            elif isinstance(error, WrongInput):
                log.file_only(f"error: {error}")
            if isinstance(error, StopRequest):
                error.hinted = bool(writer.latest)
            raise
        finally:
            if not told_by_team:
                log.close()
            if team.is_first and not run.options.logging.logs:
                locks.remove_if_empty(folder)


def _reason_to_stop(error: BaseException, team: Team) -> str | None:
    """The reason for the log, after which it says how to resume. None for a refusal, with which nothing has begun, and where
    the team tells."""
    if isinstance(error, _SAID_AS_THEY_ARE):
        return str(error)
    if isinstance(error, WrongInput) or not isinstance(error, Exception) or team.is_of_runtime(error):
        return None
    if tf_runtime.is_of_tensorflow(error):
        return tf_runtime.device_error(error)
    return tf_runtime.starved_message(error) or f"{type(error).__name__}: {bounds.reason(error)}"


def _remedies(error: BaseException, run: Run) -> list[str]:
    """Options with which the run does not end at the same update again, as far as there are any."""
    return divergence.remedies(error, run) or _passing_over(tf_runtime.data_error(error) or "", run)


def _passing_over(reason: str, run: Run) -> list[str]:
    """Return the option that passes over more bad records, if the reason speaks of it."""
    return [_SKIP, str(max(1, 2 * run.options.dataset.skip_bad_records))] if _SKIP in reason else []


def _open_log(run: Run, team: Team, folder: Path, saved: LoadedCheckpoint | None) -> RunLog:
    """The log with its head; the options of a new run are recorded, those of a resumed one when it is restored."""
    logging = run.options.logging
    values = recorded_values(run, folder, saved.checkpoint if saved else None)
    has_log = team.is_first or logging.log_all_instances
    own = folder if logging.logs and has_log else None
    head = run_log.training_head(run)
    log = run_log.open_run_log(run, own, None if saved else values, head, console=has_log)
    if (logging.wandb or logging.mlflow) and team.is_first:
        _follow(log, logging, folder, values)
    if not saved and not log.recorded:
        folders.keep_options(run, folder, values, restored=False)
    if logging.logs and folders.writes(run) and not saved:
        inference_record.record_inference(run, folder)
    return log


def _follow(log: RunLog, logging: LoggingOptions, folder: Path, values: Mapping[str, Any]) -> None:
    """Send the log's rows to the services that are asked for."""
    from harness.reports import trackers

    if logging.wandb:
        start = partial(trackers.WeightsAndBiases, logging.wandb_project, folder.name, values, logging.wandb_id)
        log.follow("--wandb", start)
    if logging.mlflow:
        log.follow("--mlflow", partial(trackers.MLflow, logging.mlflow_experiment, folder.name, values, logging.mlflow_id))
