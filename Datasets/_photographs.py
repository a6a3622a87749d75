"""Streams of photographs from TFRecords: read, parse, crop and decode, flip, resize, normalise.

A record that cannot be read or decoded stops the stream with a DataError (inside TensorFlow's error) that names
file and record. TensorFlow's decoders know neither, so: elements that fail are left out, and the first gap in the
positions, seen when a micro-batch is complete, says which record it was.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial

import numpy as np
import tensorflow.compat.v1 as tf

from Datasets import _augment, _payloads, _pipeline
from Datasets._spec import ReadRequest, Records
from emulator import draws

_CENTRAL = 256 / 224  # evaluation: the shorter side is this times the crop's
_READ_TOGETHER = 32  # payloads per call into Python
_FEATURES = {
    "image/encoded": tf.FixedLenFeature([], tf.string),
    "image/class/label": tf.FixedLenFeature([], tf.int64, default_value=-1),
    **{f"image/object/bbox/{edge}": tf.VarLenFeature(tf.float32) for edge in ("ymin", "xmin", "ymax", "xmax")},
}

Element = dict[str, tf.Tensor]


def train_stream(index: Records, request: ReadRequest, classes: int) -> tf.data.Dataset:
    """Endless micro-batches of distorted crops (or of central ones, when the request says so)."""
    size = len(index)
    plain = partial(_prepared, request=request, classes=classes, distort=False)
    _payloads.check(index, 0, plain)
    load = _payloads.loader(index, request.cache)

    def read(position: tf.Tensor) -> Element:
        record, epoch = _pipeline.record_and_epoch(position, size, request.seed)
        return {"payload": load(record), "record": record, "epoch": epoch, "position": position}

    positions = _pipeline.training_positions(request, _READ_TOGETHER)
    single = positions.map(read).unbatch()
    prepare = partial(_prepared, request=request, classes=classes, distort=request.augment)
    decoded = single.map(prepare, _pipeline.threads(request)).ignore_errors()

    def record_of(sample: int) -> int:
        return _payloads.record_at(_pipeline.place(request, sample), size, request.seed)

    return _micro_batches(decoded, index, request, plain, partial(_pipeline.place, request), record_of)


def validation_stream(index: Records, request: ReadRequest, classes: int) -> tf.data.Dataset:
    """Every image once, in file order; the last micro-batch is filled up with zero images labelled -1."""
    size = len(index)
    count = -(-size // request.batch_size)
    load = _payloads.loader(index, request.cache)

    def read(record: tf.Tensor) -> Element:
        return {"payload": load(record), "record": record, "epoch": tf.zeros_like(record), "position": record}

    together = tf.data.Dataset.range(size).batch(_READ_TOGETHER)
    single = together.map(read).unbatch()
    prepare = partial(_prepared, request=request, classes=classes, distort=False)
    decoded = single.map(prepare, _pipeline.threads(request)).ignore_errors()
    # A whole micro-batch more than fills the last one: without it, gaps at the very end would leave no batch to see them in.
    filling = tf.data.Dataset.range(size, (count + 1) * request.batch_size).map(partial(_nothing, request=request))
    stream = _micro_batches(
        decoded.concatenate(filling), index, request, prepare, lambda sample: sample, lambda sample: sample
    )
    return stream.take(count)


def _micro_batches(
    single: tf.data.Dataset,
    index: Records,
    request: ReadRequest,
    describe: _payloads.Prepare,
    position_of: Callable[[np.ndarray], np.ndarray],
    record_of: Callable[[int], int],
) -> tf.data.Dataset:
    """Batches whose positions have no gap; a gap is turned into the error of the record that is missing."""

    def check(number: np.ndarray, position: np.ndarray) -> np.ndarray:
        samples = number * request.batch_size + np.arange(request.batch_size)
        gaps = np.flatnonzero(position_of(samples)[: len(position)] != position)
        if gaps.size:
            _payloads.fail(index, record_of(int(samples[gaps[0]])), describe)
        return position

    def checked(number: tf.Tensor, element: Element) -> Element:
        position = tf.numpy_function(check, [number, element["position"]], tf.int64)
        shaped = {
            "image": element["image"],
            "label": element["label"],
            "position": tf.ensure_shape(position, [request.batch_size]),
        }
        if request.eight_bit:
            shaped["image"] = tf.cast(element["image"], tf.uint8)
        elif request.host_normalise:  # padding stays zero
            real = tf.cast(element["label"] >= 0, tf.float32)[:, None, None, None]
            shaped["image"] = _augment.normalise(element["image"], request) * real
        return shaped

    batches = single.batch(request.batch_size, drop_remainder=True)
    numbered = batches.enumerate()
    return _pipeline.finish(numbered.map(checked))


def _prepared(element: Element, request: ReadRequest, classes: int, distort: bool) -> Element:
    """One record to one image [side, side, 3], float32 from 0 to 255, and its label from 0."""
    parsed = tf.parse_single_example(element["payload"], _FEATURES)
    label = tf.cast(parsed["image/class/label"], tf.int32) - 1
    good = tf.logical_and(label >= 0, label < classes)
    stop = tf.Assert(good, [f"image/class/label must be from 1 to {classes}, not", label + 1])
    with tf.control_dependencies([stop]):
        label = tf.identity(label)
    crop = _distorted if distort else _central
    image = crop(parsed, element, request)
    image.set_shape([request.image_size, request.image_size, 3])
    return {"image": image, "label": label, "position": element["position"]}


def _distorted(parsed: Element, element: Element, request: ReadRequest) -> tf.Tensor:
    """A crop of random place, area and aspect, decoded alone; mirrored or not."""
    seed = draws.seed_pairs(draws.key(request.seed, "data/box"), element["epoch"], element["record"])
    edges = [tf.sparse.to_dense(parsed[f"image/object/bbox/{edge}"]) for edge in ("ymin", "xmin", "ymax", "xmax")]
    boxes = tf.clip_by_value(tf.stack(edges, axis=-1)[None], 0.0, 1.0)

    def window(shape: tf.Tensor) -> tf.Tensor:
        begin, size, _ = tf.raw_ops.StatelessSampleDistortedBoundingBox(
            image_size=shape, bounding_boxes=boxes, seed=seed, min_object_covered=0.1,
            aspect_ratio_range=(0.75, 1.33), area_range=(0.05, 1.0), max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        return tf.concat([begin[:2], size[:2]], 0)

    def from_jpeg() -> tf.Tensor:
        cut = window(tf.image.extract_jpeg_shape(encoded))
        return tf.image.decode_and_crop_jpeg(encoded, cut, channels=3, dct_method="INTEGER_FAST")

    def from_other() -> tf.Tensor:
        whole = _decoded_whole(encoded)
        top, left, height, width = tf.unstack(window(tf.shape(whole)))
        return whole[top : top + height, left : left + width]

    encoded = parsed["image/encoded"]
    image = tf.cond(tf.image.is_jpeg(encoded), from_jpeg, from_other)
    flip = tf.equal(draws.below(2, draws.key(request.seed, "data/flip"), element["epoch"], element["record"]), 1)
    image = tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)
    return _augment.resize(image[None], request.image_size, request.image_size)[0]


def _central(parsed: Element, element: Element, request: ReadRequest) -> tf.Tensor:
    del element  # nothing is random here
    return central(decoded(parsed["image/encoded"]), request.image_size)


def decoded(encoded: tf.Tensor) -> tf.Tensor:
    """A file's picture, uint8 [height, width, 3]: the first frame, without transparency, not turned as EXIF may ask."""
    return tf.cond(
        tf.image.is_jpeg(encoded),
        lambda: tf.image.decode_jpeg(encoded, channels=3, dct_method="INTEGER_FAST"),
        lambda: _decoded_whole(encoded),
    )


