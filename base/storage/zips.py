"""Members of a zip file that others may have made, unpacked within bounds.

Whatever is wrong or beyond a bound is a ValueError with the reason in one line. The bounds hold while unpacking: a table of
contents with a wrong size of a member is an error.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from base import bounds
from base.fields import short

LISTED = 1 << 20  # bytes of the table of contents, which are some ten thousand members
_PART = 1 << 20  # bytes unpacked at once
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_FAULTS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, LookupError, OverflowError,
    OSError,
)  # fmt: skip


class _Parts:
    """A file that reads no more than LISTED bytes at once: zipfile reads the table of contents in one piece."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if size > LISTED:
            raise ValueError(f"its table of contents has {size:,} bytes, and at most {LISTED:,} are read")
        return self._file.read(size if size >= 0 else LISTED)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def opened(file: BinaryIO, most: int) -> Iterator[zipfile.ZipFile]:
    """The zip in a file, whose members are plain, stored or deflated, and unpack to at most `most` bytes in all."""
    with faults(), zipfile.ZipFile(_Parts(file)) as archive:
        bounds.total([info.file_size for info in archive.infolist()], most, "it unpacks to")
        seen: set[str] = set()
        for info in archive.infolist():
            name = short(info.filename)
            if info.filename in seen:
                raise ValueError(f"it holds {name} twice")
            if info.flag_bits & 1:
                raise ValueError(f"its member {name} is encrypted")
            if info.compress_type not in _METHODS:
                raise ValueError(f"its member {name} is neither stored nor deflated (method {info.compress_type})")
            seen.add(info.filename)
        yield archive


def unpacked(member: BinaryIO, size: int) -> bytearray:
    """The rest of an open member, which must have exactly `size` bytes and the checksum that the zip says."""
    data = bytearray()
    while block := member.read(min(_PART, size + 1 - len(data))):
        data += block
    if len(data) != size:
        raise ValueError(f"it unpacks to {'more' if len(data) > size else 'fewer'} bytes than the {size:,} that it claims")
    return data


@contextmanager
def faults() -> Iterator[None]:
    """ValueError for the errors of zipfile and its libraries on damaged files."""
    try:
        yield
    except FileNotFoundError:
        raise
    except _FAULTS as error:
        raise ValueError(bounds.reason(error)) from None
