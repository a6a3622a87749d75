"""Pictures as records: tf.train.Example with ImageNet's feature names."""

from __future__ import annotations

from typing import NamedTuple

ENCODED = "image/encoded"
LABEL = "image/class/label"
TEXT = "image/class/text"
UNPARSED = "it is no tf.train.Example"


class Example(NamedTuple):
    """Every value of the two features that training reads, pictures' files and labels from 1; a good record has one each."""

    encoded: list[bytes]
    labels: list[int]


def serialised(encoded: bytes, label: int, text: str) -> bytes:
    """A file's bytes as they are, its label from 1 and the class's name; the same bytes for the same picture."""
    import tensorflow.compat.v1 as tf

    features = {
        ENCODED: tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        TEXT: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString(deterministic=True)  # features have no order of their own


def parse(payload: bytes) -> Example | None:
    """The values in a record's payload; None if that is no tf.train.Example."""
    import tensorflow.compat.v1 as tf
    from google.protobuf.message import DecodeError

    try:
        features = tf.train.Example.FromString(payload).features.feature
    except DecodeError:
        return None
    encoded = features[ENCODED].bytes_list.value if ENCODED in features else ()
    labels = features[LABEL].int64_list.value if LABEL in features else ()
    return Example(list(encoded), list(labels))
