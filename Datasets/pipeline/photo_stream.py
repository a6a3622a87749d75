"""Streams of photos from records: read, parse, crop and decode, mirror, resize, normalise.

A record that cannot be read or decoded stops the stream with a DataError (inside TensorFlow's error) that names the file
and the record. TensorFlow's decoders do not know these names. Failed elements are therefore dropped, and the first gap in
the positions of a micro-batch identifies the failed record.

If bad records are tolerated, training replaces a bad record by the next good record, and validation replaces it by a zero
image that is not counted. All other images keep their positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base import draws
from cnn_harness.base.errors import DataError
from cnn_harness.Datasets._spec import InputStage, ReadRequest, Records
from cnn_harness.Datasets.formats import tf_example
from cnn_harness.Datasets.formats.bad_records import Tolerance
from cnn_harness.Datasets.pipeline import augmentation, auto_augment, batching, decoding, normalisation, record_reader

_READ_TOGETHER = 32  # number of records read by one call into Python.
_READERS = 4  # number of such calls at once, because most of the time is spent waiting for the disk.
_MAX_REPLACEMENTS = 8  # number of following records tried as a replacement for a bad record

Element = dict[str, tf.Tensor]


def train_stream(index: Records, request: ReadRequest, labels: range, tolerance: Tolerance) -> tf.data.Dataset:
    """Return an endless stream of training batches with random crops, or with central crops if `augment` is False."""
    size = len(index)
    prepare = partial(_prepared, request=request, labels=labels, augment=request.augment)
    if not tolerance.most:
        record_reader.check(index, 0, prepare, labels)
    load = record_reader.loader(index, request.dataset_cache)
    single = _training_records(size, request, load).unbatch()

    def following(element: Element, k: tf.Tensor) -> Element:
        record = (element["record"] + k) % size
        drawn = _drawn(record, element["epoch"], request)
        return {**element, "payload": load(record[None])[0], "record": record, **drawn}

    def replacement(element: Element) -> tf.data.Dataset:
        replacements = tf.data.Dataset.range(1, 1 + _MAX_REPLACEMENTS).map(partial(following, element))
        blank = tf.data.Dataset.from_tensors({**_blank(element["position"], request), "expected": element["expected"]})
        return replacements.map(prepare).ignore_errors().concatenate(blank)

    decoded = _decoded_with_replacements(single, prepare, request, replacement if tolerance.most else None)

    def record_of(sample: int) -> int:
        return record_reader.record_at(batching.sample_position(request, sample), size, request)

    return _micro_batches(
        decoded,
        _Check(index, prepare, labels, partial(batching.sample_position, request), record_of, tolerance, True),
        request,
    )


def _training_records(size: int, request: ReadRequest, load: Callable[[tf.Tensor], tf.Tensor]) -> tf.data.Dataset:
    """Return an endless stream of serialised records in the order of the epochs, _READ_TOGETHER per element."""

    def read(position: tf.Tensor) -> Element:
        record, epoch = batching.record_and_epoch(position, size, request.seed, request.shuffle_block)
        drawn = _drawn(record, epoch, request)  # one operation draws for many records
        order = {"expected": record, "record": record, "epoch": epoch, "position": position}
        return {"payload": load(record), **order, **drawn}

    return batching.training_positions(request, _READ_TOGETHER).map(read, _READERS)


def stages(index: Records, request: ReadRequest, labels: range, tolerance: Tolerance) -> list[InputStage]:
    """Return the stages of the training stream: read, decode, augment, batch."""

    def read() -> tf.data.Dataset:
        return _training_records(len(index), request, record_reader.loader(index, request.dataset_cache))

    def prepared(cropped: bool) -> tf.data.Dataset:
        prepare = partial(_prepared, request=request, labels=labels, augment=request.augment, cropped=cropped)
        return read().unbatch().map(prepare, batching.num_parallel_calls(request)).ignore_errors()

    if not tolerance.most:
        record_reader.check(index, 0, partial(_prepared, request=request, labels=labels, augment=request.augment), labels)
    return [
        ("read", read, _READ_TOGETHER),
        ("decode", partial(prepared, False), 1),
        ("augment", partial(prepared, True), 1),
        ("batch", partial(train_stream, index, request, labels, tolerance), request.batch_size),
    ]


def validation_stream(index: Records, request: ReadRequest, labels: range, tolerance: Tolerance) -> tf.data.Dataset:
    """Return a stream of every image once, in file order. Zero images with label -1 pad the last micro-batch."""
    size = len(index)
    count = batching.validation_micro_batches(request, size)
    place = partial(batching.sample_position, request)
    num_images = count * request.batch_size - max(0, place((count - 1) * request.batch_size) + request.batch_size - size)
    load = record_reader.loader(index, request.dataset_cache)

    def read(record: tf.Tensor) -> Element:
        epoch = tf.zeros_like(record)
        return {"payload": load(record), "expected": record, "record": record, "epoch": epoch, "position": record}

    together = tf.data.Dataset.range(num_images).map(place).batch(_READ_TOGETHER)
    single = together.map(read, _READERS).unbatch()
    prepare = partial(_prepared, request=request, labels=labels, augment=False)

    def replacement(element: Element) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors({**_blank(element["position"], request), "expected": element["expected"]})

    decoded = _decoded_with_replacements(single, prepare, request, replacement if tolerance.most else None)
    # Add one more micro-batch than needed. Otherwise a gap at the end would make the last batch incomplete and drop it.
    filling = tf.data.Dataset.range(num_images, (count + 1) * request.batch_size).map(place)
    filling = filling.map(partial(_blank, request=request))
    check = _Check(index, prepare, labels, place, place, tolerance, False)
    return _micro_batches(decoded.concatenate(filling), check, request).take(count)


def _decoded_with_replacements(
    single: tf.data.Dataset,
    prepare: record_reader.Prepare,
    request: ReadRequest,
    replacement: Callable[[Element], tf.data.Dataset] | None,
) -> tf.data.Dataset:
    """Prepare records in parallel, in order. Drop failed records, or replace each by the first good replacement."""

    def original_or_replacement(element: Element) -> Element:
        original = tf.data.Dataset.from_tensors(element).map(prepare).ignore_errors()
        return original.concatenate(replacement(element)).take(1).get_single_element()

    return single.map(
        original_or_replacement if replacement else prepare, batching.num_parallel_calls(request)
    ).ignore_errors()


@dataclass(frozen=True)
class _Check:
    """Checks that a batch is complete, and raises the error of a missing record."""

    index: Records
    prepare: record_reader.Prepare
    labels: range
    position_of: Callable[[np.ndarray], np.ndarray]
    record_of: Callable[[int], int]
    tolerance: Tolerance
    training: bool

    def __call__(self, number: np.ndarray, position: np.ndarray, expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
        """Return the positions, int64 [batch].

        `expected` has the records in the order of the stream, and `actual` the records whose images were used instead if a
        record is bad; -1 marks padding.
        """
        samples = number * len(position) + np.arange(len(position))
        gaps = np.flatnonzero(self.position_of(samples)[: len(position)] != position)
        if gaps.size:
            record_reader.fail(self.index, self.record_of(int(samples[gaps[0]])), self.prepare, self.labels)
        if self.tolerance.most:
            for record, actual_record in zip(expected.tolist(), actual.tolist()):
                if actual_record != record:
                    self._tolerate(record)
                if actual_record < 0 <= record and self.training:
                    raise DataError(
                        f"{self.index.name(record)} cannot be used, and neither can the {_MAX_REPLACEMENTS} records after it"
                    )
        return position

    def _tolerate(self, record: int) -> None:
        place = self.index.name(record)
        if not self.tolerance.known(place):
            reason = record_reader.fault(self.index, record, self.prepare, self.labels)
            if reason and reason.startswith(f"{tf_example.WRONG_LABEL} 0,"):  # usually a problem of the whole data set
                raise DataError(f"{place} cannot be used: {reason}; {tf_example.LABEL_REMEDY}")
            self.tolerance.add(place, reason or "it could not be read at first")


def _micro_batches(single: tf.data.Dataset, check: _Check, request: ReadRequest) -> tf.data.Dataset:
    """Return batches; check that the positions of the samples have no gap."""

    def checked(number: tf.Tensor, element: Element) -> Element:
        records = [element[name] for name in ("position", "expected", "record")]
        position = tf.numpy_function(check, [number, *records], tf.int64)
        shaped = {
            "image": element["image"],
            "label": element["label"],
            "position": tf.ensure_shape(position, [request.batch_size]),
        }
        if request.eight_bit_io:
            shaped["image"] = tf.cast(element["image"], tf.uint8)
        elif request.hostside_norm:  # padding stays zero
            real = tf.cast(element["label"] >= 0, tf.float32)[:, None, None, None]
            shaped["image"] = normalisation.normalise(element["image"], request) * real
        return shaped

    batches = single.batch(request.batch_size, drop_remainder=True)
    numbered = batches.enumerate()
    return batching.prefetched(numbered.map(checked))


def _prepared(element: Element, request: ReadRequest, labels: range, augment: bool, cropped: bool = True) -> Element:
    """Return a record's image, float32 [side, side, 3] from 0 to 255, and its label, which counts from 0.

    If `cropped` is false, only decode the image.
    """
    parsed = tf_example.in_graph(element["payload"])
    stored = parsed[tf_example.LABEL]  # int64, because an invalid label may look valid in 32 bits
    good = tf.logical_and(stored >= labels.start, stored < labels.stop)
    # This uses the raw operation, because tf.Assert adds a branch for every record.
    said = [f"{tf_example.LABEL} must be {labels.start} to {labels[-1]}, not", stored, "(-1: the record has none)"]
    stop = tf.raw_ops.Assert(condition=good, data=said)
    with tf.control_dependencies([stop]):
        label = tf.cast(stored - labels.start, tf.int32)
    encoded = parsed[tf_example.ENCODED]
    image = decoding.random_crop(encoded, _boxes(parsed), element["seed"]) if augment else decoding.whole(encoded)
    if cropped:
        image = _flipped(image, element, request) if augment else decoding.central_crop(image, request.image_size)
        image.set_shape([request.image_size, request.image_size, 3])
        image = auto_augment.changed(image, element.get("changes"), request)
    passed_on = {name: element[name] for name in ("position", "expected", "record")}
    return {"image": image, "label": label, **passed_on}


def _drawn(record: tf.Tensor, epoch: tf.Tensor, request: ReadRequest) -> Element:
    """Return the random draws for records [n]: seeds of crops, int32 [n, 2]; flips, bool [n]; draws of `auto_augment`."""
    drawn = {
        "seed": draws.seed_pairs(draws.key(request.seed, "data/box"), epoch, record),
        "flip": tf.equal(draws.uniform_below(2, draws.key(request.seed, "data/flip"), epoch, record), 1),
    }
    changes = auto_augment.draw(record, epoch, request)
    return drawn if changes is None else {**drawn, "changes": changes}


def _boxes(parsed: Element) -> tf.Tensor:
    """Return the bounding boxes as fractions of the image: float32 [1, n, 4] of ymin, xmin, ymax, xmax."""
    return tf.clip_by_value(tf.stack([parsed[edge] for edge in tf_example.BOX_EDGES], axis=-1)[None], 0.0, 1.0)


def _flipped(image: tf.Tensor, element: Element, request: ReadRequest) -> tf.Tensor:
    """Mirror the crop if the draw says so, and resize the crop to a square."""
    image = augmentation.flipped(image, element["flip"])
    return augmentation.resize(image[None], request.image_size, request.image_size)[0]


def _blank(position: tf.Tensor, request: ReadRequest) -> Element:
    image = tf.zeros([request.image_size, request.image_size, 3])
    blank = tf.constant(-1, tf.int64)
    return {"image": image, "label": tf.constant(-1, tf.int32), "position": position, "expected": blank, "record": blank}
