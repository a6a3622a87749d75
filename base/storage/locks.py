"""A lock, so that only one process at a time writes a run folder."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from base.errors import OptionError
from base.storage import files, input_files

FILE = ".lock"
_MOMENT = 0.05  # seconds
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def lock_folder(folder: Path, what: str = "the run") -> Iterator[None]:
    """Hold the lock of a folder, that of `what`, which ends with the process however that ends; OptionError if another
    process holds it or nothing may be written there, OSError if the file that says so cannot be written for another reason.

    The folder itself is locked, so nothing is gained by deleting the file of that name, which says who holds the lock. The
    file is locked too, for file systems that cannot lock a folder.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(files.append(folder / FILE))
        except OSError as error:
            if error.errno not in _FORBIDDEN:
                raise
            raise OptionError(
                f"nothing can be written in {folder} ({error.strerror}): make it writable, or go on with a copy of it"
            ) from None
        itself = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, itself)
        for descriptor in (itself, file.fileno()):
            _lock(descriptor, folder, what)
        with files.naming(folder / FILE):
            file.truncate(0)
            os.write(file.fileno(), f"pid {os.getpid()}\n".encode())  # nothing is left to be written when the file is closed
        yield


@contextmanager
def holding(folder: Path) -> Iterator[bool]:
    """Hold a folder of one's own, with no file in it that says so: True, or False where the file system has no locks."""
    itself = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(itself, folder, "a part")
        yield _is_locked(folder, os.O_DIRECTORY)
    finally:
        os.close(itself)


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the folder's lock, without writing anything."""
    return any(_is_locked(path, flags) for path, flags in ((folder, os.O_DIRECTORY), (folder / FILE, os.O_NONBLOCK)))


def _is_locked(path: Path, flags: int) -> bool:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that this process holds and that has nothing in it but the lock's file."""
    with suppress(OSError):
        if os.listdir(folder) == [FILE]:
            (folder / FILE).unlink()
            folder.rmdir()


def _lock(descriptor: int, folder: Path, what: str) -> None:
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # maybe of `is_locked`, which keeps it for a moment
            time.sleep(_MOMENT)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OptionError(
            f"{what} in {folder} is being written by another process ({_holder(folder)}): wait for it, or stop it first"
        ) from None
    except OSError:
        pass  # a file system without locks of this kind


def _holder(folder: Path) -> str:
    with suppress(OSError):
        return input_files.content(folder / FILE, 64).decode(errors="replace").strip() or "unknown"
    return "unknown"
