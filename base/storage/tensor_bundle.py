"""The tensors of a TensorFlow checkpoint, read without TensorFlow, whose own reader ends the process where a file has been
tampered with.

Whole tensors of numbers are read, from little-endian files with an index that is not packed: the form that tf.train.Saver
and SaveV2 of TensorFlow 2.21 write, which pack no index, small or large (variables of a partitioner alone are in pieces).
Every other form is refused by its name.

The .index file is a table of blocks as LevelDB writes it: pairs of a name and a message, the names in order and without the
beginnings that they share with the one before. The last 48 bytes say where the block lies that lists the others.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from base import bounds
from base.fields import brief
from base.storage import checksums, input_files

_MAX_BYTES = 64 << 20  # of an index
_LARGEST_TENSOR = 1 << 30  # bytes; the largest here, a classifier of 2,560 rows, has that with 100,000 classes
_LARGEST_CHECKPOINT = 4 << 30  # bytes; EfficientNet-B7 with the two slots of LAMB has 0.8 GB
_LONGEST_NAME = 4096  # bytes
_MAX_TENSORS = 100_000
_MAX_NAMES = 16 << 20  # bytes of all names, which share their beginnings: a short file may hold very many
_MAX_ELEMENTS = 1 << 48  # the most that an empty tensor's other dimensions may claim
_FOOTER, _MAGIC = 48, bytes.fromhex("57fb808b247547db")
_TRAILER = 5  # bytes after a block: its compression and its checksum
_TYPE, _SHAPE, _DIMENSION, _SIZE = 1, 2, 2, 1  # fields of the messages
_FILE, _OFFSET, _BYTES_THERE = 3, 4, 5  # where a tensor lies
_CHECKSUM, _SLICES = 6, 7  # of those bytes; of a tensor that lies in pieces
_FILES, _BIG_ENDIAN, _VERSION, _MIN_READER = 1, 2, 3, 2  # of the message without a name: number and form of the files
_READER = 1  # the version of TensorFlow's reader whose forms are known here
_TEXT = 7
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", 19: "<f2"}
_ML_DTYPES = {14: "bfloat16", 24: "float8_e5m2", 25: "float8_e4m3fn", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz",
              28: "float8_e5m2fnuz"}  # fmt: skip
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of fields
_PIECE = b"\0"  # begins the name of each piece of a tensor
_IN_PIECES = "it holds a tensor in pieces, and only whole ones are read"


class Damaged(ValueError):
    """A checkpoint that is damaged, or of a form that is not read. The text is one line that names the file without its
    folder."""


@dataclass(frozen=True)
class _Entry:
    """The index's description of one tensor, whose bytes from `start` to `end` of a file have a masked checksum."""

    dtype: np.dtype
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int
    checksum: int


