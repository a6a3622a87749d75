"""Load records in a stream, and find the reason why a record failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import NoReturn

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base import host_limits
from cnn_harness.base.errors import DataError
from cnn_harness.base.process import tf_runtime
from cnn_harness.Datasets._spec import ReadRequest, Records
from cnn_harness.Datasets.formats import tf_example
from cnn_harness.Datasets.formats.bad_records import REMEDY
from cnn_harness.Datasets.pipeline import batching, decoding

_CACHE_SHARE = 4  # the cache uses at most a quarter of the memory that the process may use

Prepare = Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]


def loader(index: Records, cache: bool) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function from record numbers, int64 [n], to serialised records, string [n].

    `cache` keeps records in memory while there is room.
    """
    cached: dict[int, bytes] = {}
    free_bytes = _cache_bytes() if cache else 0
    lock = threading.Lock()

    def payload_of(record: int) -> bytes:
        nonlocal free_bytes
        if record in cached:
            return cached[record]
        try:
            payload = index.payload(record)
        except DataError:
            return b""  # parsing fails and leaves a gap; `fail` then reads the record again to find the reason
        with lock:
            if len(payload) <= free_bytes:
                cached[record] = payload
                free_bytes -= len(payload)
        return payload

    def payloads_of(records: np.ndarray) -> np.ndarray:
        return np.array([payload_of(int(record)) for record in records], dtype=object)

    def load(record: tf.Tensor) -> tf.Tensor:
        payload = tf.numpy_function(payloads_of, [record], tf.string)
        payload.set_shape(record.shape)
        return payload

    return load


def check(index: Records, record: int, prepare: Prepare, labels: range) -> None:
    """Raise DataError if a record cannot be used. Without this check, a set without a usable record would loop forever."""
    reason = fault(index, record, prepare, labels)
    if reason:
        remedy = tf_example.LABEL_REMEDY if reason.startswith(tf_example.WRONG_LABEL) else REMEDY
        raise DataError(f"{index.name(record)} cannot be used: {reason}; {remedy}")


def fault(index: Records, record: int, prepare: Prepare, labels: range) -> str | None:
    """Return the reason why a record cannot be used, or None."""
    try:
        payload = index.payload(record)
    except DataError as error:
        return str(error).removeprefix(f"{index.name(record)} ").removeprefix("cannot be used: ")
    return tf_example.fault(tf_example.parse(payload), labels, _decoder().fault) or _reason(payload, prepare)


def fail(index: Records, record: int, prepare: Prepare, labels: range) -> NoReturn:
    """Raise the error of a record that failed in a stream."""
    check(index, record, prepare, labels)
    raise DataError(
        f"{index.name(record)} could not be used before, but now it can; another process may be writing the file"
    )


def record_at(position: int, size: int, request: ReadRequest) -> int:
    """Return the number of the record at a position of the training order."""
    with tf.Graph().as_default(), tf.Session() as session:
        where = tf.constant([position], tf.int64)
        return int(session.run(batching.record_and_epoch(where, size, request.seed, request.shuffle_block)[0])[0])


@cache
def _decoder() -> decoding.Decoder:
    return decoding.Decoder()


def _reason(payload: bytes, prepare: Prepare) -> str | None:
    """Prepare a single payload; return TensorFlow's error message, or None."""
    with tf.Graph().as_default(), tf.Session() as session:
        zero = tf.constant(0, tf.int64)
        element = dict.fromkeys(("expected", "record", "epoch", "position"), zero)
        element |= {"seed": tf.zeros([2], tf.int32), "flip": tf.constant(False)}
        prepared = prepare({"payload": tf.constant(payload), **element})
        try:
            session.run(prepared)
        except tf.errors.OpError as error:
            return tf_runtime.telling_line(error)
        except UnicodeDecodeError:  # TensorFlow's message contains bytes of the record
            return tf_example.UNPARSED
    return None


def _cache_bytes() -> int:
    return (host_limits.hard_bytes() or 0) // _CACHE_SHARE
