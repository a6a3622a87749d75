"""Pictures as records: tf.train.Example with ImageNet's feature names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

ENCODED = "image/encoded"
LABEL = "image/class/label"
TEXT = "image/class/text"
BOX_EDGES = tuple(f"image/object/bbox/{edge}" for edge in ("ymin", "xmin", "ymax", "xmax"))
_BYTES_LIST, _INT64_LIST = 1, 3  # fields of tf.train.Feature
UNPARSED = "it is no tf.train.Example"
WRONG_LABEL = "its label is"  # begins the reason of `fault`
LABEL_REMEDY = (
    "labels.txt must name every label: line by line from 1, or with their numbers, as 0:NAME, 1:NAME where labels begin "
    "with 0 (0:background is no class)"
)


class Example(NamedTuple):
    """Every value of the two features that a good record has one of each: pictures' files, and labels from 1."""

    encoded: list[bytes]
    labels: list[int]


def fault(payload: bytes, labels: range, image_fault: Callable[[bytes], str | None]) -> str | None:
    """Return why a record cannot be used: it needs one file, by `image_fault`, and one of the data set's labels."""
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
    return f"its picture {reason}" if reason else None


def serialised(encoded: bytes, label: int, text: str) -> bytes:
    """A file's bytes as they are, its label from 1 and the class's name; the same bytes for the same picture, those of
    protobuf's deterministic serialisation. Written out here, as a look at the data must not wait for TensorFlow."""
    features = {
        LABEL: _field(_INT64_LIST, _field(1, _varint(label))),
        TEXT: _field(_BYTES_LIST, _field(1, text.encode())),
        ENCODED: _field(_BYTES_LIST, _field(1, encoded)),
    }
    entries = (_field(1, name.encode()) + _field(2, feature) for name, feature in sorted(features.items()))
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def _field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message that holds bytes, a message, or packed numbers."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """A number from 0 on in protobuf's seven bits a byte, the lowest ones first."""
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def parse(payload: bytes) -> Example | None:
    """Return the values in a record's payload; None if that is no tf.train.Example. Fields that come again, which protobuf
    merges and the parser of a graph refuses, make a payload longer than its message."""
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
    """The features of a record's payload, string [], in a graph: the file, string []; the label, int64 [], -1 without one;
    the edges of the boxes, float32 [boxes] each."""
    import tensorflow.compat.v1 as tf

    features = {
        ENCODED: tf.FixedLenFeature([], tf.string),
        LABEL: tf.FixedLenFeature([], tf.int64, default_value=-1),
        **{edge: tf.FixedLenSequenceFeature([], tf.float32, allow_missing=True) for edge in BOX_EDGES},
    }
    return tf.parse_single_example(payload, features)
