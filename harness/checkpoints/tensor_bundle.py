"""The tensors of a TensorFlow checkpoint, read without TensorFlow: their names and shapes in its .index file, whether the
files with them are as long as it says, and themselves.

The file is a table of blocks as LevelDB writes it: pairs of a name and a message, the names in order and without what they
share with the one before. Its last 48 bytes say where the block lies that lists the others.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from base import bounds
from base.fields import brief
from base.storage import checksums, input_files

_MOST_BYTES = 64 << 20
_LONGEST_NAME = 4096  # bytes
_MOST_TENSORS = 100_000
_MOST_NAMES = 16 << 20  # bytes of all names, which share their beginnings: a short file may hold very many
_MOST_ELEMENTS = 1 << 48  # the most that an empty tensor's other dimensions may claim
_FOOTER, _MAGIC = 48, bytes.fromhex("57fb808b247547db")
_TRAILER = 5  # bytes after a block: its compression and its checksum
_TYPE, _SHAPE, _DIMENSION, _SIZE = 1, 2, 2, 1  # fields of the messages
_FILE, _OFFSET, _BYTES_THERE = 3, 4, 5  # where a tensor lies
_CHECKSUM, _SLICES = 6, 7  # of those bytes; of a tensor that lies in pieces
_FILES, _BIG_ENDIAN = 1, 2  # of the message without a name: how many there are, and how they are written
_TEXT = 7  # a type of no numbers
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", 19: "<f2"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of fields


class Damaged(ValueError):
    """A checkpoint that TensorFlow cannot read either, or that holds text. One line, the file named without its folder."""


class _Unknown(Exception):
    """A form that only TensorFlow reads."""


@dataclass(frozen=True)
class _Entry:
    """What the index says of one tensor: its shape, the bytes from `start` to `end` of a file in which it lies, and the
    message with the rest."""

    shape: tuple[int, ...]
    file: Path
    start: int
    end: int
    message: bytes


def shapes(index: Path) -> dict[str, tuple[int, ...]] | None:
    """The shape of every tensor; None for an unknown form, as of a packed file. Damaged if the index, or a file beside it,
    cannot be read."""
    with suppress(_Unknown), _damaged(index):
        return {name: entry.shape for name, entry in _entries(index).items()}
    return None


def tensors(index: Path, checked: bool = True) -> dict[str, np.ndarray] | None:
    """Every tensor; None for an unknown form, as of a tensor in pieces. Damaged as for `shapes`, and if one is not what
    its checksum says, unless they need not be `checked`."""
    with suppress(_Unknown), _damaged(index):
        entries = _entries(index)
        _refuse_overlaps(entries.values())
        return {name: _tensor(name, entry, checked) for name, entry in entries.items()}
    return None


@contextmanager
def _damaged(index: Path) -> Iterator[None]:
    """Whatever goes wrong inside with bytes that anybody may have written is Damaged."""
    try:
        yield
    except (Damaged, _Unknown):
        raise
    except OSError as error:
        raise Damaged(f"{Path(error.filename or index).name}: {error.strerror}") from None
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError):
        raise Damaged(f"{index.name} is cut short or overwritten") from None


def _refuse_overlaps(entries: Iterable[_Entry]) -> None:
    """_Unknown for bytes that are said to be of several tensors: they would be read many times."""
    ends: dict[Path, int] = {}
    for entry in sorted(entries, key=lambda entry: entry.start):
        if entry.start < ends.get(entry.file, 0):
            raise _Unknown
        ends[entry.file] = entry.end


def _tensor(name: str, entry: _Entry, checked: bool) -> np.ndarray:
    kind = _TYPES.get(_number(entry.message, _TYPE))
    size = entry.end - entry.start
    if kind is None or any(number == _SLICES for number, _ in _fields(entry.message)):
        raise _Unknown
    if size != math.prod(entry.shape) * np.dtype(kind).itemsize:
        raise Damaged(f"{brief(name)} has {size} bytes in its index, which are not those of its shape")
    with input_files.opened(entry.file) as file:
        file.seek(entry.start)
        content = file.read(size)
    if len(content) < size:
        raise Damaged(f"{entry.file.name} is cut short")
    stored = _bytes(entry.message, _CHECKSUM)
    if checked and checksums.masked(content) != int.from_bytes(stored, "little"):
        raise Damaged(f"{entry.file.name} has other bytes than were written: those of {brief(name)}")
    return np.frombuffer(content, kind).reshape(entry.shape)


def _entries(index: Path) -> dict[str, _Entry]:
    """The index's entry of every tensor. Damaged as for `shapes`; _Unknown for another form."""
    try:
        messages = _messages(input_files.content(index, _MOST_BYTES))
    except UnicodeDecodeError:  # as of a tensor in pieces
        raise _Unknown from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _Unknown from None
        raise
    head = messages.pop("", b"")
    if _number(head, _BIG_ENDIAN):
        raise _Unknown
    described = {name: _entry(index, name, _number(head, _FILES), message) for name, message in messages.items()}
    ends: dict[Path, int] = {}
    for entry in described.values():
        ends[entry.file] = max(entry.end, ends.get(entry.file, 0))
    _require_files(ends)
    return described


def _entry(index: Path, name: str, files: int, message: bytes) -> _Entry:
    """`files`: how many the tensors lie in."""
    if _number(message, _TYPE) == _TEXT:
        raise Damaged(f"{brief(name)} holds no numbers")
    file, start = _number(message, _FILE), _number(message, _OFFSET)
    path = index.with_suffix(f".data-{file:05d}-of-{files:05d}")
    return _Entry(_shape(name, message), path, start, start + _number(message, _BYTES_THERE), message)


def _require_files(ends: Mapping[Path, int]) -> None:
    """Damaged for a file that is not there, or has fewer bytes than are read of it."""
    for file, end in ends.items():
        try:
            with input_files.opened(file) as opened:
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
        if start < end:  # blocks that overlap would be read many times
            raise _Unknown
        end = start + size
        for name, message in _pairs(_block(content, start, size)):
            named += len(name)
            if named > _MOST_NAMES:
                raise Damaged(f"the names in its index are more than the {_MOST_NAMES:,} bytes that are read")
            messages[name.decode()] = message
            if len(messages) > _MOST_TENSORS:
                raise Damaged(f"its index names more than the {_MOST_TENSORS:,} tensors that are read")
    return messages


def _block(content: bytes, start: int, size: int) -> bytes:
    """A block that is not packed and has the checksum beside it."""
    whole = content[start : start + size + 1]
    stored = content[start + size + 1 : start + size + _TRAILER]
    if len(whole) != size + 1 or checksums.masked(whole) != int.from_bytes(stored, "little"):
        raise ValueError("no whole block")
    if whole[-1]:
        raise _Unknown
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
    """Where a block begins and its bytes, and where the next handle may lie."""
    start, at = _varint(content, at)
    size, at = _varint(content, at)
    return (start, size), at


def _shape(name: str, entry: bytes) -> tuple[int, ...]:
    described = (value for number, value in _fields(_bytes(entry, _SHAPE)) if number == _DIMENSION and type(value) is bytes)
    shape = tuple(_number(each, _SIZE) for each in islice(described, bounds.RANK + 1))
    try:
        bounds.elements(brief(name), shape, _MOST_ELEMENTS)
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
            raise _Unknown
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
