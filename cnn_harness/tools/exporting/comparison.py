"""Compare the predictions of an exported file with those of its checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cnn_harness.base.errors import Failure, OptionError
from cnn_harness.emulator.plan import number_formats
from cnn_harness.harness.programs import embedded
from cnn_harness.harness.run.cluster import Execution, seed_of

if TYPE_CHECKING:
    from cnn_harness.tools.exporting.network import TrainedNetwork
    from cnn_harness.tools.exporting.predict import Runner

CHECKED, CALIBRATED = 64, 128  # These are numbers of images for the comparison and for the calibration of --int8.
_COARSE = 4  # A generated image has this number of squares along each side.


class ExportError(Failure):
    """An export failed, or its predictions differ from those of the checkpoint. The message is one line."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The accepted differences between the probabilities of an export and of its checkpoint.

    `largest` limits the difference of every probability. `mean` limits the largest difference in an image, averaged over the
    images. Both limits are relative to the mean probability of the top-1 classes. `equal` is the smallest accepted share of
    images with the same top-1 class. `why` explains the differences.
    """

    largest: float = math.inf
    mean: float = math.inf
    equal: float = 0.0
    why: str


# Trained and random networks of every kind had these differences: at most 2e-5 in FP32; on average 0.009 in FP16 and 0.11 in
# narrower formats.
FP32 = Bound(largest=1e-3, why="FP32 rounding alone makes a much smaller difference")
FP16 = Bound(mean=0.05, why="the checkpoint's program rounds to FP16, the export computes in FP32")
NARROW = Bound(mean=0.25, equal=0.75, why="the checkpoint's program multiplies narrow formats, the export computes in FP32")
INT8 = Bound(mean=0.25, equal=0.75, why="8 bits are too coarse for this network; export without --int8")


@dataclass(frozen=True)
class Agreement:
    """The differences between two arrays of probabilities [n, classes].

    `largest` and `mean` are the same as in `Bound`, but not relative. `certainty` is the mean probability of the top-1
    classes. `same` of the `count` images have the same top-1 class.
    """

    largest: float
    mean: float
    certainty: float
    same: int
    count: int

    def keeps(self, bound: Bound) -> bool:
        """Return whether the differences are within a bound. False if there are NaNs."""
        near = self.largest <= bound.largest * self.certainty and self.mean <= bound.mean * self.certainty
        return near and self.same >= bound.equal * self.count

    def rule(self, bound: Bound) -> str:
        """Return a message about the differences that a bound accepts."""
        accepted = [f"at most {bound.largest * self.certainty:.3g}"] * math.isfinite(bound.largest)
        accepted += [f"{bound.mean * self.certainty:.3g} on average"] * math.isfinite(bound.mean)
        same = math.ceil(bound.equal * self.count)
        accepted += [f"the same top-1 class for {same} of {self.count} images"] * (bound.equal > 0)
        return f"accepted: {' and '.join(accepted)} ({bound.why})"

    def __str__(self) -> str:
        return (
            f"probabilities differ by at most {self.largest:.3g}, {self.mean:.3g} on average; same top-1 class for "
            f"{self.same} of {self.count} images"
        )


def compare(expected: np.ndarray, given: np.ndarray) -> Agreement:
    """Return the differences between two arrays of probabilities [n, classes]. Raise ExportError if the shapes differ."""
    if given.shape != expected.shape:
        raise ExportError(f"the output has shape {list(given.shape)} instead of {list(expected.shape)}")
    each = np.abs(given.astype(np.float64) - expected).max(axis=1)
    same = int((given.argmax(axis=1) == expected.argmax(axis=1)).sum())
    return Agreement(float(each.max()), float(each.mean()), float(expected.max(axis=1).mean()), same, len(expected))


def answers(run: Runner, images: np.ndarray) -> np.ndarray:
    """Return the probabilities for images. The first image is a separate batch, so that two batch sizes are tested."""
    parts = [part for part in (images[:1], images[1:]) if len(part)]
    return np.concatenate([run(part) for part in parts])


def own_answers(network: TrainedNetwork, images: np.ndarray) -> np.ndarray:
    """Return the probabilities for images, float64 [n, classes], that this harness computes in the precision of the
    checkpoint."""
    from cnn_harness.harness.programs import build
    from cnn_harness.ipu_utils import FrozenProgram

    batch, seed = network.run.validation_batch, seed_of(network.run.options)
    program = FrozenProgram(build.frozen_program(network.run, seed, network.values, identity=""))
    filled = np.concatenate([images, np.zeros((-len(images) % batch, *images.shape[1:]), np.uint8)])
    logits = np.concatenate([program.logits(filled[k : k + batch]) for k in range(0, len(filled), batch)])
    program.close()
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))[: len(images)]
    return shifted / shifted.sum(axis=1, keepdims=True)


def bound(network: TrainedNetwork, quantised: bool) -> Bound:
    """Return the accepted differences between an exported file and the checkpoint."""
    precision = network.run.plan.precision
    if quantised:
        return INT8
    coarse = precision.rounds_operands or precision.compute.fraction_bits < number_formats.FP16.fraction_bits
    return NARROW if coarse else FP16 if precision.rounds_results else FP32


class Images(NamedTuple):
    """Images, and a phrase about their origin for messages."""

    images: np.ndarray
    origin: str


def checking(network: TrainedNetwork) -> Images:
    """Return at most CHECKED images for the comparison. They are validation images if there are any, otherwise training
    images, otherwise generated images."""
    from cnn_harness.harness.programs import build

    run = network.run
    if not network.has_data:
        return Images(_generated(embedded.shape(run)[1]), "generated images")
    if not run.data_source.spec.validation_images:
        return Images(build.training_images_uint8(run, seed_of(run.options), CHECKED), "training images")
    batches = build.validation_batches_uint8(run, Execution.of(run.options), -(-CHECKED // run.validation_batch))
    real = [images[labels >= 0] for images, labels in zip(batches.images, batches.labels)]
    return Images(np.concatenate(real)[:CHECKED], "validation images")


def calibration(network: TrainedNetwork) -> np.ndarray:
    """Return at most CALIBRATED training images, with the preprocessing of validation."""
    from cnn_harness.harness.programs import build

    return build.training_images_uint8(network.run, seed_of(network.run.options), CALIBRATED)


def check_calibration(network: TrainedNetwork) -> None:
    """Raise OptionError if there are no images for the calibration of --int8."""
    if not network.has_data:
        raise OptionError(
            f"--int8 needs training images, but {network.without_data}; give their folder as --data-dir, or leave out --int8"
        )


def _generated(side: int) -> np.ndarray:
    """Return images of coloured squares with noise. They are the same in every call."""
    draw = np.random.default_rng(0)
    coarse = draw.integers(0, 256, (CHECKED, _COARSE, _COARSE, 3))
    places = np.arange(side) * _COARSE // side
    noisy = coarse[:, places][:, :, places] + draw.normal(0, 16, (CHECKED, side, side, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)
