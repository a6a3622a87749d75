"""Pictures as an exported network takes them, uint8 [n, side, side, 3]: those that it is held against the checkpoint with,
and those that its 8-bit ranges are fitted to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from base.errors import OptionError
from harness.programs import embedded

if TYPE_CHECKING:
    from harness.export.network import TrainedNetwork

CHECKED, CALIBRATED = 64, 128  # pictures
_COARSE = 4  # squares on a side of a made-up picture


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
