"""Opens files that a user named: never waits for a pipe or a device, never reads more than a bound. A leaf."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np

_BLOCK = 1 << 20  # bytes of one read
SHORTER = "the file has become shorter since it was opened"
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def unfit_reason(mode: int) -> str | None:
    """Why a path of this mode is not read as a file; None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        return os.strerror(errno.EISDIR)
    return f"Is {next((name for test, name in _KINDS if test(mode)), 'of a kind of its own')}, not a file"


def open_regular_file(path: str | Path) -> BinaryIO:
    """A regular file for reading; OSError, whose `strerror` names its kind, for anything else."""
    _check_regular(os.stat(path), path)  # to open some devices is to do something
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(descriptor), path)  # it may be another by now
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def content(path: str | Path, most: int) -> bytes:
    """The bytes of a regular file of at most `most` bytes; OSError for anything else."""
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        blocks, room = [], most + 1 if size <= most else 0
        while room and (block := file.read(min(room, max(size, _BLOCK)))):  # mostly in one piece, which is not copied
            blocks.append(block)
            room -= len(block)
    if not room:
        raise OSError(errno.EFBIG, f"Has more than the {most} bytes that are read of such a file", str(path))
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def sha256(file: BinaryIO) -> str:
    """The digest of what is left to read of a file, some of it at a time."""
    import hashlib  # which most commands do without

    digest = hashlib.sha256()
    while part := file.read(4 * _BLOCK):
        digest.update(part)
    return digest.hexdigest()


class Slices:
    """The bytes of an opened file, by slices that are read when they are asked for; OSError for bytes that are gone.
    `before_read` is called each time, and by an error ends what reads the file.

    A mapped file that somebody cuts short would end the process by a signal.
    """

    def __init__(self, file: BinaryIO, before_read: Callable[[], None] = lambda: None) -> None:
        self._file, self._before_read = file, before_read
        self._size = os.fstat(file.fileno()).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> bytes:
        self._before_read()
        start, end, _ = place.indices(self._size)
        data = os.pread(self._file.fileno(), max(end - start, 0), start)
        if start + len(data) < end:
            raise OSError(errno.EIO, SHORTER, self._file.name)
        return data


def fill(file: BinaryIO, buffer: np.ndarray) -> int:
    """Read bytes until an array of uint8 is full or the file ends; return the number of bytes. A read(2) gives at most 2
    GiB."""
    view, count = memoryview(buffer), 0
    while read := file.readinto(view[count:]):
        count += read
    return count


def text(path: str | Path, most: int) -> str:
    """Return `content` of a file of UTF-8 text, with \\n alone at the ends of lines; UnicodeDecodeError for other bytes."""
    return content(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _check_regular(state: os.stat_result, path: str | Path) -> None:
    reason = unfit_reason(state.st_mode)
    if reason:
        raise OSError(errno.EISDIR if stat.S_ISDIR(state.st_mode) else errno.EINVAL, reason, str(path))