def _decoded_whole(encoded: tf.Tensor) -> tf.Tensor:
    """TensorFlow's decoder takes the numbers of a BMP's colour table for colours, so Pillow decodes BMP."""
    picture = tf.cond(
        tf.equal(tf.strings.substr(encoded, 0, 2), b"BM"),
        lambda: tf.numpy_function(_bitmap, [encoded], tf.uint8),
        lambda: tf.image.decode_image(encoded, channels=3, expand_animations=False),
    )
    return tf.ensure_shape(picture, [None, None, 3])


def _bitmap(encoded: bytes) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(encoded), formats=["BMP"]) as picture:
        return np.asarray(picture.convert("RGB"))


def central(image: tf.Tensor, side: int) -> tf.Tensor:
    """The whole picture resized so that its shorter side is 256/224 of the crop's, and the crop from its middle."""
    shape = tf.shape(image)[:2]
    shorter = tf.reduce_min(shape)
    height, width = tf.unstack((shape * int(side * _CENTRAL) + shorter // 2) // shorter)  # rounded
    resized = _augment.resize(image[None], height, width)[0]
    top, left = (height - side) // 2, (width - side) // 2
    return resized[top : top + side, left : left + side]


def _nothing(position: tf.Tensor, request: ReadRequest) -> Element:
    image = tf.zeros([request.image_size, request.image_size, 3])
    return {"image": image, "label": tf.constant(-1, tf.int32), "position": position}
