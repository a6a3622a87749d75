"""Unusual encodings of a tf.train.Example: protobuf accepts them, but the parser in a graph rejects them."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf

from cnn_harness.Datasets.formats import tf_example
from cnn_harness.Datasets.formats.tf_example import ENCODED, LABEL

BYTES_LIST, INT64_LIST = 1, 3


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def entry(name: str, *features: bytes) -> bytes:
    return field(1, field(1, name.encode()) + b"".join(field(2, each) for each in features))


def example(*entries: bytes) -> bytes:
    return field(1, b"".join(entries))


def label(value: int) -> bytes:
    return field(INT64_LIST, field(1, bytes([value])))


IMAGE = field(BYTES_LIST, field(1, b"image"))
FORMS = {
    "a plain one": example(entry(LABEL, label(1)), entry(ENCODED, IMAGE)),
    "numbers one by one": example(entry(LABEL, field(INT64_LIST, b"\x08\x01")), entry(ENCODED, IMAGE)),
    "a feature of two kinds": example(entry(LABEL, IMAGE + label(2)), entry(ENCODED, IMAGE)),
    "an entry with two features": example(entry(ENCODED, IMAGE, field(7, b"")), entry(LABEL, label(1))),
    "a key that comes twice": example(field(1, field(1, b"a") + field(1, LABEL.encode()) + field(2, label(1))),
                                      entry(ENCODED, IMAGE)),
    "a feature that comes twice": example(entry(LABEL, label(1)), entry(LABEL, label(2)), entry(ENCODED, IMAGE)),
    "an unknown field": example(entry(LABEL, label(1) + field(7, b"")), entry(ENCODED, IMAGE)) + field(9, b"more"),
    "two parts": example(entry(LABEL, label(1))) + example(entry(ENCODED, IMAGE)),
}  # fmt: skip


USED = ("a plain one", "an unknown field", "numbers one by one")


@pytest.mark.parametrize("form", FORMS)
def test_record_rejected_by_training_is_rejected_before(form):
    with tf.Graph().as_default(), tf.Session() as session:
        try:
            parsed = session.run(tf_example.in_graph(tf.constant(FORMS[form])))
        except tf.errors.InvalidArgumentError:
            parsed = None
    found = tf_example.parse(FORMS[form])
    assert found is None or parsed is not None
    assert found or form not in USED
    if found:
        assert (found.encoded, found.labels) == ([parsed[ENCODED]], [parsed[LABEL]])
