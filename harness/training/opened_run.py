"""A training's folder, opened: locked, with its log and its writer of checkpoints, until the run has ended in one way or the
other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from base.process.signals import Signals, StopRequest
from base.storage import locks
from harness.checkpoints import write
from harness.checkpoints.read import LoadedCheckpoint
from harness.checkpoints.write import SaveError, Writer
from harness.commands import run_log
from harness.diagnostics.divergence import remedies
from harness.evaluation import inference_record
from harness.processes import folders
from harness.processes.team import Team
from harness.reports import mlperf, profile, trackers
from harness.run.run import Run
from harness.training import endings
from harness.training.context import TrainingContext
from harness.training.initial_state import recorded_values
from log import RunLog

_RESUMABLE_ERRORS = (
    StopRequest,
    FloatingPointError,
    SaveError,
    OSError,
)  # errors with which a run ends, and says how to resume


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
        team.before_exit = stopped  # where another instance is lost
        try:
            yield context
        except BaseException as error:
            log.ending()
            if isinstance(error, _RESUMABLE_ERRORS):
                context.mlperf.log_run_stop("aborted")
                stopped(str(error), *remedies(error, run))
            if isinstance(error, StopRequest):
                error.hinted = bool(writer.latest)
            raise
        finally:
            log.close()
            if team.is_first and not run.options.logging.logs:
                locks.remove_if_empty(folder)


def _open_log(run: Run, team: Team, folder: Path, saved: LoadedCheckpoint | None) -> RunLog:
    """The log with its head; the options of a new run are recorded, those of a resumed one when it is restored."""
    logging = run.options.logging
    values = recorded_values(run, folder, saved.checkpoint if saved else None)
    has_log = team.is_first or logging.log_all_instances
    own = folder if logging.logs and has_log else None
    head = run_log.training_head(run)
    log = run_log.open_run_log(run, own, None if saved else values, head, console=has_log)
    if logging.wandb and team.is_first:
        start = partial(trackers.WeightsAndBiases, logging.wandb_project, folder.name, values, logging.wandb_id)
        log.follow("--wandb", start)
    if logging.mlflow and team.is_first:
        log.follow("--mlflow", partial(trackers.MLflow, logging.mlflow_experiment, folder.name, values, logging.mlflow_id))
    if not saved and not log.recorded:
        folders.keep_options(run, folder, values, restored=False)
    if logging.logs and folders.writes(run):
        inference_record.record_inference(run, folder, resumed=saved is not None)
    return log
