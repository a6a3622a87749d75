"""Photographs in files of their own, or in arrays, prepared as a data set prepares its validation pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from base.errors import DataError
from Datasets._spec import DataSpec, ReadRequest
from Datasets.formats import image_headers
from Datasets.pipeline import augmentation, decoding, normalisation


def load(images: Sequence[str | np.ndarray], spec: DataSpec, request: ReadRequest) -> np.ndarray:
    """[n, side, side, 3] float32, as the validation stream delivers it to the device; uint8 with `eight_bit_io`. `images`:
    paths, or decoded images, uint8 [height, width, 3].

    A set of photographs takes the central crop; a set of small standardised pictures, the largest square in the middle,
    in the set's frame unless the file is a picture of the set's records, frame and all.
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
        pictures = []
        for k, given in enumerate(images):
            name, decoded = f"image {k}", given
            if isinstance(given, str):
                name, content = f"photograph {given}", image_headers.read(given)
                try:
                    decoded = session.run(image, {encoded: content})
                except tf.errors.OpError:  # a bitmap fails in Pillow
                    raise DataError(f"{name} cannot be decoded: it is damaged") from None
            _check_shape(name, *decoded.shape[:2])
            pictures.append(session.run(ready, {pixels: decoded}))
    return np.stack(pictures)


def _check_shape(name: str, height: int, width: int) -> None:
    if max(height, width) > decoding.LONGEST * min(height, width):
        raise DataError(
            f"{name} is {width} x {height} pixels: no side may be longer than {decoding.LONGEST} times the other; crop it"
        )


def _framed(image: tf.Tensor, side: int, frame: int) -> tf.Tensor:
    """[side, side, 3]: the square in a frame of zeros; a picture of side x side as it is."""
    whole = tf.reduce_all(tf.equal(tf.shape(image)[:2], side))
    inner = _square(image, side - 2 * frame)
    framed = tf.pad(inner, [[frame, frame], [frame, frame], [0, 0]])
    return tf.ensure_shape(tf.cond(whole, lambda: tf.cast(image, inner.dtype), lambda: framed), [side, side, 3])


def _square(image: tf.Tensor, side: int) -> tf.Tensor:
    """The largest square in the middle, averaged down to whole numbers [side, side, 3]."""
    height, width = tf.unstack(tf.shape(image)[:2])
    edge = tf.minimum(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    square = image[top : top + edge, left : left + edge]
    resized = tf.raw_ops.ResizeArea(images=square[None], size=[side, side])[0]
    return tf.round(tf.ensure_shape(resized, [side, side, 3]))
