"""The comparison of an exported file with its checkpoint: images, both answers, and how far they may differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from base.errors import OptionError
from emulator.plan import number_formats
from harness.programs import embedded

if TYPE_CHECKING:
    from harness.export.network import TrainedNetwork
    from harness.export.predict import Runner

CHECKED, CALIBRATED = 64, 128  # pictures
_COARSE = 4  # squares on a side of a made-up picture


class ExportError(Exception):
    """An export that failed, or that does not answer as the checkpoint does. The text is one line."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The most that probabilities may differ, as shares of the mean probability of a first answer, which many classes and
    little training make small: a single one, and the mean over pictures of each one's largest difference; and the least
    share of pictures whose first answer is the same. `why`: the reason why they differ at all."""

    largest: float = math.inf
    mean: float = math.inf
    equal: float = 0.0
    why: str


# measured on trained and random networks of every kind, as shares: up to 2e-5; 0.009 and 0.11 on the mean
FP32 = Bound(largest=1e-3, why="FP32 sums that are added in another order differ by far less")
FP16 = Bound(mean=0.05, why="the checkpoint's own program rounds to FP16, and the export computes in FP32")
NARROW = Bound(mean=0.25, equal=0.75, why="the checkpoint's own program multiplies narrower numbers, and the export FP32")
INT8 = Bound(mean=0.25, equal=0.75, why="8 bits are too coarse for this network; leave --int8 out")


@dataclass(frozen=True)
class Agreement:
    """The differences of two tables of probabilities [n, classes], as `Bound` has them but not yet as shares of `certainty`,
    the mean probability of a first answer. `same` of `count` first answers are equal."""

    largest: float
    mean: float
    certainty: float
    same: int
    count: int

    def keeps(self, bound: Bound) -> bool:
        """Return whether the differences stay within a bound; NaN does not."""
        near = self.largest <= bound.largest * self.certainty and self.mean <= bound.mean * self.certainty
        return near and self.same >= bound.equal * self.count

    def rule(self, bound: Bound) -> str:
        """Return the differences that a bound accepts here, and the reason for it."""
        accepted = [f"{bound.largest * self.certainty:.3g} at most"] * math.isfinite(bound.largest)
        accepted += [f"{bound.mean * self.certainty:.3g} on the mean"] * math.isfinite(bound.mean)
        accepted += [f"{math.ceil(bound.equal * self.count)} of {self.count} first answers"] * (bound.equal > 0)
        return f"accepted are {' and '.join(accepted)}: {bound.why}"

    def __str__(self) -> str:
        return (
            f"probabilities differ by at most {self.largest:.3g}, {self.mean:.3g} on the mean; first answer equal on "
            f"{self.same} of {self.count}"
        )


def compare(expected: np.ndarray, given: np.ndarray) -> Agreement:
    """Return how a table of probabilities [n, classes] agrees with another one."""
    if given.shape != expected.shape:
        raise ExportError(f"it answers with the shape {list(given.shape)} instead of {list(expected.shape)}")
    each = np.abs(given.astype(np.float64) - expected).max(axis=1)
    same = int((given.argmax(axis=1) == expected.argmax(axis=1)).sum())
    return Agreement(float(each.max()), float(each.mean()), float(expected.max(axis=1).mean()), same, len(expected))


def answers(run: Runner, images: np.ndarray) -> np.ndarray:
    """Return the probabilities of pictures, the first by itself, the others at once: batches of two sizes."""
    parts = [part for part in (images[:1], images[1:]) if len(part)]
    return np.concatenate([run(part) for part in parts])


def own_answers(network: TrainedNetwork, images: np.ndarray) -> np.ndarray:
    """Return the probabilities, float64 [n, classes], that the checkpoint's own program gives pictures: in its precision, by
    the kernels that it has here."""
    from harness.programs import build
    from ipu_utils import FrozenProgram

    batch = network.run.validation_batch
    program = FrozenProgram(build.frozen_program(network.run, network.values, identity=""))
    filled = np.concatenate([images, np.zeros((-len(images) % batch, *images.shape[1:]), np.uint8)])
    logits = np.concatenate([program.logits(filled[k : k + batch]) for k in range(0, len(filled), batch)])
    program.close()
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))[: len(images)]
    return shifted / shifted.sum(axis=1, keepdims=True)


def bound(network: TrainedNetwork, quantised: bool) -> Bound:
    """Return how far a file may be from the checkpoint."""
    precision = network.run.plan.precision
    if quantised:
        return INT8
    coarse = precision.rounds_operands or precision.compute.fraction_bits < number_formats.FP16.fraction_bits
    return NARROW if coarse else FP16 if precision.rounds_results else FP32


class Pictures(NamedTuple):
    """Pictures, and where they come from."""

    images: np.ndarray
    origin: str


def checking(network: TrainedNetwork) -> Pictures:
    """At most CHECKED pictures of the validation set; of the training set where there is none; made up without data."""
    from harness.programs import build

    run = network.run
    if not network.has_data:
        return Pictures(_made_up(embedded.shape(run)[1]), "made-up pictures")
    if not run.data_source.spec.validation_images:
        return Pictures(build.training_images_uint8(run, CHECKED), "pictures of the training set")
    batches = build.validation_batches_uint8(run, -(-CHECKED // run.validation_batch))
    real = [images[labels >= 0] for images, labels in zip(batches.images, batches.labels)]
    return Pictures(np.concatenate(real)[:CHECKED], "pictures of the validation set")


def calibration(network: TrainedNetwork) -> np.ndarray:
    """At most CALIBRATED pictures of the training set in evaluation's preprocessing."""
    from harness.programs import build

    return build.training_images_uint8(network.run, CALIBRATED)


def check_calibration(network: TrainedNetwork) -> None:
    """OptionError without data to calibrate with."""
    if not network.has_data:
        raise OptionError(
            f"--int8 is fitted to pictures of the training set, and {network.without_data}; give their folder as "
            "--data-dir, or leave --int8 out"
        )


def _made_up(side: int) -> np.ndarray:
    """Coloured squares with noise, the same ones every time."""
    draw = np.random.default_rng(0)
    coarse = draw.integers(0, 256, (CHECKED, _COARSE, _COARSE, 3))
    places = np.arange(side) * _COARSE // side
    noisy = coarse[:, places][:, :, places] + draw.normal(0, 16, (CHECKED, side, side, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)
