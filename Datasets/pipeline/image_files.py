"""Preprocess image files or arrays like the validation images of a data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets._spec import DataSpec, ReadRequest
from cnn_harness.Datasets.formats import image_headers
from cnn_harness.Datasets.pipeline import augmentation, decoding, normalisation


def load(images: Sequence[str | np.ndarray], spec: DataSpec, request: ReadRequest, first: int = 0) -> np.ndarray:
    """Return images [n, side, side, 3] as in the validation stream: float32, or uint8 with `eight_bit_io`.

    `images` are paths, or decoded images, uint8 [height, width, 3]. `first` is the number of the first image in messages.

    For data sets of photos, take the central crop. For data sets of small images, take the largest central square and add
    the data set's frame of zeros, unless the image already has the size of the stored images.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        encoded, pixels = tf.placeholder(tf.string, []), tf.placeholder(tf.uint8, [None, None, 3])
        image = decoding.whole(encoded)
        if spec.standardised:
            square = _framed(pixels, spec.image_size, spec.frame)[None]
            floats = augmentation.sized(normalisation.standardise(square), request.image_size)
            ready = (square if request.eight_bit_io else floats)[0]
        else:
            ready = decoding.central_crop(pixels, request.image_size)
        ready = tf.cast(ready, tf.uint8) if request.eight_bit_io else ready
        prepared = []
        for k, given in enumerate(images, first):
            name, decoded = f"image {k}", given
            if isinstance(given, str):
                name, content = f"photo {given}", image_headers.read(given)
                try:
                    decoded = session.run(image, {encoded: content})
                except tf.errors.OpError:  # also raised if Pillow fails
                    raise DataError(f"{name} cannot be decoded: it is damaged") from None
            _check_shape(name, *decoded.shape[:2])
            prepared.append(session.run(ready, {pixels: decoded}))
    return np.stack(prepared)


def _check_shape(name: str, height: int, width: int) -> None:
    if max(height, width) > decoding.LONGEST * min(height, width):
        raise DataError(
            f"{name} has {width} x {height} pixels, but the longer side may be at most {decoding.LONGEST} times the shorter "
            "side; crop the image"
        )


def _framed(image: tf.Tensor, side: int, frame: int) -> tf.Tensor:
    """Return the central square in a frame of zeros, [side, side, 3]. An image of side x side pixels is unchanged."""
    whole = tf.reduce_all(tf.equal(tf.shape(image)[:2], side))
    inner = _square(image, side - 2 * frame)
    framed = tf.pad(inner, [[frame, frame], [frame, frame], [0, 0]])
    return tf.ensure_shape(tf.cond(whole, lambda: tf.cast(image, inner.dtype), lambda: framed), [side, side, 3])


def _square(image: tf.Tensor, side: int) -> tf.Tensor:
    """Return the largest central square, resized by averaging and rounded to whole numbers, [side, side, 3]."""
    height, width = tf.unstack(tf.shape(image)[:2])
    edge = tf.minimum(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    square = image[top : top + edge, left : left + edge]
    resized = tf.raw_ops.ResizeArea(images=square[None], size=[side, side])[0]
    return tf.round(tf.ensure_shape(resized, [side, side, 3]))
