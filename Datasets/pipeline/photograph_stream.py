"""Streams of photographs from TFRecords: read, parse, crop and decode, flip, resize, normalise.

A record that cannot be read or decoded stops the stream with a DataError (inside TensorFlow's error) that names
file and record. TensorFlow's decoders know neither: failed elements are left out, and the first gap in the positions of a
complete micro-batch identifies the record. Where bad records are tolerated, the next good record replaces one in training
and an uncounted zero picture one in validation: no other picture's place changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import tensorflow.compat.v1 as tf

from base import draws
from base.errors import DataError
from Datasets._spec import InputStage, ReadRequest, Records
from Datasets.formats import tf_example
from Datasets.formats.bad_records import Tolerance
from Datasets.pipeline import augmentation, batching, decoding, record_reader

_READ_TOGETHER = 32  # payloads per call into Python
_READERS = 4  # such calls at once: the time goes into waiting for the disc
_STAND_INS = 8  # records tried after a bad one

Element = dict[str, tf.Tensor]


def train_stream(index: Records, request: ReadRequest, classes: int, tolerance: Tolerance) -> tf.data.Dataset:
    """Endless micro-batches of distorted crops (or of central ones, when the request says so)."""
    size = len(index)
    plain = partial(_prepared, request=request, classes=classes, distort=False)
    if not tolerance.most:
        record_reader.check(index, 0, plain)
    load = record_reader.loader(index, request.cache)
    single = _training_records(size, request, load).unbatch()
    prepare = partial(_prepared, request=request, classes=classes, distort=request.augment)

    def another(element: Element, k: tf.Tensor) -> Element:
        record = (element["record"] + k) % size
        drawn = _drawn(record, element["epoch"], request)
        return {**element, "payload": load(record[None])[0], "record": record, **drawn}

    def stand_in(element: Element) -> tf.data.Dataset:
        stand_ins = tf.data.Dataset.range(1, 1 + _STAND_INS).map(partial(another, element))
        blank = tf.data.Dataset.from_tensors({**_blank(element["position"], request), "due": element["due"]})
        return stand_ins.map(prepare).ignore_errors().concatenate(blank)

    decoded = _decoded_or(single, prepare, request, stand_in if tolerance.most else None)

    def record_of(sample: int) -> int:
        return record_reader.record_at(batching.place(request, sample), size, request)

    return _micro_batches(
        decoded, _Check(index, plain, partial(batching.place, request), record_of, tolerance, True), request
    )


def _training_records(size: int, request: ReadRequest, load: Callable[[tf.Tensor], tf.Tensor]) -> tf.data.Dataset:
    """Endless payloads in the order of the epochs, _READ_TOGETHER in one element."""

    def read(position: tf.Tensor) -> Element:
        record, epoch = batching.record_and_epoch(position, size, request.seed, request.shuffle_block)
        drawn = _drawn(record, epoch, request)  # for many at once
        return {"payload": load(record), "due": record, "record": record, "epoch": epoch, "position": position, **drawn}

    return batching.training_positions(request, _READ_TOGETHER).map(read, _READERS)


def stages(index: Records, request: ReadRequest, classes: int, tolerance: Tolerance) -> list[InputStage]:
    """The training stream up to reading, decoding, augmenting and batching."""

    def read() -> tf.data.Dataset:
        return _training_records(len(index), request, record_reader.loader(index, request.cache))

    def prepared(whole: bool) -> tf.data.Dataset:
        prepare = partial(_prepared, request=request, classes=classes, distort=request.augment, whole=whole)
        return read().unbatch().map(prepare, batching.threads(request)).ignore_errors()

    if not tolerance.most:
        record_reader.check(index, 0, partial(_prepared, request=request, classes=classes, distort=False))
    return [
        ("read", read, _READ_TOGETHER),
        ("decode", partial(prepared, False), 1),
        ("augment", partial(prepared, True), 1),
        ("batch", partial(train_stream, index, request, classes, tolerance), request.batch_size),
    ]


def validation_stream(index: Records, request: ReadRequest, classes: int, tolerance: Tolerance) -> tf.data.Dataset:
    """Every image once, in file order; the last micro-batch is filled up with zero images labelled -1."""
    size = len(index)
    count = batching.validation_micro_batches(request, size)
    place = partial(batching.place, request)
    real = count * request.batch_size - max(0, place((count - 1) * request.batch_size) + request.batch_size - size)
    load = record_reader.loader(index, request.cache)

    def read(record: tf.Tensor) -> Element:
        epoch = tf.zeros_like(record)
        return {"payload": load(record), "due": record, "record": record, "epoch": epoch, "position": record}

    together = tf.data.Dataset.range(real).map(place).batch(_READ_TOGETHER)
    single = together.map(read, _READERS).unbatch()
    prepare = partial(_prepared, request=request, classes=classes, distort=False)

    def stand_in(element: Element) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors({**_blank(element["position"], request), "due": element["due"]})

    decoded = _decoded_or(single, prepare, request, stand_in if tolerance.most else None)
    # A whole micro-batch more than fills the last one: without it, gaps at the very end would leave no batch to see them in.
    filling = tf.data.Dataset.range(real, (count + 1) * request.batch_size).map(place).map(partial(_blank, request=request))
    check = _Check(index, prepare, place, place, tolerance, False)
    return _micro_batches(decoded.concatenate(filling), check, request).take(count)


def _decoded_or(
    single: tf.data.Dataset,
    prepare: record_reader.Prepare,
    request: ReadRequest,
    stand_in: Callable[[Element], tf.data.Dataset] | None,
) -> tf.data.Dataset:
    """Records prepared in parallel, in order; failures are left out, or replaced by the first good stand-in."""

    def first(element: Element) -> Element:
        itself = tf.data.Dataset.from_tensors(element).map(prepare).ignore_errors()
        return itself.concatenate(stand_in(element)).take(1).get_single_element()

    return single.map(first if stand_in else prepare, batching.threads(request)).ignore_errors()


@dataclass(frozen=True)
class _Check:
    """Requires complete micro-batches: a gap in the positions is the error of the missing record."""

    index: Records
    describe: record_reader.Prepare
    position_of: Callable[[np.ndarray], np.ndarray]
    record_of: Callable[[int], int]
    tolerance: Tolerance
    training: bool

    def __call__(self, number: np.ndarray, position: np.ndarray, due: np.ndarray, used: np.ndarray) -> np.ndarray:
        """The positions, int64 [batch]; `due`, `used`: the record numbers of the order and of the pictures, -1 for none."""
        samples = number * len(position) + np.arange(len(position))
        gaps = np.flatnonzero(self.position_of(samples)[: len(position)] != position)
        if gaps.size:
            record_reader.fail(self.index, self.record_of(int(samples[gaps[0]])), self.describe)
        if self.tolerance.most:
            for record, instead in zip(due.tolist(), used.tolist()):
                if instead != record:
                    self._tell(record)
                if instead < 0 <= record and self.training:
                    raise DataError(f"{self.index.name(record)} cannot be used, nor can the {_STAND_INS} records after it")
        return position

    def _tell(self, record: int) -> None:
        place = self.index.name(record)
        if not self.tolerance.known(place):
            try:
                reason = record_reader.fault(self.index, record, self.describe)
            except DataError as error:
                reason = str(error).removeprefix(f"{place} ")
            self.tolerance.add(place, reason or "it could not be read at first")


def _micro_batches(single: tf.data.Dataset, check: _Check, request: ReadRequest) -> tf.data.Dataset:
    """Batches whose positions have no gap."""

    def checked(number: tf.Tensor, element: Element) -> Element:
        position = tf.numpy_function(check, [number, *(element[name] for name in ("position", "due", "record"))], tf.int64)
        shaped = {
            "image": element["image"],
            "label": element["label"],
            "position": tf.ensure_shape(position, [request.batch_size]),
        }
        if request.eight_bit:
            shaped["image"] = tf.cast(element["image"], tf.uint8)
        elif request.host_normalise:  # padding stays zero
            real = tf.cast(element["label"] >= 0, tf.float32)[:, None, None, None]
            shaped["image"] = augmentation.normalise(element["image"], request) * real
        return shaped

    batches = single.batch(request.batch_size, drop_remainder=True)
    numbered = batches.enumerate()
    return batching.prefetched(numbered.map(checked))


def _prepared(element: Element, request: ReadRequest, classes: int, distort: bool, whole: bool = True) -> Element:
    """Return one record's image [side, side, 3], float32 from 0 to 255, and label from 0; not `whole`: decoded only."""
    parsed = tf_example.in_graph(element["payload"])
    stored = parsed[tf_example.LABEL]  # int64, of which other labels may be the same in 32 bits
    good = tf.logical_and(stored >= 1, stored <= classes)
    # the operation alone: tf.Assert would wrap a branch around it, for every record
    stop = tf.raw_ops.Assert(condition=good, data=[f"{tf_example.LABEL} must be from 1 to {classes}, not", stored])
    with tf.control_dependencies([stop]):
        label = tf.cast(stored - 1, tf.int32)
    encoded = parsed[tf_example.ENCODED]
    image = decoding.random_crop(encoded, _boxes(parsed), element["seed"]) if distort else decoding.whole(encoded)
    if whole:
        image = _flipped(image, element, request) if distort else decoding.central_crop(image, request.image_size)
        image.set_shape([request.image_size, request.image_size, 3])
    passed_on = {name: element[name] for name in ("position", "due", "record")}
    return {"image": image, "label": label, **passed_on}


