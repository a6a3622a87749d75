"""Constants of the preprocessing of one image, and a description of it for programs that use an exported network.

The arithmetic is in `Datasets/pipeline` (normalisation.py, augmentation.py, decoding.py, image_files.py). This file does
not import TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cnn_harness.Datasets._spec import DataSpec, ReadRequest

CHANNEL_MEAN = (123.68, 116.78, 103.94)  # for pixels from 0 to 255; red, green, blue
UNIT_MEAN = (0.485, 0.456, 0.406)  # for pixels from 0 to 1
UNIT_DEVIATION = (0.229, 0.224, 0.225)
SYMMETRIC_MIDDLE, SYMMETRIC_SCALE = 127.0, 128.0  # the constants of EfficientNet-Lite
CENTRAL = 256 / 224  # in validation: shorter side of the resized image / side of the crop


def described(spec: DataSpec, request: ReadRequest) -> dict[str, Any]:
    """Return the preprocessing of a decoded image (uint8 RGB) as a JSON object.

    "resize" gives sides in pixels. "normalisation" gives value = (pixel - mean) / deviation, for pixels from 0 to 255.
    """
    resize, normalisation = (_small, _per_image) if spec.standardised else (_photo, _constant)
    return {
        "resize": resize(spec, request),
        "normalisation": normalisation(request),
        "side": request.image_size,
        "channels": 4 if request.fused_preprocessing else 3,
        "channel_order": "RGB and a channel of zeros" if request.fused_preprocessing else "RGB",
    }


def unit_constants(request: ReadRequest) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the requested means and deviations, for pixels from 0 to 1; None if no such constants are requested."""
    if request.image_mean:
        return request.image_mean, request.image_std
    return (UNIT_MEAN, UNIT_DEVIATION) if request.normalise_input else None


def _photo(_: DataSpec, request: ReadRequest) -> dict[str, Any]:
    return {"shorter_side": int(request.image_size * CENTRAL), "method": "bilinear", "crop": "central"}


def _small(spec: DataSpec, request: ReadRequest) -> dict[str, Any]:
    """Describe the crop of small images: the largest central square, inside the data set's frame of zeros."""
    side = spec.image_size or request.image_size
    return {
        "crop": "largest central square", "square": side - 2 * spec.frame, "method": "area", "frame_of_zeros": spec.frame,
        "enlarged_after_normalisation": request.image_size != side,
    }  # fmt: skip


def _per_image(_: ReadRequest) -> dict[str, Any]:
    return {"kind": "of each image", "mean": "the image's", "deviation": "the image's, at least 1 / sqrt(its numbers)"}


def _constant(request: ReadRequest) -> dict[str, Any]:
    if request.symmetric_input:
        mean, deviation = (SYMMETRIC_MIDDLE,) * 3, (SYMMETRIC_SCALE,) * 3
    elif constants := unit_constants(request):
        mean, deviation = ([round(255 * x, 3 if request.normalise_input else 9) for x in each] for each in constants)
    else:
        mean, deviation = CHANNEL_MEAN, (1.0,) * 3
    return {"kind": "constant", "mean": list(mean), "deviation": list(deviation)}
