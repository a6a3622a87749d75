"""Write files atomically, and append to logs without following links."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_BESIDE = re.compile(r"\.(.+)\.[0-9]+")  # a temporary file: .NAME.PROCESS-ID


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Inside, add `path` to an OSError that has no file name, for example after a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def append(path: Path) -> BinaryIO:
    """Open a file for appending, and create it if needed; raise OSError for a symbolic link."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "ab")


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Write a temporary file, then rename it, so that readers see the old or the new content, never a part of it.

    If this fails, the OSError names `path`.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.unlink(missing_ok=True)
        with beside.open("xb") as file:
            file.write(encoded(content) if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def encoded(text: str) -> bytes:
    """Return text in UTF-8. Bytes of file names that are not UTF-8 become escapes, which JSON reads back."""
    return text.encode("utf-8", "backslashreplace")


def unfinished(folder: Path) -> Iterator[Path]:
    """Yield the temporary files of `write_atomically` that killed processes left in this folder."""
    for path in folder.glob(".*"):
        named = _BESIDE.fullmatch(path.name)
        if named and (folder / named[1]).is_file() and not path.is_dir():
            yield path


def nearest_folder(path: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(place for place in (path, *path.absolute().parents) if place.is_dir())


def refused(place: Path) -> int:
    """Return the error number for a folder that is not writable: EROFS on a read-only file system, else EACCES."""
    return errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
