"""Read files named by users, with limits on their size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 22  # bytes of one read


def open_regular_file(path: str | Path) -> BinaryIO:
    """Open a regular file for reading, unbuffered. Raise OSError for anything else, because a pipe could block forever."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Is a pipe or a device, not a regular file", str(path))
    return open(path, "rb", buffering=0)


def content(path: str | Path, most: int) -> bytes:
    """Return the bytes of a regular file; raise OSError for anything else or for more than `most` bytes."""
    with open_regular_file(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"Is larger than the limit of {most} bytes", str(path))
        return file.readall()


def text(path: str | Path, most: int) -> str:
    """Return a file's UTF-8 text with \\n as line ends; raise UnicodeDecodeError for other bytes."""
    return content(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def sha256(path: str | Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal."""
    import hashlib  # most commands do not need it

    digest = hashlib.sha256()
    with open_regular_file(path) as file:
        while part := file.read(_BLOCK):
            digest.update(part)
    return digest.hexdigest()


class Slices:
    """The bytes of an open file. A slice reads from the file, and raises OSError if the file has become shorter."""

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
