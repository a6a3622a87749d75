"""Names and shapes in the .index file of a TensorFlow checkpoint, read without TensorFlow. A leaf.

The file is a table of blocks as LevelDB writes it: pairs of a name and a message, the names in order and without what they
share with the one before. Its last 48 bytes say where the block lies that lists the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from Datasets import _checksums
from harness import input_files

_MOST_BYTES = 64 << 20
_FOOTER, _MAGIC = 48, bytes.fromhex("57fb808b247547db")
_TRAILER = 5  # bytes after a block: how it is packed, and its checksum
_SHAPE, _DIMENSION, _SIZE = 2, 2, 1  # fields of the messages
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of fields


def shapes(index: Path) -> dict[str, tuple[int, ...]] | None:
    """The shape of every tensor; None if that cannot be told, as of a damaged or packed file."""
    try:
        content = input_files.content(index, _MOST_BYTES)
        if content[-len(_MAGIC) :] != _MAGIC:
            return None
        _, at = _handle(content, len(content) - _FOOTER)  # of a block that says nothing here
        listed, _ = _handle(content, at)
        found, end = {}, 0
        for _, place in _pairs(_block(content, *listed)):
            (start, size), _ = _handle(place, 0)
            if start < end:  # blocks that overlap would be read many times
                return None
            end = start + size
            found |= {name.decode(): _shape(entry) for name, entry in _pairs(_block(content, start, size)) if name}
        return found
    except (OSError, ValueError, IndexError):
        return None


def _block(content: bytes, start: int, size: int) -> bytes:
    """A block that is not packed and has the checksum beside it."""
    whole = content[start : start + size + 1]
    stored = content[start + size + 1 : start + size + _TRAILER]
    if len(whole) != size + 1 or whole[-1] or _checksums.masked(whole) != int.from_bytes(stored, "little"):
        raise ValueError("no plain block")
    return whole[:-1]


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values; places to begin from follow them, and their number is the last word."""
    end = len(block) - 4 * (1 + int.from_bytes(block[-4:], "little"))
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        size, at = _varint(block, at)
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + size]
        at += own + size


def _handle(content: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Where a block begins and its bytes, and where the next handle may lie."""
    start, at = _varint(content, at)
    size, at = _varint(content, at)
    return (start, size), at


def _shape(entry: bytes) -> tuple[int, ...]:
    described = [value for number, value in _fields(entry) if number == _SHAPE and isinstance(value, bytes)]
    dimensions = [value for number, value in _fields(described[0] if described else b"") if number == _DIMENSION]
    return tuple(next((size for number, size in _fields(each) if number == _SIZE), 0) for each in dimensions)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protocol buffer's message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32, _BYTES):
            size, at = _varint(message, at) if kind == _BYTES else ({_FIXED64: 8, _FIXED32: 4}[kind], at)
            value, at = message[at : at + size], at + size
        else:
            raise ValueError("no such kind of field")
        yield tag >> 3, value


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number in groups of 7 bits, the lowest first, and where it ends."""
    value = 0
    for k in range(10):
        byte = content[at + k]
        value |= (byte & 127) << 7 * k
        if byte < 128:
            return value, at + k + 1
    raise ValueError("no such number")
