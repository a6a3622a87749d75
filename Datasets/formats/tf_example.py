"""Pictures as records: tf.train.Example with ImageNet's feature names."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

ENCODED = "image/encoded"
LABEL = "image/class/label"
TEXT = "image/class/text"
BOX_EDGES = tuple(f"image/object/bbox/{edge}" for edge in ("ymin", "xmin", "ymax", "xmax"))
UNPARSED = "it is no tf.train.Example"


class Example(NamedTuple):
    """Every value of the two features that a good record has one of each, pictures' files and labels from 1; and why the
    boxes round its objects cannot be used."""

    encoded: list[bytes]
    labels: list[int]
    box_fault: str | None


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
    return Example(list(encoded), list(labels), _box_fault(features))


def _box_fault(features: Any) -> str | None:
    """Four lists of floats of one length, or none at all, are boxes."""
    edges = {name: features[name] for name in BOX_EDGES if name in features}
    for name, feature in edges.items():
        if feature.WhichOneof("kind") not in (None, "float_list"):
            return f"its {name} holds no floats, which a box's edges are"
    counts = {name: len(edges[name].float_list.value) if name in edges else 0 for name in BOX_EDGES}
    if len({*counts.values()}) > 1:
        return f"its boxes have {', '.join(f'{count} of {name}' for name, count in counts.items())} instead of one number"
    if any(math.isnan(value) for feature in edges.values() for value in feature.float_list.value):
        return "an edge of its boxes is no number"
    return None
