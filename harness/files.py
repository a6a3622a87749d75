"""Files in folders that other people may write too: no link is followed, nothing but a regular file is opened, no file is
larger than what it can be. A leaf: nothing of the project is imported."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_TEXT = 64 << 20  # bytes of a JSON or CSV file that a run writes; the largest are a few megabytes


class NotRegular(OSError):
    """A link, a pipe, a device or a folder where a regular file belongs."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def append(path: Path) -> BinaryIO:
    """Opens a file for appending, made if it is not there; NotRegular for anything but a file of this folder alone.

    A file with several names (a backup made of hard links) is replaced by a copy first, so that the others stay as they are.
    """
    if os.path.lexists(path) and os.stat(path, follow_symlinks=False).st_nlink > 1:
        write_atomically(path, read(path, MOST_TEXT))
    return os.fdopen(_open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def read(path: Path, most: int = MOST_TEXT, follow: bool = True) -> bytes:
    """The content of a regular file of at most `most` bytes; pipes and devices are not waited for, links followed if that
    is wanted. OSError, also for a larger one."""
    with opened(path, follow) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""
        if size > most or len(content) > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than the {most:,} that such a file can have", str(path))
        return content


def opened(path: Path, follow: bool = True) -> BinaryIO:
    """A regular file for reading. NotRegular for another one."""
    return os.fdopen(_open(path, os.O_RDONLY, follow), "rb")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes beside the file, then renames, so that a reader sees the old or the new content whole. A link of that name is
    replaced, not followed. OSError names `path`."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.unlink(missing_ok=True)  # of a process that was killed, or somebody else's
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def own_folder(path: Path) -> Path:
    """A folder of that name, made if it is not there; NotRegular for a link to one."""
    if path.is_symlink():
        raise NotRegular(errno.ELOOP, "it is a link, and a run writes into its own folder only: remove it", str(path))
    path.mkdir(exist_ok=True)
    return path


def _open(path: Path, flags: int, follow: bool = False) -> int:
    # a pipe would be waited for without O_NONBLOCK, which changes nothing for regular files
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _refused(path, os.stat(path, follow_symlinks=error.errno != errno.ELOOP).st_mode) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _refused(path, mode)
    return descriptor


def _refused(path: Path, mode: int) -> NotRegular:
    kinds = {stat.S_ISLNK: "a link, which is not followed", stat.S_ISFIFO: "a pipe", stat.S_ISDIR: "a folder"}
    what = next((name for test, name in kinds.items() if test(mode)), "a device or a socket")
    return NotRegular(errno.EINVAL, f"it is {what}, and must be a regular file: remove it", str(path))
