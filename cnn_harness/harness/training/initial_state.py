"""Load the initial state of a training loop, for a new run or from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnn_harness.harness.checkpoints import find, read, run_record
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.checkpoints.read import Tensors
from cnn_harness.harness.options.sections import flag
from cnn_harness.harness.run.recorded_arguments import other_class_names
from cnn_harness.harness.run.run import Run
from cnn_harness.harness.training import fitting
from cnn_harness.harness.training.meter import Meter
from cnn_harness.harness.training.run_dir import TrainingContext
from cnn_harness.harness.training.start import LoadedCheckpoint

if TYPE_CHECKING:
    from cnn_harness.ipu_utils import TrainingProgram


@dataclass(frozen=True)
class InitialState:
    """The state from which a training loop starts, in addition to the program's variables.

    For a resumed run, `values` contains the tensors of the `checkpoint`, and `validated` the rows of validation.csv by
    checkpoint name. For a new run, `declined` is whether a trial found that training does not help.
    """

    meter: Meter
    checkpoint: Checkpoint | None = None
    values: Tensors = field(default_factory=dict)
    validated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    declined: bool = False

    @property
    def updates(self) -> int:
        """Number of finished updates."""
        return self.checkpoint.updates if self.checkpoint else 0


def initial_state(context: TrainingContext, program: TrainingProgram, loaded: LoadedCheckpoint | None) -> InitialState:
    """Load the program's variables in every instance. Return the other parts of the initial state."""
    return _resumed_state(context, program, loaded) if loaded else _new_state(context, program)


def _new_state(context: TrainingContext, program: TrainingProgram) -> InitialState:
    """Return the state of a new run, with random weights or the weights of --init-path."""
    run, team, declined = context.run, context.team, False
    if run.options.training.init_path and team.is_first:
        _load_init_path(context, program)
        if run.options.training.fit_classifier:
            declined = fitting.fit_classifier(context, program)
    if team.group:
        program.load(team.broadcast(program.values() if team.is_first else None))
    return InitialState(Meter(run.length, run.step_increment, run.learning_rate, {}), declined=declined)


def _load_init_path(context: TrainingContext, program: TrainingProgram) -> None:
    """Load the weights of --init-path. If they have another number of classes, the classifier keeps its random weights."""
    run = context.run
    source, values, damaged = read.load_init_path(Path(run.options.training.init_path))
    from cnn_harness.harness.checkpoints import conversion

    tensors, notes = conversion.initial_tensors(run, source, values)
    program.load_initial(tensors)
    differing = _preprocessing_warnings(run, run_record.arguments(find.run_folder(Path(source.prefix))))
    for line in (*damaged, f"Initial weights: {source.prefix}", *notes, *differing):
        context.log.note(line)


def _preprocessing_warnings(run: Run, recorded: Mapping[str, Any]) -> list[str]:
    """Return a warning for each difference between this run's preprocessing and the preprocessing with which the initial
    weights were trained. Such differences cost accuracy."""
    used, lines = vars(run.options.dataset), []
    for name in ("symmetric_input", "normalise_input"):
        if recorded.get(name) not in (None, used[name]):
            given = flag(name if recorded[name] else f"no_{name}")
            lines.append(f"the initial weights were trained with {given}. For better accuracy, give this option")
    for name in ("image_mean", "image_std"):
        if recorded.get(name) and tuple(recorded[name]) != used[name]:
            given = f"{flag(name)} {' '.join(map(str, recorded[name]))}"
            lines.append(f"the initial weights were trained with {given}. For better accuracy, give this option")
    if other_class_names(recorded, run.data_source.spec):
        lines.append("the initial weights were trained on classes with other names or in another order")
    size, stride = recorded.get("image_size"), run.network.stride
    if size and size % stride != run.image_size % stride:
        lines.append(
            f"the initial weights were trained at {size} px, but this run uses {run.image_size} px. To keep the padding and "
            f"the accuracy, use a size that differs by a multiple of {stride} px (the network's stride)"
        )
    return [f"warning: {line}" for line in lines]


def _resumed_state(context: TrainingContext, program: TrainingProgram, loaded: LoadedCheckpoint) -> InitialState:
    """Return the state of a resumed run: the checkpoint, the averages for the log and the rows of earlier validations."""
    run, team, log, checkpoint = context.run, context.team, context.log, loaded.checkpoint
    log.note(f"Restoring training from latest checkpoint: {checkpoint.prefix}")
    for line in loaded.notes:
        log.note(line)
    if checkpoint.updates >= run.length.iterations:
        log.note(f"All {checkpoint.updates} updates are done. To train further, give a larger --epochs or --iterations.")
    values = team.broadcast(loaded.values if team.is_first else None)
    program.load(values)
    state = team.broadcast_json(run_record.state(checkpoint) if team.is_first else None)
    log.resume_after(checkpoint.updates)
    meter = Meter(run.length, run.step_increment, run.learning_rate, state)
    context.write_record()  # Record this call only after all checks that may reject it.
    rows = team.broadcast_json({row["name"]: row for row in log.rows("validation.csv")})
    return InitialState(meter, checkpoint, values, rows)
