"""Normalise pixels on the host or on the device: small images by their own statistics, photos by channel statistics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.Datasets._spec import ReadRequest
from cnn_harness.Datasets.formats import preprocessing
from cnn_harness.Datasets.pipeline.augmentation import FRAME, Cuts, no_cuts, sized


def standardise(image: tf.Tensor) -> tf.Tensor:
    """Give each image [n, h, w, c] of whole numbers 0 to 255 the mean 0 and the deviation 1; return float32."""
    return _standardised(image, *mean_and_scale(image))


def mean_and_scale(image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mean and 1 / deviation (at most sqrt(h w c)) of each image of whole numbers, both float32 [n].

    The sums are exact integers, so the result does not depend on the batch size. The inverse is returned because
    TensorFlow may rewrite divisions by constants, but does not rewrite multiplications.
    """
    count = image.shape[1] * image.shape[2] * image.shape[3]
    whole = tf.cast(image, tf.int32)
    total = tf.cast(tf.reduce_sum(whole, [1, 2, 3]), tf.int64)
    squares = tf.reduce_sum(tf.cast(tf.reduce_sum(whole * whole, [2, 3]), tf.int64), 1)  # 32 bits hold one row
    deviation = tf.sqrt(tf.cast(squares * count - total * total, tf.float64)) / count
    deviation = tf.maximum(deviation, count**-0.5)
    return tf.cast(tf.cast(total, tf.float64) / count, tf.float32), tf.cast(1.0 / deviation, tf.float32)


def _standardised(image: tf.Tensor, mean: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    return (tf.cast(image, tf.float32) - mean[:, None, None, None]) * scale[:, None, None, None]


def standardise_in_floats(image: tf.Tensor) -> tf.Tensor:
    """Standardise images in FP32 only, for runtimes without FP64. The result equals `standardise` up to rounding."""
    pixels = tf.cast(image, tf.float32)
    centred = pixels - tf.reduce_mean(pixels, [1, 2, 3], keepdims=True)
    least = float(image.shape[1] * image.shape[2] * image.shape[3]) ** -0.5
    deviation = tf.sqrt(tf.reduce_mean(tf.square(centred), [1, 2, 3], keepdims=True))
    return centred / tf.maximum(deviation, least)


def moments(image: tf.Tensor, cuts: Cuts) -> tf.Tensor:
    """Return the values that `from_bytes` needs for each image before its crop: mean, scale, top, left; float32 [n, 4]."""
    mean, scale = mean_and_scale(image)
    return tf.stack([mean, scale, tf.cast(cuts.top, tf.float32), tf.cast(cuts.left, tf.float32)], axis=1)


def from_bytes(image: tf.Tensor, moments: tf.Tensor, side: int) -> tf.Tensor:
    """Standardise cropped uint8 images with the moments of the whole images; set the frame to zero.

    The result has the same bits as images standardised on the host.
    """
    mean, scale, top, left = tf.unstack(moments, axis=1)
    sent = image.shape[1]

    def in_image(first: tf.Tensor) -> tf.Tensor:
        place = first[:, None] + tf.range(sent, dtype=tf.float32)
        return tf.logical_and(place >= FRAME, place < FRAME + sent)  # the same for mirrored images

    inside = tf.logical_and(in_image(top)[:, :, None, None], in_image(left)[:, None, :, None])
    return sized(tf.where_v2(inside, _standardised(image, mean, scale), 0.0), side)


def standardised_on_device(image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None) -> tf.Tensor:
    """Return standardised images, float32 [n, side, side, 3].

    Float images are standardised already. Standardise uint8 images; if there are no `moments`, images are not cropped.
    """
    if moments is None and not request.eight_bit_io:
        return image
    return from_bytes(image, _moments_of_whole(image) if moments is None else moments, request.image_size)


def _moments_of_whole(image: tf.Tensor) -> tf.Tensor:
    return moments(image, no_cuts(tf.zeros([tf.shape(image)[0]])))


def normalised_on_device(image: tf.Tensor, request: ReadRequest) -> tf.Tensor:
    """Normalise photos, unless the stream has already done it."""
    return image if request.hostside_norm and not request.eight_bit_io else normalise(image, request)


def normalise(image: tf.Tensor, request: ReadRequest) -> tf.Tensor:
    """Normalise photos from 0 to 255 as requested; float32.

    According to the request, subtract the channel means, use ImageNet's or the given means and deviations, or scale to
    about -1 to 1. With `fused_preprocessing`, add a fourth channel of zeros.
    """
    normal = _normalised(tf.cast(image, tf.float32), request)
    return tf.pad(normal, [[0, 0]] * (len(normal.shape) - 1) + [[0, 1]]) if request.fused_preprocessing else normal


def visible(image: tf.Tensor, request: ReadRequest, standardised: bool) -> tf.Tensor:
    """Return network inputs as visible images, uint8 [n, side, side, 3].

    Normalised photos get their original brightness. Standardised images have lost their brightness, so each image is
    stretched from its darkest to its brightest value.
    """
    image = image[..., :3]
    if standardised:
        black, white = (reduce(image, [1, 2, 3], keepdims=True) for reduce in (tf.reduce_min, tf.reduce_max))
    else:
        black, white = (_normalised(tf.fill([3], value), request) for value in (0.0, 255.0))
    return tf.cast(tf.clip_by_value(tf.round(255 * (image - black) / tf.maximum(white - black, 1e-6)), 0, 255), tf.uint8)


def _normalised(image: tf.Tensor, request: ReadRequest) -> tf.Tensor:
    if request.symmetric_input:
        return (image - preprocessing.SYMMETRIC_MIDDLE) * (1 / preprocessing.SYMMETRIC_SCALE)
    if constants := preprocessing.unit_constants(request):
        mean, deviation = constants
        return (image / 255.0 - _repeated(mean, image)) / _repeated(deviation, image)
    return image - _repeated(preprocessing.CHANNEL_MEAN, image)


def _repeated(channels: Sequence[float], image: tf.Tensor) -> tf.Tensor:
    """Return one number per channel, repeated for each pixel of a row if the width of `image` [..., width, 3] is known.

    TensorFlow broadcasts a long row twice as fast as three numbers.
    """
    values, width = np.float32(channels), image.shape[-2] if (image.shape.rank or 0) > 1 else None
    return tf.constant(values if width is None else np.tile(values, (width, 1)))
