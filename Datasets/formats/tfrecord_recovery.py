"""Walks through a TFRecord file that may be damaged: every readable record, and every damage between.

A record is its length (8 bytes, little-endian), the length's checksum (4), the payload and the payload's checksum (4).
After damage the walk goes on at the next place where a length and its checksum agree. No
content raises, and TensorFlow is not imported. Records longer than `MAX_BYTES` count as damage. Lengths that contradict one
another end the walk, as a hostile file would have its bytes read once for each of them, and so does a stretch of
`MAX_SEARCHED` bytes without a record.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from base.errors import DataError
from base.storage import checksums, input_files
from base.storage.input_files import Slices
from Datasets.formats.image_headers import MAX_BYTES

HEADER_BYTES = 12
FOOTER_BYTES = 4
WRONG_LENGTH = "its length is damaged (the length's checksum does not match)"
WRONG_PAYLOAD = "its content is damaged (its checksum does not match)"
CUT = "it is cut short, the file ends at byte {size}"
TOO_LONG = "it is {length} bytes long, more than the {most} that a record may have"
GIVEN_UP = "lengths contradict one another up to here, and the rest of the file is not searched"
NOTHING_FOUND = "no record begins in the {most:,} bytes up to here, and the rest of the file is not searched"
MAX_SEARCHED = 1 << 30  # bytes searched for the next record: a few seconds
_SEARCHED = 1 << 20  # bytes searched for a header in one call
_READ_TWICE = 8  # times the file's size: of bytes that turned out not to be a payload


class Record(NamedTuple):
    """A whole record: offset and length of its payload, in bytes of the file."""

    offset: int
    length: int


class Damage(NamedTuple):
    """An unusable record: the offset of its first byte in the file, and the reason."""

    offset: int
    reason: str


Stretch = Record | Damage

_COMPRESSIONS = (  # of a whole file: its first bytes, its name, and the command that undoes it
    (re.compile(rb"\x1f\x8b"), "gzip", "gunzip < FILE > NEW"),
    (re.compile(rb"\x78[\x01\x5e\x9c\xda]"), "zlib",
     "python3 -c 'import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))' < FILE > NEW"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "Zstandard", "zstd -d < FILE > NEW"),
    (re.compile(rb"BZh"), "bzip2", "bunzip2 < FILE > NEW"),
    (re.compile(rb"\xfd7zXZ"), "xz", "unxz < FILE > NEW"),
)  # fmt: skip


def check_compression(file: Path, first_bytes: bytes) -> None:
    """DataError for a compressed file, by its first HEADER_BYTES: a record is found by its place in the file."""
    length, stored = first_bytes[:8], first_bytes[8:HEADER_BYTES]
    if len(stored) == 4 and checksums.masked_header(length) == int.from_bytes(stored, "little"):
        return
    for beginning, name, command in _COMPRESSIONS:
        if beginning.match(first_bytes):
            raise DataError(
                f"{file} is compressed with {name}, and TFRecords are read uncompressed; decompress each: {command}"
            )


def walk(file: Path, payloads: bool = False, before_read: Callable[[], None] = lambda: None) -> list[Stretch]:
    """Records and damage in the order of the file; [] for an empty one. `before_read` may end the walk by an error.

    Without `payloads` only lengths are checked, and the payload before a place where no record begins: bytes lost from a
    payload lead into a later record, so the search starts inside it. With it every payload's checksum is.
    """
    try:
        with input_files.open_regular_file(file) as stream:
            content = Slices(stream, before_read)
            check_compression(file, content[:HEADER_BYTES])
            return _stretches(content, len(content), payloads)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None


def records(stretches: list[Stretch]) -> list[Record]:
    """The whole records of a walk."""
    return [stretch for stretch in stretches if isinstance(stretch, Record)]


def _stretches(content: Slices, size: int, payloads: bool) -> list[Stretch]:
    stretches: list[Stretch] = []
    at, wasted = 0, 0
    while at < size:
        if wasted > _READ_TWICE * size:
            stretches.append(Damage(at, GIVEN_UP))
            break
        length = _length_at(content, at)
        end = at + HEADER_BYTES + (length or 0) + FOOTER_BYTES
        if length is not None and end <= size:
            record = Record(at + HEADER_BYTES, length)
            if length > MAX_BYTES:
                stretches.append(Damage(at, TOO_LONG.format(length=length, most=MAX_BYTES)))
                at = end
                continue
            if not payloads or _whole(content, record):
                stretches.append(record)
                at = end
                continue
            stretches.append(Damage(at, WRONG_PAYLOAD))
            wasted += length
        elif length is not None or size - at < HEADER_BYTES:
            stretches.append(Damage(at, CUT.format(size=size)))
        elif not payloads and stretches and isinstance(stretches[-1], Record) and not _whole(content, stretches[-1]):
            wasted += stretches[-1].length
            at = stretches.pop().offset - HEADER_BYTES  # the record ends elsewhere than its length says
            stretches.append(Damage(at, WRONG_PAYLOAD))
        else:
            stretches.append(Damage(at, WRONG_LENGTH))
        start = at + 1
        at = _next_header(content, start, min(start + MAX_SEARCHED, size), size)
        if at < size and at == start + MAX_SEARCHED:
            stretches.append(Damage(at, NOTHING_FOUND.format(most=MAX_SEARCHED)))
            break
    return stretches


def _length_at(content: Slices, at: int) -> int | None:
    """The length of the record that begins there; None if none does."""
    header = content[at : at + HEADER_BYTES]
    if len(header) < HEADER_BYTES or checksums.masked_header(header[:8]) != int.from_bytes(header[8:], "little"):
        return None
    return int.from_bytes(header[:8], "little")


def _whole(content: Slices, record: Record) -> bool:
    """Return whether the payload's checksum matches."""
    end = record.offset + record.length
    stored = int.from_bytes(content[end : end + FOOTER_BYTES], "little")
    return checksums.masked(content[record.offset : end]) == stored


def _next_header(content: Slices, start: int, end: int, size: int) -> int:
    """The first place in [start, end) with a length up to the file's size, and its checksum; `end` if there is none."""
    for first in range(start, end, _SEARCHED):
        block = np.frombuffer(content[first : min(first + _SEARCHED, end) + HEADER_BYTES - 1], np.uint8)
        if len(block) < HEADER_BYTES:
            break
        rows = np.lib.stride_tricks.sliding_window_view(block, HEADER_BYTES)
        columns = rows.T
        high = columns[5] | columns[6] | columns[7]
        low = np.bitwise_or.reduce(columns[[0, 1, 2, 3, 4, 8, 9, 10, 11]])
        small = np.flatnonzero((high == 0) & (low != 0))  # below a terabyte, and no stretch of zeros
        rows = np.ascontiguousarray(rows[small])
        possible = np.flatnonzero(rows[:, :8].copy().view("<u8")[:, 0] <= size)
        small, rows = small[possible], rows[possible]
        agree = np.flatnonzero(checksums.masked_rows(rows[:, :8]) == rows[:, 8:].copy().view("<u4")[:, 0])
        if agree.size:
            return first + int(small[agree[0]])
    return end
