"""Fit the classifier of a new run, and find out in a trial whether further training helps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cnn_harness.base.process import progress
from cnn_harness.emulator.plan.checkpoint_tensors import EMA, FP32_COPY
from cnn_harness.harness.checkpoints.checkpoint import UNSAVED, Checkpoint
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.length import TrainingLength
from cnn_harness.harness.run.recorded_arguments import sets_length
from cnn_harness.harness.run.resolve import learning_rate
from cnn_harness.harness.run.run import Run
from cnn_harness.harness.training.run_dir import TrainingContext

if TYPE_CHECKING:
    from cnn_harness.ipu_utils import InferenceProgram, TrainingProgram

# A trial holds out this fold of the training images. It has an image of each class that has two, and never all images.
HELD_OUT = 3
MAX_TRIED = 2_000  # With more training images, training usually helps, and a trial takes long and saves no checkpoints.


class Samples(NamedTuple):
    """Readable training images in the order of the data set: features [n, features], and labels, weights in the loss and
    numbers in the data set, each [n]."""

    features: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    records: np.ndarray


class Score(NamedTuple):
    """The accuracy, in per cent, and the mean loss."""

    accuracy: float
    loss: float


def fit_classifier(context: TrainingContext, program: TrainingProgram) -> bool:
    """Fit the classifier of `program` to the features of the training images. Return whether the run must end here, because
    a trial found that training does not help."""
    from cnn_harness.harness.checkpoints import conversion
    from cnn_harness.harness.programs import linear_classifier

    run, execution, log = context.run, context.execution, context.log
    samples, classes = _samples(run, execution.seed, program), conversion.classifier_shape(run)[1]
    with progress.waiting("Fitting the classifier"):
        penalty, accuracy = linear_classifier.choose_penalty(*samples[:2], classes, samples.weights)
        program.load_initial(_fitted(run, samples, penalty))
    count = len(samples.labels)
    log.note(
        f"Fitted the classifier to {count} images: {accuracy:.1f}% in cross-validation, penalty {penalty:.2g}", always=True
    )
    if not run.options.training.trial_epochs or sets_length(run):
        return False
    held_out = np.flatnonzero(linear_classifier.folds(*samples[:2]) == HELD_OUT)
    reason = _reason_against_trial(context, count, len(held_out))
    if reason:
        log.note(f"No trial, because {reason}. So all layers are trained", always=True)
        return False
    before, after = _trial(run, execution, program, samples, penalty, held_out)
    helps = (after.accuracy, -after.loss) > (before.accuracy, -before.loss)  # label smoothing may raise the loss
    epochs = run.options.training.trial_epochs
    log.note(
        f"Trial: {epochs:g} epochs without {len(held_out)} held-out training images changed the accuracy on them from "
        f"{before.accuracy:.1f}% to {after.accuracy:.1f}%, and the loss from {before.loss:.3f} to {after.loss:.3f}. "
        + ("So all layers are trained" if helps else "So only the classifier is fitted (--epochs N trains all layers)"),
        always=True,
    )
    return not helps


def _reason_against_trial(context: TrainingContext, images: int, held_out: int) -> str | None:
    """Return why a run with so many training images, and so many of them held out, has no trial; None if it has one."""
    if not context.saves:  # A run that ends untrained would leave nothing.
        return "the run saves no checkpoints"
    if images > MAX_TRIED:
        return f"there are more than {MAX_TRIED:,} training images"
    return None if held_out else "there are too few training images"


def _samples(run: Run, seed: int, program: TrainingProgram) -> Samples:
    """Return the training images, preprocessed as in validation."""
    from cnn_harness.harness.programs import build

    images, of_class = run.data_source.spec.train_images, build.class_weights(run)
    with progress.waiting("Building the program for the features"):
        features = build.feature_program(run, seed)
    with features, progress.Progress("training images: features", images) as shown:
        features.load(program.values())
        features.rewind()
        rows = []
        for k in range(-(-images // run.validation_batch)):
            rows.append(features.step(k, k + 1)["rows"])
            shown.advance(min(run.validation_batch, images - k * run.validation_batch))
    found = np.concatenate(rows)
    records = np.flatnonzero(found[:, 0] >= 0)
    labels = found[records, 0].astype(int)
    weights = np.array(of_class)[labels] if of_class else np.ones(len(labels))
    return Samples(found[records, 1:].astype(np.float32), labels, weights, records)


def _fitted(run: Run, samples: Samples, penalty: float) -> dict[str, np.ndarray]:
    """Return the variables of a classifier that is fitted to these samples."""
    from cnn_harness.harness.checkpoints import conversion
    from cnn_harness.harness.programs import linear_classifier

    layer, classes = conversion.classifier(run), conversion.classifier_shape(run)[1]
    kernel, bias = linear_classifier.fit(*samples[:2], classes, penalty, samples.weights)
    fitted = {f"{layer}/kernel": kernel, f"{layer}/bias": bias}
    # If the program has moving averages or FP32 copies of these weights, they get the same values.
    return fitted | {f"{name}/{copy}": value for name, value in fitted.items() for copy in (EMA, FP32_COPY)}


def _trial(
    run: Run, execution: Execution, program: TrainingProgram, samples: Samples, penalty: float, held_out: np.ndarray
) -> tuple[Score, Score]:
    """Train for --trial-epochs on all training images except `held_out`. Return the scores on these images before and
    after the training. `program` supplies the initial weights, and does not change."""
    from cnn_harness.harness.programs import build

    others = Samples(*(np.delete(each, held_out, axis=0) for each in samples))
    tried = _shortened(run, samples.records[held_out].tolist())
    with progress.waiting("Building the programs of the trial"):
        trained, scoring = build.training_program(tried, execution.seed, 0), build.validation_program(tried, execution)
    with trained, scoring, progress.Progress("updates of the trial", tried.length.iterations) as shown:
        trained.load(program.values())
        trained.load_initial(_fitted(run, others, penalty))
        score = partial(_score, tried, trained, scoring)
        before = score()
        for update in range(tried.length.iterations):
            trained.step([tried.learning_rate(update)])
            shown.advance()
        return before, score()


def _shortened(run: Run, held_out: list[int]) -> Run:
    """Return a run of --trial-epochs that validates the training images numbered `held_out`, and trains on the others."""
    training, source = run.options.training, run.data_source.with_held_out(held_out)
    length = TrainingLength.of(
        images=source.spec.train_images, global_batch=run.plan.global_batch, epochs=training.trial_epochs,
        whole_epochs=training.whole_epochs,
    )  # fmt: skip
    return replace(run, data_source=source, length=length, learning_rate=learning_rate(run.options, length, run.peak_rate))


def _score(run: Run, trained: TrainingProgram, scoring: InferenceProgram) -> Score:
    from cnn_harness.harness.checkpoints import compatibility
    from cnn_harness.harness.evaluation.validate import local_micro_batches

    scoring.load(compatibility.model_tensors(run, trained.values(), Checkpoint(UNSAVED, 0)))
    scoring.rewind()
    totals = scoring.step(0, local_micro_batches(run))
    return Score(100 * totals["correct"] / totals["samples"], totals["loss"] / totals["samples"])