def _drawn(record: tf.Tensor, epoch: tf.Tensor, request: ReadRequest) -> Element:
    """The draws of records [n]: the seed of the crop, int32 [n, 2], and the flip, bool [n]."""
    return {
        "seed": draws.seed_pairs(draws.key(request.seed, "data/box"), epoch, record),
        "flip": tf.equal(draws.below(2, draws.key(request.seed, "data/flip"), epoch, record), 1),
    }


def _boxes(parsed: Element) -> tf.Tensor:
    """The boxes round objects, as fractions of the picture: float32 [1, n, 4] of ymin, xmin, ymax, xmax."""
    return tf.clip_by_value(tf.stack([parsed[edge] for edge in tf_example.BOX_EDGES], axis=-1)[None], 0.0, 1.0)


def _flipped(image: tf.Tensor, element: Element, request: ReadRequest) -> tf.Tensor:
    """Mirrored or not, and resized to the square."""
    image = tf.cond(element["flip"], lambda: tf.reverse(image, [1]), lambda: image)
    return augmentation.resize(image[None], request.image_size, request.image_size)[0]


def _blank(position: tf.Tensor, request: ReadRequest) -> Element:
    image = tf.zeros([request.image_size, request.image_size, 3])
    blank = tf.constant(-1, tf.int64)
    return {"image": image, "label": tf.constant(-1, tf.int32), "position": position, "due": blank, "record": blank}
