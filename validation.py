"""Validate checkpoints: measure accuracy, loss and speed on the whole validation set.

Validate all checkpoints of a run, or a single checkpoint:

python validation.py --restore-path logs/<run>
python validation.py --restore-path logs/<run>/ckpt-500

Classify photos; write the predictions to a file:

python validation.py --restore-path efficientnet-lite0 --predict PHOTO...
python validation.py --restore-path logs/<run> --predict FOLDER --output predictions.csv

Measure the speed only:

python validation.py --model efficientnet --dataset imagenet --generated-data --repeat 10
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("validation.py")
    from cnn_harness.harness.commands import answers

    call = answers.answer_early("validation")

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import commands
from cnn_harness.base.process.signals import Signals, StopRequest
from cnn_harness.harness.checkpoints import compatibility, find, read
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from cnn_harness.harness.commands import answers, entry, run_log
from cnn_harness.harness.distributed.team import Team
from cnn_harness.harness.evaluation import photo_predictions
from cnn_harness.harness.evaluation.saved_weights import SavedWeights
from cnn_harness.harness.evaluation.validate import RANDOM_WEIGHTS, record_profile, training_global_batch, validate
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.programs import build_or_load
from cnn_harness.harness.reports import profile
from cnn_harness.harness.run import membership
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.run import Run
from cnn_harness.log import RunLog

if TYPE_CHECKING:
    import numpy as np


def main(call: Call, on_row: Callable[[Mapping[str, Any]], None] = lambda row: None) -> int:
    """Validate the checkpoints in --restore-path, or random weights without that option; return the exit code.

    With --predict, classify photos instead. `on_row` is called with each row of validation.csv.
    """
    origin = saved_weights(call)
    run, cluster, notes = entry.checked_run(call, origin, training=False)
    execution = Execution.of(run.options, cluster, notes)
    if run.options.checkpoint.predict:
        photo_predictions.predict(run, execution, origin.checkpoints)
        return 0
    with Team(cluster, run.options.training.worker_timeout, "validation.py") as team:
        team.rendezvous(run)
        names = team.broadcast_json([[each.prefix, each.updates] for each in origin.checkpoints])
        trained_batch = training_global_batch(run, origin.recorded)
        return _validate(run, execution, team, [Checkpoint(*each) for each in names], trained_batch, on_row)


def saved_weights(call: Call) -> SavedWeights:
    """Return the checkpoints in --restore-path, with the recorded options of their training."""
    path = call.argument("restore_path")
    predicts = bool(call.argument("predict"))
    if not path:
        if predicts:
            raise OptionError(
                "--predict needs --restore-path: a run directory, a checkpoint, a .npz file or efficientnet-lite0"
            )
        return SavedWeights([], None, {})
    is_later = membership.call_is_of_later_instance(call)
    selected = [] if is_later else find.select(Path(path), by_prefix=not predicts)
    folder = find.run_folder(Path(path))
    recorded = entry.recorded_options(folder, call)
    if call.argument("micro_batch_size"):
        recorded.pop("valid_batch_size", None)  # --micro-batch-size overrides it
    return SavedWeights(selected, folder, recorded)


def _validate(
    run: Run, execution: Execution, team: Team, selected: Sequence[Checkpoint], trained_batch: int,
    on_row: Callable[[Mapping[str, Any]], None],
) -> int:  # fmt: skip
    """Validate the checkpoints one by one, or random weights if there are none; return the exit code."""
    random = [] if selected else ["no --restore-path: using random weights, only to measure speed"]
    log = run_log.open_own_log(run, execution, [*run_log.validation_head(run), *random])
    request = profile.requested(run.options.device, log.folder or Path(), os.environ) if team.is_first else None
    unreadable, validated = [], []

    def stopped(reason: str) -> None:
        log.note(f"Stopped: {reason}; validated: {', '.join(dict.fromkeys(validated)) or 'none'} of {len(selected)}")

    team.before_exit = stopped  # the team calls this function if another instance is lost
    with Signals() as signals, profile.copied_output(request), closing(log):
        try:
            with build_or_load.validation_program(run, execution, log) as program:
                if team.group:
                    signals.defer_until_agreed(program.stop)
                if team.is_first:
                    record_profile(run, program, request, log)
                for checkpoint in selected or [RANDOM_WEIGHTS]:
                    values = _read(checkpoint, selected, team, log) if selected else None
                    if selected and values is None:
                        unreadable.append(checkpoint.name)
                        continue
                    for warning in compatibility.value_warnings(run, values or {}, checkpoint):
                        log.note(warning)
                    for _ in range(run.options.checkpoint.repeat):
                        row = validate(run, program, checkpoint, values, trained_batch, log, team, signals)
                        log.validation_row(row)
                        on_row(row)
                        validated.append(checkpoint.name)
            team.shut_down()
        except StopRequest as stop:
            stopped(str(stop))
            raise
    if unreadable and team.is_first:
        names = ", ".join(unreadable)
        prog = commands.prog("validation.py")
        number = f"{len(unreadable)} of {len(selected)} checkpoints"
        print(f"{prog}: error: {number} cannot be read: {names}", file=sys.stderr)
    return 1 if unreadable else 0


def _read(checkpoint: Checkpoint, among: Sequence[Checkpoint], team: Team, log: RunLog) -> Mapping[str, np.ndarray] | None:
    """Return a checkpoint's tensors. Instance 0 reads the file and sends the tensors to the other instances.

    If the file cannot be read, return None, or raise CheckpointError if it is the only checkpoint.
    """
    values = None
    if team.is_first:
        try:
            values = read.tensors(checkpoint)
        except CheckpointError as error:
            if len(among) == 1:
                raise
            log.note(f"skipped: {error}")
    return team.broadcast(values) if team.broadcast_json(values is not None) else None


if __name__ == "__main__":
    sys.exit(answers.run_command("validation", main, call))
