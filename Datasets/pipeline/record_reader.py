"""Reading records into a stream, and saying what is wrong with one that failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import tensorflow.compat.v1 as tf

from base import host_limits
from base.errors import DataError
from base.process import quiet
from Datasets._spec import ReadRequest, Records
from Datasets.formats import image_headers, tf_example
from Datasets.pipeline import batching

_CACHE_SHARE = 4  # the cache takes at most one part in this many of the memory that the process may have

Prepare = Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]


def loader(index: Records, cache: bool) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function from record numbers [n] to their payloads [n], which it keeps if asked, while memory allows."""
    kept: dict[int, bytes] = {}
    room = _cache_bytes() if cache else 0
    one_at_a_time = threading.Lock()

    def one(record: int) -> bytes:
        nonlocal room
        if record in kept:
            return kept[record]
        try:
            payload = index.payload(record)
        except DataError:
            return b""  # cannot be parsed, so it leaves a gap, and `fail` reads it again to say why
        with one_at_a_time:
            if len(payload) <= room:
                kept[record] = payload
                room -= len(payload)
        return payload

    def many(records: np.ndarray) -> np.ndarray:
        return np.array([one(int(record)) for record in records], dtype=object)

    def load(record: tf.Tensor) -> tf.Tensor:
        payload = tf.numpy_function(many, [record], tf.string)
        payload.set_shape(record.shape)
        return payload

    return load


def check(index: Records, record: int, prepare: Prepare) -> None:
    """Raise if one record cannot be used: a set of which none can would otherwise be searched for ever."""
    reason = fault(index, record, prepare)
    if reason:
        raise DataError(f"{index.name(record)} cannot be used: {reason}")


def fault(index: Records, record: int, prepare: Prepare) -> str | None:
    """Why a record cannot be used; a DataError if it cannot be read."""
    damage = index.damage(record)
    if damage:
        return damage
    payload = index.payload(record)
    return _header_fault(payload) or _reason(payload, prepare)


def fail(index: Records, record: int, prepare: Prepare) -> NoReturn:
    """Raise the error of a record that left a gap."""
    check(index, record, prepare)
    raise DataError(f"{index.name(record)} could not be used, but can be now; is its file being written?")


def record_at(position: int, size: int, request: ReadRequest) -> int:
    """The record number at a position, outside any stream."""
    with tf.Graph().as_default(), tf.Session() as session:
        where = tf.constant([position], tf.int64)
        return int(session.run(batching.record_and_epoch(where, size, request.seed, request.shuffle_block)[0])[0])


def _header_fault(payload: bytes) -> str | None:
    """What the header of a record's picture says against it, in better words than TensorFlow's."""
    example = tf_example.parse(payload)
    if example is None:
        return tf_example.UNPARSED
    reason = image_headers.fault(example.encoded[0]) if len(example.encoded) == 1 else None
    return f"its picture {reason}" if reason else None


def _reason(payload: bytes, prepare: Prepare) -> str | None:
    """What TensorFlow says when it prepares the payload alone; None if it can."""
    with tf.Graph().as_default(), tf.Session() as session:
        zero = tf.constant(0, tf.int64)
        counters = dict.fromkeys(("asked", "record", "epoch", "position"), zero)
        made = prepare({"payload": tf.constant(payload), **counters})
        try:
            session.run(made)
        except tf.errors.OpError as error:
            return quiet.telling_line(error)
        except UnicodeDecodeError:  # TensorFlow quotes the record in its message, which is no text
            return tf_example.UNPARSED
    return None


def _cache_bytes() -> int:
    return (host_limits.hard_bytes() or 0) // _CACHE_SHARE
