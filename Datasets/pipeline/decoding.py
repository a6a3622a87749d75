"""Decode photos to uint8 pixels: the whole image, a random crop, or the central crop for validation."""

from __future__ import annotations

import atexit
import io
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base.errors import DataError
from cnn_harness.base.process import tf_runtime
from cnn_harness.base.storage import input_files
from cnn_harness.Datasets.formats import image_headers, preprocessing
from cnn_harness.Datasets.pipeline import augmentation

LONGEST = 32  # an image is cropped before resizing if its longer side exceeds 32 times its shorter side


class Decoder:
    """Decodes images as in training, for commands that check images. Thread-safe."""

    def __init__(self) -> None:
        with tf.Graph().as_default() as graph:
            self._encoded = tf.placeholder(tf.string, [])
            self._size = tf.shape(whole(self._encoded))
            self._session = tf.Session(graph=graph)
            atexit.register(self._session.close)  # closing it in garbage collection can deadlock

    def fault(self, encoded: bytes) -> str | None:
        """Return the reason why an image cannot be decoded ("is ...", "claims ..."), or None."""
        wrong = image_headers.fault(encoded)
        if wrong:
            return wrong
        try:
            self._session.run(self._size, {self._encoded: np.array(encoded, object)})
        except tf.errors.OpError as error:
            return f"cannot be decoded: {tf_runtime.telling_line(error)}"
        return None

    def file_fault(self, file: Path) -> str | None:
        """Return the reason why a file cannot be read or decoded, or None."""
        reason = image_headers.file_fault(file)
        try:
            return reason or self.fault(input_files.content(file, image_headers.MAX_BYTES))
        except OSError as error:
            return f"cannot be read: {error.strerror}"


def random_crop(encoded: tf.Tensor, boxes: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Decode only a crop of random position, area and aspect ratio, uint8 [height, width, 3].

    `augmentation.random_window` explains `boxes` and `seed`.
    """

    def from_jpeg() -> tf.Tensor:
        cut = augmentation.random_window(tf.image.extract_jpeg_shape(encoded), boxes, seed)
        return tf.image.decode_and_crop_jpeg(encoded, cut, channels=3, dct_method="INTEGER_FAST")

    def from_other() -> tf.Tensor:
        whole = _decoded_whole(encoded)
        top, left, height, width = tf.unstack(augmentation.random_window(tf.shape(whole), boxes, seed))
        return whole[top : top + height, left : left + width]

    encoded, orientation = _checked_header(encoded)
    return _upright(tf.cond(tf.image.is_jpeg(encoded), from_jpeg, from_other), orientation)


def whole(encoded: tf.Tensor) -> tf.Tensor:
    """Decode an image's first frame, turned upright by EXIF or XMP, without transparency; uint8 [height, width, 3]."""
    encoded, orientation = _checked_header(encoded)
    stored = tf.cond(
        tf.image.is_jpeg(encoded),
        lambda: tf.image.decode_jpeg(encoded, channels=3, dct_method="INTEGER_FAST"),
        lambda: _decoded_whole(encoded),
    )
    return _upright(stored, orientation)


def _checked_header(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Check an encoded image's header; return the image and its orientation, int32 from 1 to 8.

    The check is needed because decoders trust the header and allocate memory at once.
    """
    orientation = tf.ensure_shape(tf.numpy_function(_checked_orientation, [encoded], tf.int32), [])
    with tf.control_dependencies([orientation]):
        return tf.identity(encoded), orientation


def _checked_orientation(encoded: bytes) -> np.int32:
    try:
        return np.int32(image_headers.header(encoded).orientation)
    except DataError as error:
        raise DataError(f"the image {error}") from None


def _upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turn or mirror an image or crop [height, width, 3] so that it is upright. `orientation` is EXIF's number."""
    turned = partial(tf.numpy_function, _turned, [image, orientation], tf.uint8)
    return tf.ensure_shape(tf.cond(orientation > 1, turned, lambda: image), [None, None, 3])


def _turned(image: np.ndarray, orientation: np.int32) -> np.ndarray:
    image = image.transpose(1, 0, 2) if orientation > 4 else image
    image = image[:, ::-1] if orientation in (2, 3, 6, 7) else image
    return np.ascontiguousarray(image[::-1] if orientation in (3, 4, 7, 8) else image)


def _decoded_whole(encoded: tf.Tensor) -> tf.Tensor:
    """Decode an image, uint8 [height, width, 3]: BMP, GIF and WebP with Pillow, other formats with TensorFlow.

    TensorFlow's decoder ignores the colour table of a BMP, makes transparent pixels of a GIF black, and decodes every
    frame of a WebP.
    """
    start = tf.strings.substr(encoded, 0, 2)
    pixels = tf.cond(
        tf.reduce_any(tf.equal(start, [b"BM", b"GI", b"RI"])),
        lambda: tf.numpy_function(_by_pillow, [encoded], tf.uint8),
        lambda: tf.image.decode_image(encoded, channels=3, expand_animations=False),
    )
    return tf.ensure_shape(pixels, [None, None, 3])


def _by_pillow(encoded: bytes) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(encoded), formats=["BMP", "GIF", "WEBP"]) as image:
        return np.asarray(image.convert("RGB"))


def central_crop(image: tf.Tensor, side: int) -> tf.Tensor:
    """Resize an image to a shorter side of 256/224 x `side`; return the central crop, float32 [side, side, 3]."""
    image = _bounded_aspect(image)
    shape = tf.shape(image)[:2]
    shorter = tf.reduce_min(shape)
    height, width = tf.unstack((shape * int(side * preprocessing.CENTRAL) + shorter // 2) // shorter)  # rounded
    resized = augmentation.resize(image[None], height, width)[0]
    top, left = (height - side) // 2, (width - side) // 2
    return resized[top : top + side, left : left + side]


def _bounded_aspect(image: tf.Tensor) -> tf.Tensor:
    """Cut an image to an aspect ratio of at most LONGEST. Otherwise resizing 1 x 1,000,000 pixels would fill memory."""
    shape = tf.shape(image)[:2]
    extent = tf.minimum(shape, LONGEST * tf.reduce_min(shape))
    top, left = tf.unstack((shape - extent) // 2)
    return image[top : top + extent[0], left : left + extent[1]]
