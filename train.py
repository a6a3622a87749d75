"""Train a network: check the options, start or resume the run, build the program, train, validate.

python train.py --config quickstart
python train.py --dataset imagenet --data-dir DIR --model-size 50
python train.py --help
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("train.py")
    from cnn_harness.harness.commands import answers

    call = answers.answer_early("train")

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cnn_harness.harness.commands import answers, entry, hints
from cnn_harness.harness.distributed.team import Team
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.training.start import FreshStart, LoadedCheckpoint, Resume, last_update

if TYPE_CHECKING:
    from cnn_harness.harness.training.run_dir import Listener, TrainingContext


def main(call: Call) -> int:
    """Train; return the exit code. With --restore-path, resume a run like restore.py."""
    start_or_resume(call)
    return 0


def start_or_resume(call: Call, listener: Listener | None = None) -> Path:
    """Start a new run, or resume an earlier one if the options say so; return the run directory.

    If a signal or an error stops the run, print the command that repeats or resumes it. `listener` receives the
    results of each update and validation.
    """
    with hints.repeatable(call, "The run saved no checkpoint.", "Start again"):
        folder, autoresumed = _run_to_resume(call)
        if folder is None:
            return run_training(call, FreshStart(), listener)
    with hints.resumable(call, alone=not autoresumed):
        return run_training(call, Resume(folder, call, autoresumed), listener)


def _run_to_resume(call: Call) -> tuple[Path | None, bool]:
    """Return the directory of the run to resume (None: start a new run), and whether --autoresume found it."""
    if path := call.argument("restore_path"):
        return Path(path), False
    if "autoresume" not in call:
        return None, False
    from cnn_harness.harness.commands import autoresume

    folder = autoresume.folder_of_run(call.argument("logs_path"))
    return folder, folder is not None


def run_training(call: Call, start: FreshStart | Resume, listener: Listener | None = None) -> Path:
    """Train together with the other processes of the run (instances); return the run directory.

    Check the options, connect to the other instances, open the run directory, then train. If the run is already complete,
    only print a report.
    """
    prepared = entry.checked_run(call, start)
    run, report = prepared.run, start.completion_report(prepared)
    if report is not None:
        print(report, end="")
        return start.folder or Path(run.options.logging.logs_path)
    from cnn_harness.harness.training.run_dir import open_run  # late, so that --dry-run and errors appear at once

    with Team(prepared.cluster, run.options.training.worker_timeout, f"{call.script}.py") as team:
        execution, loaded = start.join(prepared, team)
        with open_run(run, execution, team, loaded and loaded.checkpoint, hints.repeating(call)) as context:
            train(replace(context, listener=listener or context.listener), loaded)
            team.shut_down()
    return execution.folder


def train(context: TrainingContext, loaded: LoadedCheckpoint | None = None) -> None:
    """Build the program, load its initial state, and perform the remaining updates.

    `loaded` is the checkpoint from which to resume; None starts a new run.
    """
    from cnn_harness.harness.programs import build_or_load
    from cnn_harness.harness.run.recorded_arguments import DECLINED
    from cnn_harness.harness.training import summary
    from cnn_harness.harness.training.initial_state import initial_state
    from cnn_harness.harness.training.loop import TrainingLoop
    from cnn_harness.harness.training.profiler import UpdateProfiler
    from cnn_harness.harness.training.validator import Validator

    done = loaded.updates if loaded else 0
    last = last_update(context.run, done)
    context.mlperf.log_init_start()
    recording = context.team.broadcast_json(bool(context.profile))  # all instances must use the same host steps
    with build_or_load.training_program(
        context.run, context.execution, context.log, done, recording, context.team.group
    ) as program:
        initial = initial_state(context, program, loaded)
        if initial.declined:
            context = replace(context, recorded={**context.recorded, DECLINED: True})
        profiler = UpdateProfiler(context, program, recording, done, last)
        with Validator(context, initial.validated) as validator:
            done = TrainingLoop(context, program, initial, validator, profiler).run(last)
            summary.log_finished(context, done, validator, initial.meter.images_per_second)


if __name__ == "__main__":
    sys.exit(answers.run_command("train", main, call))
