"""A lock, so that only one process at a time writes a run folder."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from base.errors import OptionError
from base.storage import files, input_files

FILE = ".lock"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_MOMENT = 0.05  # seconds
_RANDOM = "[a-z0-9_]{8}"  # ends the name of a temporary folder
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def lock_folder(folder: Path, what: str = "the run") -> Iterator[None]:
    """Hold the lock of a folder, that of `what`, which ends with the process however that ends; OptionError if another
    process holds it or nothing may be written there, OSError if the file that says so cannot be written for another reason.

    The folder itself is locked, so nothing is gained by deleting the file of that name, which says who holds the lock. The
    file is locked too, for file systems that cannot lock a folder. Where the folder is moved meanwhile, nothing is written
    into another one of its name (`files.holding`).
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
        stack.enter_context(files.holding(folder, itself))
        yield


@contextmanager
def scratch_folder(above: Path, prefix: str) -> Iterator[Path]:
    """A folder of this process alone, for files that are not finished. Nothing of it stays, nor of those of killed processes
    in `above` under the prefix, where the file system has locks. OSError if none can be made."""
    files.check_held(above)
    folder, itself = _new_scratch(above, prefix)
    try:
        for left in above.glob(f"{prefix}*"):
            if re.fullmatch(_RANDOM, left.name.removeprefix(prefix)):
                _remove_abandoned(left)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(itself)


def _new_scratch(above: Path, prefix: str) -> tuple[Path, int]:
    """A new folder, and the open file that locks it. Another process may take it for abandoned before it is locked: that
    one has the lock then, or has removed it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
        with suppress(FileNotFoundError):
            itself = os.open(folder, _FOLDER)
            if _is_taken(itself) and os.path.lexists(folder):
                return folder, itself
            os.close(itself)


def _is_taken(descriptor: int) -> bool:
    """Lock an open file; return whether no other process has the lock, which a file system without locks never tells."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _remove_abandoned(folder: Path) -> None:
    with suppress(OSError):
        itself = os.open(folder, _FOLDER)
        try:
            fcntl.flock(itself, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError where its process lives, or nobody can tell
            shutil.rmtree(folder, ignore_errors=True)
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
    if _is_taken(descriptor):
        return
    time.sleep(_MOMENT)  # for which `is_locked` may have it
    if not _is_taken(descriptor):
        raise OptionError(
            f"{what} in {folder} is being written by another process ({_holder(folder)}): wait for it, or stop it first"
        )


def _holder(folder: Path) -> str:
    with suppress(OSError):
        return input_files.content(folder / FILE, 64).decode(errors="replace").strip() or "unknown"
    return "unknown"
