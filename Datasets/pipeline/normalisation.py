"""Pixels to the numbers that a network takes: pictures standardised each by itself, photographs by the statistics of their
channels, on the host or on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from Datasets._spec import ReadRequest
from Datasets.formats import preprocessing
from Datasets.pipeline.augmentation import FRAME, Cuts, no_cuts, sized


def standardise(image: tf.Tensor) -> tf.Tensor:
    """Whole numbers 0 to 255 [n, h, w, c] to mean 0, deviation 1 per image, float32."""
    return _standardised(image, *mean_and_scale(image))


def mean_and_scale(image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mean of each image of whole numbers and 1 / deviation, at most sqrt(h w c), both float32 [n].

    The sums are taken in integers: exact, so no bit depends on how many images are summed together. A factor
    leaves TensorFlow nothing to rewrite, unlike a division by a constant.
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
    """`standardise` in FP32 alone, equal within rounding, for runtimes that have neither 64-bit whole numbers nor FP64."""
    pixels = tf.cast(image, tf.float32)
    centred = pixels - tf.reduce_mean(pixels, [1, 2, 3], keepdims=True)
    least = float(image.shape[1] * image.shape[2] * image.shape[3]) ** -0.5
    deviation = tf.sqrt(tf.reduce_mean(tf.square(centred), [1, 2, 3], keepdims=True))
    return centred / tf.maximum(deviation, least)


def moments(image: tf.Tensor, cuts: Cuts) -> tf.Tensor:
    """The numbers of whole images that `from_bytes` needs: mean, scale, top, left; float32 [n, 4]."""
    mean, scale = mean_and_scale(image)
    return tf.stack([mean, scale, tf.cast(cuts.top, tf.float32), tf.cast(cuts.left, tf.float32)], axis=1)


def from_bytes(image: tf.Tensor, moments: tf.Tensor, side: int) -> tf.Tensor:
    """Cropped bytes standardised with the whole image's moments, the frame zero: the float stream's very bits."""
    mean, scale, top, left = tf.unstack(moments, axis=1)
    sent = image.shape[1]

    def in_picture(first: tf.Tensor) -> tf.Tensor:
        place = first[:, None] + tf.range(sent, dtype=tf.float32)
        return tf.logical_and(place >= FRAME, place < FRAME + sent)  # the same for mirrored images

    inside = tf.logical_and(in_picture(top)[:, :, None, None], in_picture(left)[:, None, :, None])
    return sized(tf.where_v2(inside, _standardised(image, mean, scale), 0.0), side)


def standardised_on_device(image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None) -> tf.Tensor:
    """Standard pictures, float32 [n, side, side, 3]; bytes are standardised here, as whole pictures without `moments`."""
    if moments is None and not request.eight_bit_io:
        return image
    return from_bytes(image, _moments_of_whole(image) if moments is None else moments, request.image_size)


def _moments_of_whole(image: tf.Tensor) -> tf.Tensor:
    return moments(image, no_cuts(tf.zeros([tf.shape(image)[0]])))


def normalised_on_device(image: tf.Tensor, request: ReadRequest) -> tf.Tensor:
    """Photographs as `normalise` gives them, unless the stream has normalised them; bytes are normalised here."""
    return image if request.hostside_norm and not request.eight_bit_io else normalise(image, request)


def normalise(image: tf.Tensor, request: ReadRequest) -> tf.Tensor:
    """Photographs 0 to 255 to float32, by the request: channel means subtracted, mean 0 and deviation 1 over ImageNet, own
    constants, or about -1 to 1; with `fused_preprocessing` a fourth channel of zeros."""
    normal = _normalised(tf.cast(image, tf.float32), request)
    return tf.pad(normal, [[0, 0]] * (len(normal.shape) - 1) + [[0, 1]]) if request.fused_preprocessing else normal


def visible(image: tf.Tensor, request: ReadRequest, standardised: bool) -> tf.Tensor:
    """The pictures that a network sees as bytes [n, side, side, 3] for people: normalised photographs as they were, standard
    pictures, which have lost their brightness, from their darkest to their brightest value."""
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
    """A number for each channel, as often as a row of `image` [..., width, 3] has pixels where the graph knows the width:
    TensorFlow broadcasts whole rows in half of the time that three numbers take."""
    values, width = np.float32(channels), image.shape[-2] if (image.shape.rank or 0) > 1 else None
    return tf.constant(values if width is None else np.tile(values, (width, 1)))
