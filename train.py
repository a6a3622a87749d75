"""Trains a network: parse, plan, report, build, restore, loop, validate.

python train.py --config quickstart
python train.py --dataset imagenet --data-dir DIR --model-size 50
python train.py --help
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import early_exit

    early_exit.install("train.py")
    from harness.commands import answers

    answers.answer_early("train")

import sys
from dataclasses import replace
from pathlib import Path

from harness.commands import answers, entry, hints
from harness.options import sources
from harness.processes.team import Team
from harness.programs import build_or_load
from harness.training import summary
from harness.training.initial_state import initial_state
from harness.training.loop import TrainingLoop
from harness.training.profiler import UpdateProfiler
from harness.training.run_dir import Listener, TrainingContext, open_run
from harness.training.start import FreshStart, LoadedCheckpoint, Resume, last_update
from harness.training.validator import Validator


def main(argv: list[str]) -> int:
    """A new run; with --restore-path, the same as restore.py. On a signal, prints the command that repeats or resumes the
    call."""
    start_or_resume(argv)
    return 0


def start_or_resume(argv: list[str], listener: Listener | None = None) -> Path:
    """Carry out the call; return the run directory. `listener`: follows the training."""
    with hints.repeatable("train", argv, "Nothing was saved.", "Begin again"):
        folder, repeated = _run_to_resume(argv)
        if folder is None:
            return run_training(argv, "train", FreshStart(), listener)
    with hints.resumable("train", argv, alone=not repeated):
        return run_training(argv, "train", Resume(folder, argv, "train", repeated), listener)


def _run_to_resume(argv: list[str]) -> tuple[Path | None, bool]:
    """Return the folder of the run that the call resumes, None for a new run, and whether --autoresume repeats the call."""
    given = sources.given_arguments(argv, "train")
    if given.get("restore_path"):
        return Path(given["restore_path"][0]), False
    if "autoresume" not in given:
        return None, False
    from harness.commands import autoresume

    folder = autoresume.folder_of_run(given.get("logs_path"))
    return folder, folder is not None


def run_training(argv: list[str], script: str, start: FreshStart | Resume, listener: Listener | None = None) -> Path:
    """Carry out the run that the call asks for, by all instances of a team; return the run directory."""
    run = entry.checked_run(argv, script, start)
    report = start.completion_report(run)
    if report is not None:
        print(report, end="")
        return start.folder or Path(run.options.logging.logs_path)
    with Team(run.cluster, run.options.training.worker_timeout, f"{script}.py") as team:
        run = replace(run, seed=team.rendezvous(run))
        run, folder, loaded = start.join(run, team)
        with open_run(run, team, folder, loaded and loaded.checkpoint, hints.command(script, *argv)) as context:
            train(replace(context, listener=listener or context.listener), loaded)
            team.shut_down()
    return folder


def train(context: TrainingContext, loaded: LoadedCheckpoint | None = None) -> None:
    """Build the program, load its state, and carry the updates out that are left, from the beginning or a checkpoint."""
    done = loaded.updates if loaded else 0
    last = last_update(context.run, done)
    context.mlperf.log_init_start()
    recording = context.team.broadcast_json(bool(context.profile))  # the instances cut their host steps alike
    with build_or_load.training_program(context.run, context.log, done, recording, context.team.group) as program:
        initial = initial_state(context, program, loaded)
        profiler = UpdateProfiler(context, program, recording, done, last)
        with Validator(context, initial.validated) as validator:
            done = TrainingLoop(context, program, initial, validator, profiler).run(last)
            summary.log_finished(context, done, validator, initial.meter.images_per_second)


if __name__ == "__main__":
    sys.exit(answers.run_command("train", main, None))
