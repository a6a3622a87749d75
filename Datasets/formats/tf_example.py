"""Read and write images as records: messages of the type tf.train.Example with ImageNet's feature names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf
    from google.protobuf.message import Message

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
    """All values of three features of a record. A good record has one encoded image and one label.

    The text, if there is one, is the name of the class.
    """

    encoded: list[bytes]
    labels: list[int]
    texts: list[str]


def fault(example: Example | None, labels: range, image_fault: Callable[[bytes], str | None]) -> str | None:
    """Return the reason why a record cannot be used, or None. `example` is None if it could not be parsed.

    A record needs one label, which is in `labels`, and one image for which `image_fault` returns None.
    """
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
    from google.protobuf.message import DecodeError

    try:
        message = _message_class().FromString(payload)
    except DecodeError:
        return None
    features = message.features.feature
    encoded = features[ENCODED].bytes_list.value if ENCODED in features else ()
    labels = features[LABEL].int64_list.value if LABEL in features else ()
    texts = features[TEXT].bytes_list.value if TEXT in features else ()
    if message.ByteSize() < len(payload):
        return None
    return Example(list(encoded), list(labels), [text.decode("utf-8", "replace") for text in texts])


@cache
def _message_class() -> type[Message]:
    """Return the class of the message tf.train.Example. TensorFlow has the same class, but its import takes seconds."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="records", syntax="proto3")

    def add(owner: descriptor_pb2.DescriptorProto, name: str, number: int, kind: int | str, many: bool = False) -> None:
        label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
        field = owner.field.add(name=name, number=number, label=label)
        if isinstance(kind, str):
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".records.{kind}"
        else:
            field.type = kind

    lists = (("BytesList", kinds.TYPE_BYTES), ("FloatList", kinds.TYPE_FLOAT), ("Int64List", kinds.TYPE_INT64))
    for name, kind in lists:
        add(file.message_type.add(name=name), "value", 1, kind, many=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("bytes_list", "float_list", "int64_list"), 1):
        add(feature, name, number, lists[number - 1][0])
        feature.field[-1].oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, kinds.TYPE_STRING)
    add(entry, "value", 2, "Feature")
    add(features, "feature", 1, "Features.FeatureEntry", many=True)
    add(file.message_type.add(name="Example"), "features", 1, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("records.Example"))


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
