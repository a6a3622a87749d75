"""Writes into folders where other people may write too: no link is followed, and nothing but a regular file is opened."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from base.storage import input_files

_BESIDE = re.compile(r"\.(.+)\.[0-9]+")  # a file's name and a process, of a file that is being written
MAX_BYTES = 4 << 30  # of a file of rows or lines: tens of millions of them
_held: dict[str, int] = {}  # the open folders that this process alone writes, by the paths by which it knows them


class _Named(OSError):
    """An error whose own words follow the file or folder that it is of."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class NotRegular(_Named):
    """A link, a pipe, a device or a folder where a regular file belongs."""


class FolderReplaced(_Named):
    """The path of a folder that this process holds leads elsewhere."""

    def __init__(self, folder: Path, now: Path | None) -> None:
        moved = f"moved to {now}" if now else "removed"
        super().__init__(errno.ESTALE, f"the folder was {moved} while it was being written", str(folder))


@contextmanager
def holding(folder: Path, descriptor: int) -> Iterator[None]:
    """Inside, writes below a folder are refused as soon as its path leads to another one than this open one, which somebody
    has moved or removed, or a link to which leads elsewhere. Where a file system gives folders no lasting numbers nothing is
    noticed."""
    path = str(folder)
    if _is_at(folder, descriptor):
        _held[path] = descriptor
    try:
        yield
    finally:
        _held.pop(path, None)


def check_held(path: Path) -> None:
    """FolderReplaced if a path lies in a folder that this process holds and that is there no longer."""
    for folder in (path, *path.parents):
        descriptor = _held.get(str(folder))
        if descriptor is not None and not _is_at(folder, descriptor):
            raise FolderReplaced(folder, held_place(folder))


def held_place(folder: Path) -> Path | None:
    """Return where a folder that this process holds is now; None if it was removed, or nobody can tell."""
    descriptor = _held.get(str(folder))
    if descriptor is None or _is_at(folder, descriptor):
        return folder
    with suppress(OSError):
        now = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        return now if _is_at(now, descriptor) else None
    return None


def _is_at(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(folder), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError that names no file, as that of a write into a full disk, names `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def append(path: Path) -> BinaryIO:
    """Open a file for appending, made if it is not there; NotRegular for anything but a file of this folder alone.

    A file with several names (a backup made of hard links) is replaced by a copy first, so that the others stay as they are.
    """
    check_held(path)
    with suppress(FileNotFoundError):
        status = os.stat(path, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            write_atomically(path, input_files.content(path, MAX_BYTES))
    return os.fdopen(_open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def refused(place: Path) -> int:
    """The error of a place that may not be written: of its file system, or of its modes."""
    return errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES


def check_writable(path: Path, replaced: bool = False) -> None:
    """NotRegular where `append` would meet with anything but a regular file; with `replaced`, where `write_atomically` would
    meet with a folder, the one thing that gives no way to a file."""
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = os.stat(path, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) or not (replaced or stat.S_ISREG(mode)):
            raise _not_regular(path, mode)


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Write beside the file, then rename, so that a reader sees the old or the new content whole. A link of that name is
    replaced, not followed. OSError names `path`."""
    check_held(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")  # as _BESIDE
    try:
        beside.unlink(missing_ok=True)  # of a process that was killed, or somebody else's
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as file:
            file.write(encoded(content) if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def encoded(text: str) -> bytes:
    """Text in UTF-8; bytes of a file's name that are none are written as escapes, which JSON reads as what they were."""
    return text.encode("utf-8", "backslashreplace")


def unfinished(folder: Path) -> Iterator[Path]:
    """Files that `write_atomically` left in this folder when its process was killed."""
    for path in folder.glob(".*"):
        named = _BESIDE.fullmatch(path.name)
        if named and (folder / named[1]).is_file() and not path.is_dir():
            yield path


def nearest_folder(path: Path) -> Path:
    """The folder of that name, or the nearest one above it that is there."""
    return next(place for place in (path, *path.absolute().parents) if place.is_dir())


def own_folder(path: Path) -> Path:
    """A folder of that name, made if it is not there; NotRegular as of `check_own_folder`."""
    check_own_folder(path)
    path.mkdir(exist_ok=True)
    return path


def check_own_folder(path: Path) -> None:
    """NotRegular for a link, or a file, where a folder belongs."""
    if path.is_symlink():
        raise NotRegular(errno.ELOOP, "Is a link, and a run writes into its own folder only; remove it", str(path))
    if path.exists() and not path.is_dir():
        raise NotRegular(errno.ENOTDIR, "Is no folder, and a run keeps its averages in one; remove it", str(path))


def _open(path: Path, flags: int) -> int:
    # a pipe would be waited for without O_NONBLOCK, which changes nothing for regular files
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _not_regular(path, os.stat(path, follow_symlinks=False).st_mode) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _not_regular(path, mode)
    return descriptor


def _not_regular(path: Path, mode: int) -> NotRegular:
    what = "Is a link, which is not followed" if stat.S_ISLNK(mode) else input_files.unfit_reason(mode)
    return NotRegular(errno.EINVAL, f"{what}; remove it", str(path))
