"""Image arithmetic of the streams, vectorised over a micro-batch; every draw is keyed by (seed, epoch, record)."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from base import draws
from Datasets._spec import ReadRequest
from Datasets.formats import preprocessing

_FRAME = 4  # zeros on every side before the random crop


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


class Cuts(NamedTuple):
    """The cuts of images: the first row and column of each crop in the framed image, and whether it is mirrored."""

    top: tf.Tensor
    left: tf.Tensor
    mirrored: tf.Tensor


def random_cuts(record: tf.Tensor, epoch: tf.Tensor, seed: int) -> Cuts:
    """Any place in the frame, half of the images mirrored."""
    return Cuts(
        top=draws.below(2 * _FRAME + 1, draws.key(seed, "data/crop-top"), epoch, record),
        left=draws.below(2 * _FRAME + 1, draws.key(seed, "data/crop-left"), epoch, record),
        mirrored=tf.equal(draws.below(2, draws.key(seed, "data/flip"), epoch, record), 1),
    )


def no_cuts(record: tf.Tensor) -> Cuts:
    """Every image whole and as it is."""
    middle = tf.fill(tf.shape(record), _FRAME)
    return Cuts(top=middle, left=middle, mirrored=tf.zeros_like(record, tf.bool))


def flip_and_crop(image: tf.Tensor, cuts: Cuts) -> tf.Tensor:
    """Mirror, frame with zeros, and crop to the old size: images [n, side, side, c] of any type.

    Two gathers do all three: rows first, then columns, counted from the right in a mirrored image.
    """
    side = image.shape[1]
    rows = cuts.top[:, None] + tf.range(side)
    columns = cuts.left[:, None] + tf.range(side)
    columns = tf.where_v2(cuts.mirrored[:, None], side + 2 * _FRAME - 1 - columns, columns)
    framed = tf.pad(image, [[0, 0], [_FRAME, _FRAME], [_FRAME, _FRAME], [0, 0]])
    return tf.gather(tf.gather(framed, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)


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
        return tf.logical_and(place >= _FRAME, place < _FRAME + sent)  # the same for mirrored images

    inside = tf.logical_and(in_picture(top)[:, :, None, None], in_picture(left)[:, None, :, None])
    return sized(tf.where_v2(inside, _standardised(image, mean, scale), 0.0), side)


def standardised_on_device(image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None) -> tf.Tensor:
    """Standard pictures, float32 [n, side, side, 3]; bytes are standardised here, as whole pictures without `moments`."""
    if moments is None and not request.eight_bit:
        return image
    return from_bytes(image, _moments_of_whole(image) if moments is None else moments, request.image_size)


def _moments_of_whole(image: tf.Tensor) -> tf.Tensor:
    return moments(image, no_cuts(tf.zeros([tf.shape(image)[0]])))


def sized(image: tf.Tensor, side: int) -> tf.Tensor:
    """[n, side, side, c]: resized, unless the image has this size already."""
    return image if image.shape[1] == side else resize(image, side, side)


def resize(image: tf.Tensor, height: int | tf.Tensor, width: int | tf.Tensor) -> tf.Tensor:
    """Bilinear, pixel centres at half; [n, h, w, c] of any number type to float32."""
    return tf.raw_ops.ResizeBilinear(images=image, size=tf.stack([height, width]), half_pixel_centers=True)


def normalised_on_device(image: tf.Tensor, request: ReadRequest) -> tf.Tensor:
    """Photographs as `normalise` gives them, unless the stream has normalised them; bytes are normalised here."""
    return image if request.host_normalise and not request.eight_bit else normalise(image, request)


def normalise(image: tf.Tensor, request: ReadRequest) -> tf.Tensor:
    """Photographs 0 to 255 to float32, by the request: channel means subtracted, mean 0 and deviation 1 over ImageNet, or
    about -1 to 1; with `fused` a fourth channel of zeros."""
    normal = _normalised(tf.cast(image, tf.float32), request)
    return tf.pad(normal, [[0, 0]] * (len(normal.shape) - 1) + [[0, 1]]) if request.fused else normal


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
    if request.symmetric_normalise:
        return (image - preprocessing.SYMMETRIC_MIDDLE) * (1 / preprocessing.SYMMETRIC_SCALE)
    if request.unit_normalise:
        return (image / 255.0 - tf.constant(preprocessing.UNIT_MEAN)) / tf.constant(preprocessing.UNIT_DEVIATION)
    return image - tf.constant(preprocessing.CHANNEL_MEAN)
