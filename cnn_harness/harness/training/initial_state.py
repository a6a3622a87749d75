"""Load the initial state of a training loop, for a new run or from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cnn_harness.emulator.plan.checkpoint_tensors import EMA, FP32_COPY
from cnn_harness.harness.checkpoints import find, read, run_record
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.checkpoints.read import Tensors
from cnn_harness.harness.options.sections import flag
from cnn_harness.harness.run.recorded_arguments import other_class_names
from cnn_harness.harness.run.run import Run
from cnn_harness.harness.training.meter import Meter
from cnn_harness.harness.training.run_dir import TrainingContext
from cnn_harness.harness.training.start import LoadedCheckpoint

if TYPE_CHECKING:
    from cnn_harness.ipu_utils import TrainingProgram

# A classifier is fitted to at most 4 augmented copies of each image, and to at most 10,000 augmented images in total.
_AUGMENTED_COPIES, _MOST_AUGMENTED = 4, 10_000


@dataclass(frozen=True)
class InitialState:
    """The state from which a training loop starts, in addition to the program's variables.

    For a resumed run, `values` contains the tensors of the `checkpoint`, and `validated` the rows of validation.csv by
    checkpoint name.
    """

    meter: Meter
    checkpoint: Checkpoint | None = None
    values: Tensors = field(default_factory=dict)
    validated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def updates(self) -> int:
        """Number of finished updates."""
        return self.checkpoint.updates if self.checkpoint else 0


def initial_state(context: TrainingContext, program: TrainingProgram, loaded: LoadedCheckpoint | None) -> InitialState:
    """Load the program's variables in every instance. Return the other parts of the initial state."""
    return _resumed_state(context, program, loaded) if loaded else _new_state(context, program)


def _new_state(context: TrainingContext, program: TrainingProgram) -> InitialState:
    """Return the state of a new run, with random weights or the weights of --init-path."""
    run, team = context.run, context.team
    if run.options.training.init_path and team.is_first:
        _load_init_path(context, program)
    if team.group:
        program.load(team.broadcast(program.values() if team.is_first else None))
    return InitialState(Meter(run.length, run.step_increment, run.learning_rate, {}))


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
    if run.options.training.fit_classifier:
        context.log.note(_fit_classifier(run, context.execution.seed, program), always=True)


def _fit_classifier(run: Run, seed: int, program: TrainingProgram) -> str:
    """Fit the classifier to the features of the training images. Return a line for the log.

    Each image is used once unchanged and a few times augmented. Unchanged and augmented images have the same total weight.
    Cross-validation on the unchanged images chooses the penalty. If augmented images are added, use the next weaker penalty.
    """
    from cnn_harness.harness.checkpoints import conversion
    from cnn_harness.harness.programs import build, linear_classifier

    images, (_, classes) = run.data_source.spec.train_images, conversion.classifier_shape(run)
    of_classes = np.array(build.class_weights(run) or (1.0,) * classes)
    labels, features = _features(run, seed, program, images, augmented=False)
    weights = of_classes[labels]
    penalty, accuracy = linear_classifier.choose_penalty(features, labels, classes, weights)
    copies = min(_AUGMENTED_COPIES, _MOST_AUGMENTED // images)
    if copies:
        other_labels, other_features = _features(run, seed, program, copies * images, augmented=True)
        weights = np.concatenate([copies * weights, of_classes[other_labels]])
        labels, features = np.concatenate([labels, other_labels]), np.concatenate([features, other_features])
        penalty = linear_classifier.weaker(penalty)
    kernel, bias = linear_classifier.fit(features, labels, classes, penalty, weights)
    layer = conversion.classifier(run)
    fitted = {f"{layer}/kernel": kernel, f"{layer}/bias": bias}
    # If the program has moving averages or FP32 copies of these weights, they get the same values.
    copies = {f"{name}/{copy}": value for name, value in fitted.items() for copy in (EMA, FP32_COPY)}
    program.load_initial({**fitted, **copies})
    return f"Fitted the classifier to {images} images: {accuracy:.1f}% in cross-validation, penalty {penalty:.2g}"


def _features(run: Run, seed: int, program: TrainingProgram, images: int, augmented: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels, int [n], and the features, float32 [n, features], of the training images.

    Augmented images are read in the order of training, other images in the order of the data set.
    """
    from cnn_harness.harness.programs import build

    with build.feature_program(run, seed, augmented) as features:
        features.load(program.values())
        features.rewind()
        rows = np.concatenate([features.step(k, k + 1)["rows"] for k in range(-(-images // run.validation_batch))])
    rows = rows[rows[:, 0] >= 0]
    return rows[:, 0].astype(int), rows[:, 1:].astype(np.float32)


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
