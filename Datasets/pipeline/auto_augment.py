"""Random changes of one training image: TrivialAugment (Müller and Hutter, arXiv 2103.10158), RandAugment (Cubuk et al.,
arXiv 1909.13719), colour jitter, and random erasing (Zhong et al., arXiv 1708.04896).

Images are float32 [side, side, 3], 0 to 255. Each random draw depends only on the seed, the epoch and the record, so an
image changes in the same way for every number of devices and after resuming. An operation's amount is proportional to its
magnitude, 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base import draws
from cnn_harness.Datasets._spec import ReadRequest

FILL = 128.0  # grey value of erased rectangles and of pixels from outside the image.
LEAST_SHARE, MOST_SHARE = 0.02, 0.4  # limits of the erased share of the area.
STEEPEST = math.log(1 / 0.3)  # largest |log(height / width)| of an erased rectangle.
RAND_OPERATIONS, TRIVIAL_MAGNITUDES = 2, 31
_DRAWS = (6, 3, 5)  # number of draws for policy, jitter and erasing, whether or not they are used
_LUMA = (0.299, 0.587, 0.114)


def draw(record: tf.Tensor, epoch: tf.Tensor, request: ReadRequest) -> tf.Tensor | None:
    """Return uniform random draws for records [...], float32 [..., 14]; None if the request changes no image."""
    if not request.augment or not (request.policy != "none" or request.colour_jitter or request.random_erasing):
        return None
    key = draws.key(request.seed, "data/policy")
    return draws.uniform(key, epoch[..., None], record[..., None], tf.range(sum(_DRAWS)))


def changed(image: tf.Tensor, drawn: tf.Tensor | None, request: ReadRequest) -> tf.Tensor:
    """Return an image with the requested changes. `drawn` is the image's row of the result of `draw`."""
    if drawn is None:
        return image
    policy, jitter, erasing = tf.split(drawn, _DRAWS)
    if request.policy == "trivial":
        level = tf.floor(policy[2] * TRIVIAL_MAGNITUDES) / (TRIVIAL_MAGNITUDES - 1)
        image = _one_of_all(image, policy[:2], level)
    elif request.policy == "rand":
        for k in range(RAND_OPERATIONS):
            image = _one_of_all(image, policy[3 * k : 3 * k + 2], tf.constant(request.magnitude / 10))
    if request.colour_jitter:
        for change, part in zip((brightness, contrast, colour), tf.unstack(jitter)):
            image = change(image, request.colour_jitter * (2 * part - 1))
    return _erased(image, erasing, request.random_erasing) if request.random_erasing else image


def erased_rectangle(drawn: tf.Tensor, side: int) -> tuple[tf.Tensor, ...]:
    """Return top, left, height and width of a rectangle in pixels, computed from draws [4].

    The share of the area is uniform from LEAST_SHARE to MOST_SHARE. The logarithm of height / width is uniform within
    limits that keep every rectangle inside the image.
    """
    area, aspect, top, left = tf.unstack(drawn)
    share = LEAST_SHARE + (MOST_SHARE - LEAST_SHARE) * area
    stretch = tf.exp(tf.minimum(STEEPEST, -tf.math.log(share)) * (aspect - 0.5))
    height, width = (tf.maximum(1.0, tf.round(side * tf.sqrt(share) * by)) for by in (stretch, 1 / stretch))
    return tf.floor(top * (side - height + 1)), tf.floor(left * (side - width + 1)), height, width


def _erased(image: tf.Tensor, drawn: tf.Tensor, probability: float) -> tf.Tensor:
    side = image.shape[0]

    def erase() -> tf.Tensor:
        top, left, height, width = erased_rectangle(drawn[1:], side)
        place = tf.range(side, dtype=tf.float32)
        rows, columns = (
            tf.cast(tf.logical_and(place >= first, place < first + size), tf.float32)
            for first, size in ((top, height), (left, width))
        )
        inside = rows[:, None] * tf.repeat(columns, 3)
        return tf.reshape(_flat(image) * (1 - inside) + FILL * inside, image.shape)

    return tf.ensure_shape(tf.cond(drawn[0] < probability, erase, lambda: image), image.shape)


def _one_of_all(image: tf.Tensor, drawn: tf.Tensor, magnitude: tf.Tensor) -> tf.Tensor:
    """Apply a random operation of OPERATIONS, with a random sign if the operation is signed."""
    table = tuple(OPERATIONS.values())
    which = tf.cast(drawn[0] * len(table), tf.int32)
    least = tf.gather(tf.constant([-each.most if each.signed else each.most for each in table]), which)
    most = tf.gather(tf.constant([each.most for each in table]), which)
    amount = magnitude * tf.where_v2(drawn[1] < 0.5, least, most)
    result = tf.switch_case(which, [partial(each.change, image, amount) for each in table])
    return tf.ensure_shape(result, image.shape)


# --- Operations: (image, amount) -> image -----------------------------------------------------------------------------


