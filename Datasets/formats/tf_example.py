"""Read and write images as records: messages of the type tf.train.Example with ImageNet's feature names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

ENCODED = "image/encoded"
LABEL = "image/class/label"
TEXT = "image/class/text"
BOX_EDGES = tuple(f"image/object/bbox/{edge}" for edge in ("ymin", "xmin", "ymax", "xmax"))
_BYTES_LIST, _INT64_LIST = 1, 3  # field numbers in tf.train.Feature
UNPARSED = "it is not a tf.train.Example"
WRONG_LABEL = "its label is"  # beginning of a reason that `fault` returns
LABEL_REMEDY = (
    "labels.txt must name every label: one name per line, from label 1; or lines 0:NAME, 1:NAME if labels start at 0. "
    "The line 0:background is not a class"
)


class Example(NamedTuple):
    """All values of two features of a record: encoded images, and labels. A good record has one image and one label."""

    encoded: list[bytes]
    labels: list[int]


def fault(payload: bytes, labels: range, image_fault: Callable[[bytes], str | None]) -> str | None:
    """Return the reason why a record cannot be used, or None.

    A record needs one label, which is in `labels`, and one image for which `image_fault` returns None.
    """
    example = parse(payload)
    if example is None:
        return UNPARSED
    for name, values in ((ENCODED, example.encoded), (LABEL, example.labels)):
        if len(values) != 1:
            return f"it has {len(values)} values of {name} instead of 1"
    label = example.labels[0]
    if label not in labels:
        return f"{WRONG_LABEL} {label}, outside {labels.start} to {labels[-1]}"
    reason = image_fault(example.encoded[0])
    return f"its image {reason}" if reason else None


def serialised(encoded: bytes, label: int, text: str) -> bytes:
    """Return a record with an image file's bytes, the label (from 1) and the name of the class.

    The result equals protobuf's deterministic serialisation. This function does not use protobuf, so that checks of the
    data need not import TensorFlow.
    """
    features = {
        LABEL: _field(_INT64_LIST, _field(1, _varint(label))),
        TEXT: _field(_BYTES_LIST, _field(1, text.encode())),
        ENCODED: _field(_BYTES_LIST, _field(1, encoded)),
    }
    entries = (_field(1, name.encode()) + _field(2, feature) for name, feature in sorted(features.items()))
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def _field(number: int, content: bytes) -> bytes:
    """Return a field of a protobuf message that contains bytes, a message, or packed numbers."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Return a number of at least 0 as a protobuf varint: seven bits per byte, lowest first."""
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def parse(payload: bytes) -> Example | None:
    """Return the values in a record's payload; None if the payload is not a valid tf.train.Example.

    Repeated fields are invalid: protobuf merges them, but TensorFlow's parser rejects them. If a payload has repeated
    fields, it is longer than the parsed message.
    """
    import tensorflow.compat.v1 as tf
    from google.protobuf.message import DecodeError

    try:
        message = tf.train.Example.FromString(payload)
    except DecodeError:
        return None
    features = message.features.feature
    encoded = features[ENCODED].bytes_list.value if ENCODED in features else ()
    labels = features[LABEL].int64_list.value if LABEL in features else ()
    return None if message.ByteSize() < len(payload) else Example(list(encoded), list(labels))


def in_graph(payload: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parse a record's payload, string [], in a graph.

    Return the encoded image, string []; the label, int64 [], -1 if missing; and the box edges, float32 [boxes] each.
    """
    import tensorflow.compat.v1 as tf

    features = {
        ENCODED: tf.FixedLenFeature([], tf.string),
        LABEL: tf.FixedLenFeature([], tf.int64, default_value=-1),
        **{edge: tf.FixedLenSequenceFeature([], tf.float32, allow_missing=True) for edge in BOX_EDGES},
    }
    return tf.parse_single_example(payload, features)