def shapes(index: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor. Damaged if the index, or a file beside it, cannot be read."""
    with _damaged(index):
        return {name: entry.shape for name, entry in _entries(index).items()}


def tensors(index: Path, checked: bool = True, only: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Every tensor, or those of the names in `only` that are there. Damaged as for `shapes`, and for bytes of another
    checksum, unless they need not be `checked`."""
    with _damaged(index):
        entries = _entries(index).items()
        return {name: _tensor(name, entry, checked) for name, entry in entries if only is None or name in only}


@contextmanager
def _damaged(index: Path) -> Iterator[None]:
    """Whatever goes wrong inside with bytes that anybody may have written is Damaged."""
    try:
        yield
    except Damaged:
        raise
    except OSError as error:
        raise Damaged(f"{Path(error.filename or index).name}: {error.strerror}") from None
    except MemoryError:
        raise Damaged(f"the memory does not hold the tensors of {index.name}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError):
        raise Damaged(f"{index.name} is cut short or overwritten") from None


def _tensor(name: str, entry: _Entry, checked: bool) -> np.ndarray:
    """An array that may be written to."""
    content = np.empty(entry.end - entry.start, np.uint8)
    with input_files.open_regular_file(entry.file) as file:
        file.seek(entry.start)
        if input_files.fill(file, content) < len(content):
            raise Damaged(f"{entry.file.name} is cut short")
    if checked and checksums.masked(content) != entry.checksum:
        raise Damaged(f"{entry.file.name} has other bytes than were written: those of {brief(name)}")
    return content.view(entry.dtype).reshape(entry.shape)


def _entries(index: Path) -> dict[str, _Entry]:
    """The index's entry of every tensor. Damaged as for `shapes`."""
    messages = _messages(input_files.content(index, _MAX_BYTES))
    head = messages.pop("", b"")
    if _number(head, _BIG_ENDIAN):
        raise Damaged("its tensors are big-endian, and only little-endian ones are read")
    reader = _number(_bytes(head, _VERSION), _MIN_READER)
    if reader > _READER:
        raise Damaged(f"it is for readers of version {reader} on, and only version {_READER} is read")
    entries = {name: _entry(index, name, _number(head, _FILES), message) for name, message in messages.items()}
    try:
        bounds.total([entry.end - entry.start for entry in entries.values()], _LARGEST_CHECKPOINT, "its tensors take")
    except ValueError as error:
        raise Damaged(str(error)) from None
    _check_files(entries)
    return entries


def _entry(index: Path, name: str, files: int, message: bytes) -> _Entry:
    """`files`: the number of files that the tensors lie in."""
    shape, dtype = _shape(name, message), _dtype(name, _number(message, _TYPE))
    if any(number == _SLICES for number, _ in _fields(message)):
        raise Damaged(_IN_PIECES)
    file, start, size = (_number(message, field) for field in (_FILE, _OFFSET, _BYTES_THERE))
    if size > _LARGEST_TENSOR:
        raise Damaged(f"{brief(name)} has {size:,} bytes, and at most {_LARGEST_TENSOR:,} of a tensor are read")
    if size != math.prod(shape) * dtype.itemsize:
        raise Damaged(f"{brief(name)} has {size} bytes in its index, which are not those of its shape")
    path = index.with_suffix(f".data-{file:05d}-of-{files:05d}")
    return _Entry(dtype, shape, path, start, start + size, int.from_bytes(_bytes(message, _CHECKSUM), "little"))


def _dtype(name: str, kind: int) -> np.dtype:
    if kind == _TEXT:
        raise Damaged(f"{brief(name)} holds no numbers")
    if kind in _ML_DTYPES:
        import ml_dtypes  # which TensorFlow requires

        return np.dtype(getattr(ml_dtypes, _ML_DTYPES[kind]))
    if kind not in _TYPES:
        known = ", ".join([*(np.dtype(each).name for each in _TYPES.values()), *_ML_DTYPES.values()])
        raise Damaged(f"{brief(name)} is of TensorFlow's data type {kind}, and only {known} are read")
    return np.dtype(_TYPES[kind])


def _check_files(entries: Mapping[str, _Entry]) -> None:
    """Damaged for bytes that are said to be of several tensors, which would be read many times, and for a file that is not
    there or has fewer bytes than are read of it."""
    ends: dict[Path, int] = {}
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start < ends.get(entry.file, 0):
            raise Damaged(f"{brief(name)} overlaps with another tensor in {entry.file.name}")
        ends[entry.file] = entry.end
    for file, end in ends.items():
        try:
            with input_files.open_regular_file(file) as opened:
                size = os.fstat(opened.fileno()).st_size
        except OSError as error:
            raise Damaged(f"{file.name}: {error.strerror}") from None
        if size < end:
            raise Damaged(f"{file.name} is cut short: it has {size} bytes and needs {end}")


def _messages(content: bytes) -> dict[str, bytes]:
    """Every message of the table by its name."""
    if content[-len(_MAGIC) :] != _MAGIC:
        raise ValueError("no such table")
    _, at = _handle(content, len(content) - _FOOTER)  # of a block that says nothing here
    listed, _ = _handle(content, at)
    messages, end, named = {}, 0, 0
    for _, place in _pairs(_block(content, *listed)):
        (start, size), _ = _handle(place, 0)
        if start < end:  # they would be read many times
            raise Damaged("blocks of its index overlap")
        end = start + size
        for name, message in _pairs(_block(content, start, size)):
            if name.startswith(_PIECE):
                raise Damaged(_IN_PIECES)
            named += len(name)
            if named > _MAX_NAMES:
                raise Damaged(f"the names in its index are more than the {_MAX_NAMES:,} bytes that are read")
            messages[name.decode()] = message
            if len(messages) > _MAX_TENSORS:
                raise Damaged(f"its index names more than the {_MAX_TENSORS:,} tensors that are read")
    return messages


def _block(content: bytes, start: int, size: int) -> bytes:
    """A block with the checksum beside it."""
    whole = content[start : start + size + 1]
    stored = content[start + size + 1 : start + size + _TRAILER]
    if len(whole) != size + 1 or checksums.masked(whole) != int.from_bytes(stored, "little"):
        raise ValueError("no whole block")
    if whole[-1]:
        raise Damaged(f"its index is packed (kind {whole[-1]}), and only an index that is not is read")
    return whole[:-1]


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values; places to begin from follow them, and their number is the last word."""
    end = len(block) - 4 * (1 + int.from_bytes(block[-4:], "little"))
    at, key = 0, b""
    if end < 0:
        raise ValueError("no whole block")
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        size, at = _varint(block, at)
        if shared + own > _LONGEST_NAME:
            raise Damaged(f"a name in its index has {shared + own:,} bytes, and at most {_LONGEST_NAME:,} are read")
        if shared > len(key) or at + own + size > end:
            raise ValueError("no whole pair")
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + size]
        at += own + size


def _handle(content: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return where a block begins and its bytes, and where the next handle may lie."""
    start, at = _varint(content, at)
    size, at = _varint(content, at)
    return (start, size), at


def _shape(name: str, entry: bytes) -> tuple[int, ...]:
    described = (value for number, value in _fields(_bytes(entry, _SHAPE)) if number == _DIMENSION and type(value) is bytes)
    shape = tuple(_number(each, _SIZE) for each in islice(described, bounds.RANK + 1))
    try:
        bounds.elements(brief(name), shape, _MAX_ELEMENTS)
    except ValueError as error:
        raise Damaged(str(error)) from None
    return shape


def _bytes(message: bytes, field: int) -> bytes:
    """Empty stands for none."""
    return next((value for number, value in _fields(message) if number == field and isinstance(value, bytes)), b"")


def _number(message: bytes, field: int) -> int:
    """0 stands for none."""
    return next((value for number, value in _fields(message) if number == field and isinstance(value, int)), 0)


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
            if at > len(message):
                raise ValueError("no whole field")
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