def brightness(image: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Change the brightness like PIL's ImageEnhance.Brightness with factor 1 + amount."""
    return _away_from(tf.constant(0.0), image, amount)


def contrast(image: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Change the contrast like PIL's ImageEnhance.Contrast: away from the mean grey.

    The sums are exact integers, so the result does not depend on the number of threads.
    """
    sums = _by_channel(tf.reduce_sum, tf.cast(tf.round(_flat(image)), tf.int32))
    mean = tf.reduce_sum(tf.cast(sums, tf.float32) * _LUMA) / (image.shape[0] * image.shape[1])
    return _away_from(tf.round(mean), image, amount)


def colour(image: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Change the saturation like PIL's ImageEnhance.Color: away from grey."""
    mixing = (1 + amount) * tf.eye(3) - amount * tf.constant(_LUMA)[:, None]
    return tf.clip_by_value(tf.tensordot(image, mixing, 1), 0.0, 255.0)


def _sharpness(image: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Change the sharpness like PIL's ImageEnhance.Sharpness, away from an image smoothed by (1 1 1, 1 5 1, 1 1 1) / 13.

    Pixels at the image's edges are unchanged.
    """
    inner = image[1:-1, 1:-1]
    smooth = (9 * tf.nn.avg_pool2d(image[None], 3, 1, "VALID")[0] + 4 * inner) / 13
    return tf.clip_by_value(image + amount * tf.pad(inner - smooth, [[1, 1], [1, 1], [0, 0]]), 0.0, 255.0)


def _posterize(image: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Clear the lowest `amount` bits of each value; `amount` is rounded."""
    unit = 2 ** tf.round(amount)
    return tf.floor(image / unit) * unit


def _solarize(image: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Invert values of at least 256 - amount."""
    return image + tf.cast(image >= 256 - amount, tf.float32) * (255 - 2 * image)


def _autocontrast(image: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
    """Stretch each channel to the range 0 to 255."""
    low, high = (_by_channel(reduce, _flat(image)) for reduce in (tf.reduce_min, tf.reduce_max))
    flat = high <= low
    low, scale = tf.where_v2(flat, 0.0, low), tf.where_v2(flat, 1.0, 255 / (high - low))
    side = image.shape[1]
    return tf.reshape((_flat(image) - tf.tile(low, [side])) * tf.tile(scale, [side]), image.shape)


def _equalize(image: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
    """Map each channel by its cumulative histogram, like PIL's ImageOps.equalize."""
    places = tf.cast(tf.round(_flat(image)), tf.int32) + np.tile(np.int32([0, 256, 512]), image.shape[1])
    counts = tf.raw_ops.DenseBincount(input=tf.reshape(places, [-1]), size=768, weights=tf.constant([], tf.int32))
    largest = tf.gather(counts, _by_channel(tf.reduce_max, places))
    counts = tf.reshape(counts, [3, 256])
    step = ((tf.reduce_sum(counts, 1) - largest) // 255)[:, None]
    below = tf.cumsum(counts, 1, exclusive=True)
    equal = tf.minimum((below + step // 2) // tf.maximum(step, 1), 255)
    table = tf.cast(tf.reshape(tf.where_v2(step > 0, equal, tf.range(256)), [-1]), tf.float32)
    return tf.reshape(tf.gather(table, places), image.shape)


def _rotate(image: tf.Tensor, degrees: tf.Tensor) -> tf.Tensor:
    cos, sin = tf.cos(degrees * (math.pi / 180)), tf.sin(degrees * (math.pi / 180))
    return _affine(image, (cos, -sin), (sin, cos))


def _affine(image: tf.Tensor, x: tuple = (1.0, 0.0), y: tuple = (0.0, 1.0), shift: tuple = (0.0, 0.0)) -> tf.Tensor:
    """Transform the image bilinearly by a matrix with rows `x` and `y` about the centre, then shift it.

    `shift` is a fraction of the image's side.
    """
    side, transform = image.shape[0], []
    for (a, b), by in zip((x, y), shift):
        transform += [a, b, (side - 1) / 2 * (1 - a - b) + by * side]
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None], transforms=tf.stack([*transform, 0.0, 0.0])[None], output_shape=image.shape[:2],
        fill_value=FILL, interpolation="BILINEAR", fill_mode="CONSTANT",
    )[0]  # fmt: skip


def _away_from(other: tf.Tensor, image: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(image + amount * (image - other), 0.0, 255.0)


def _flat(image: tf.Tensor) -> tf.Tensor:
    """Return the image as [side, 3 * side], because TensorFlow reduces and broadcasts long rows several times as fast."""
    return tf.reshape(image, [image.shape[0], -1])


def _by_channel(reduce: Callable, flat: tf.Tensor) -> tf.Tensor:
    return reduce(tf.reshape(reduce(flat, 0), [-1, 3]), 0)


class Operation(NamedTuple):
    """An operation. `most` is the amount at the largest magnitude. If `signed`, the amount may also be negative."""

    change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    most: float
    signed: bool = False


OPERATIONS = {  # the ranges are AutoAugment's (Cubuk et al., arXiv 1805.09501)
    "identity": Operation(lambda image, _: image, 0.0),
    "shear x": Operation(lambda image, amount: _affine(image, x=(1.0, amount)), 0.3, True),
    "shear y": Operation(lambda image, amount: _affine(image, y=(amount, 1.0)), 0.3, True),
    "translate x": Operation(lambda image, amount: _affine(image, shift=(amount, 0.0)), 150 / 331, True),
    "translate y": Operation(lambda image, amount: _affine(image, shift=(0.0, amount)), 150 / 331, True),
    "rotate": Operation(_rotate, 30.0, True),
    "brightness": Operation(brightness, 0.9, True),
    "contrast": Operation(contrast, 0.9, True),
    "colour": Operation(colour, 0.9, True),
    "sharpness": Operation(_sharpness, 0.9, True),
    "posterize": Operation(_posterize, 4.0),
    "solarize": Operation(_solarize, 256.0),
    "autocontrast": Operation(_autocontrast, 0.0),
    "equalize": Operation(_equalize, 0.0),
}
