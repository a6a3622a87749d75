"""Pictures as records: tf.train.Example with ImageNet's feature names."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

ENCODED = "image/encoded"
LABEL = "image/class/label"
TEXT = "image/class/text"


def example(encoded: bytes, label: int, text: str) -> bytes:
    """A file's bytes as they are, its label from 1 and the class's name; the same bytes for the same picture."""
    features = {
        ENCODED: tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        TEXT: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()])),
    }
    made = tf.train.Example(features=tf.train.Features(feature=features))
    return made.SerializeToString(deterministic=True)  # features have no order of their own
