"""Reads files that a user named, of a bounded size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 22  # bytes of one read


def open_regular_file(path: str | Path) -> BinaryIO:
    """Open a regular file for reading, unbuffered; OSError for anything else, of which a pipe would wait for ever."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Is a pipe or a device, not a file", str(path))
    return open(path, "rb", buffering=0)


def content(path: str | Path, most: int) -> bytes:
    """Return the bytes of a regular file of at most `most` bytes; OSError for anything else."""
    with open_regular_file(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"Has more than the {most} bytes that are read of such a file", str(path))
        return file.readall()


def text(path: str | Path, most: int) -> str:
    """Return a file of UTF-8 text with \\n at the ends of lines; UnicodeDecodeError for other bytes."""
    return content(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def sha256(path: str | Path) -> str:
    """Return the digest of a file, in hexadecimal."""
    import hashlib  # which most commands do without

    digest = hashlib.sha256()
    with open_regular_file(path) as file:
        while part := file.read(_BLOCK):
            digest.update(part)
    return digest.hexdigest()


class Slices:
    """The bytes of an open file, read slice by slice; OSError for bytes that are gone."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> bytes:
        start, end, _ = place.indices(self._size)
        data = os.pread(self._file.fileno(), max(end - start, 0), start)
        if start + len(data) < end:
            raise OSError(errno.EIO, "the file has become shorter since it was opened", self._file.name)
        return data
