"""Trains a network: parse, plan, report, build, restore, loop, validate.

python train.py --config quickstart
python train.py --dataset imagenet --data-dir DIR --model-size 50
python train.py --help
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import startup

    startup.begin("train.py")

import os
import secrets
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from base.process.signals import Signals, StopRequest
from base.storage import locks
from harness.checkpoints import run_record, write
from harness.checkpoints.checkpoint import Checkpoint
from harness.checkpoints.write import SaveError, Writer
from harness.commands import entry, hints, run_log
from harness.processes import folders
from harness.processes.team import Team
from harness.programs import compiling
from harness.reports import mlperf, profile
from harness.run.run import Run
from harness.training import endings
from harness.training.checkpointing import Checkpointer
from harness.training.divergence import Divergence, remedies
from harness.training.job import Job
from harness.training.loop import TrainingLoop
from harness.training.profiling import UpdateProfiler
from harness.training.resume import NewRun, Saved, SavedRun, last_update
from harness.training.start import initial_state, recorded_values
from harness.training.validating import Validator
from log import RunLog, wandb_run


def main(argv: list[str]) -> int:
    """A new run; with --restore-path, the same as restore.py. A signal says how to make the call again."""
    with hints.repeatable("train", argv, "Nothing was saved.", "Begin again"):
        path = entry.restore_path(argv, "train")
        if path is None:
            return begin(argv)
    with hints.going_on("train", argv):
        return resume(argv, path, "train")


def begin(argv: list[str]) -> int:
    """A new run, by all instances of a team."""
    run = entry.start(argv, "train", NewRun())
    if run is None:
        return 0
    with Team(run.cluster, run.options.training.worker_timeout) as team:
        run = replace(run, seed=team.rendezvous(run))
        run = replace(run, run_id=team.broadcast_text(_new_id()))
        run, folder = folders.begin(run, team)
        return train(run, team, folder)


def resume(argv: list[str], path: str, script: str) -> int:
    """Goes on with the run in the folder `path`, from its newest whole checkpoint, which instance 0 has."""
    origin = SavedRun(Path(path), argv, script)
    run = entry.start(argv, script, origin)
    if run is None:
        return 0
    run, saved = origin.read(run)
    with Team(run.cluster, run.options.training.worker_timeout, f"{script}.py") as team:
        run = replace(run, seed=team.rendezvous(run))
        run = replace(run, run_id=team.broadcast_text((run_record.run_id(Path(path)) if team.first else "") or _new_id()))
        updates = int(team.broadcast_text(str(saved.checkpoint.iteration) if saved else ""))
        run, folder = folders.resume(run, team, Path(path))
        saved = saved or Saved(Checkpoint.at(Path(path), updates), {})  # the tensors come from instance 0
        return train(run, team, folder, saved, hints.command(script, *argv))


def train(run: Run, team: Team, folder: Path, saved: Saved | None = None, call: str = "") -> int:
    """One run in its folder, from the beginning or from a checkpoint. `call`: the command line that goes on with the run as
    long as its options are not recorded."""
    request = profile.requested(run.options.device, folder, os.environ) if team.first else None
    held = locks.held(folder) if folders.writes(run) else nullcontext()
    newest = saved.checkpoint.name if saved else None
    with held, Signals() as signals, Writer(newest) as writer, profile.copied_output(request):
        write.sweep(folder)
        log = _open_log(run, team, folder, saved)
        job = Job(run, team, folder, log)
        stopped = partial(endings.stopped, job, writer, call)
        team.before_exit = stopped  # where another instance is lost
        events = mlperf.Events(run, log)
        try:
            _train(job, saved, signals, writer, events, request)
            team.shut_down()
        except (StopRequest, FloatingPointError, SaveError, OSError) as error:
            log.ending()
            events.ended("aborted")
            stopped(str(error), *remedies(error, run))
            if isinstance(error, StopRequest):
                error.hinted = bool(writer.newest)
            raise
        finally:
            log.close()
            if team.first and not run.options.logging.logs:
                locks.remove_if_empty(folder)
    return 0


def _train(
    job: Job, saved: Saved | None, signals: Signals, writer: Writer, events: mlperf.Events, request: profile.Request | None
) -> None:
    """Builds the program, loads its state, and carries the updates out that are left."""
    run, team = job.run, job.team
    done = saved.checkpoint.iteration if saved else 0
    last = last_update(run, done)
    events.begun()
    recording = bool(team.broadcast_text("yes" if request else ""))  # the instances cut their host steps alike
    with compiling.training_program(run, job.log, done, recording, team.group) as program:
        start = initial_state(job, program, saved)
        divergence = Divergence(job, program.watched)
        checkpointer = Checkpointer(job, program, writer, start.meter, start.calls, divergence)
        profiler = UpdateProfiler(job, program, request, recording, done, last)
        with Validator(job, events, start.validated) as validator:
            loop = TrainingLoop(job, program, start, signals, divergence, checkpointer, validator, profiler, events)
            loop.run(last)
            endings.finished(job, last, validator.last_accuracy, start.meter.images_per_second)


def _open_log(run: Run, team: Team, folder: Path, saved: Saved | None) -> RunLog:
    """The log with its head; the options of a new run are recorded, those of one that goes on when it is restored."""
    logging = run.options.logging
    values = recorded_values(run, folder, saved.checkpoint if saved else None)
    tells = team.first or logging.log_all_instances
    wandb = wandb_run(logging.wandb_project, folder.name, values, logging.wandb_id) if logging.wandb and team.first else None
    own = folder if logging.logs and tells else None
    head = run_log.training_head(run)
    log = run_log.opened(run, own, None if saved else values, head, console=tells, wandb=wandb)
    if not saved:
        folders.keep_options(run, folder, values)
    return log


def _new_id() -> str:
    """A random name for a new run, or for one of an older version, which has none."""
    return secrets.token_hex(8)


if __name__ == "__main__":
    sys.exit(entry.run_command("train", main, None))
