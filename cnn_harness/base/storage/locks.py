"""Locks: only one process at a time may write a run directory."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.base.storage import files

FILE = ".lock"
_MOMENT = 0.05  # seconds before the second attempt to lock a folder
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def lock_folder(folder: Path, what: str = "the run") -> Iterator[None]:
    """Inside, hold a folder's lock. The lock is also released if the process ends.

    Raise OptionError if another process holds the lock, or if the folder is not writable. `what` names the folder's content
    in messages.
    """
    try:
        file = files.append(folder / FILE)
    except OSError as error:
        if error.errno not in _FORBIDDEN:
            raise
        raise OptionError(f"{folder} is not writable ({error.strerror}); make it writable, or copy it elsewhere") from None
    with file:
        if not _take(file.fileno()):
            time.sleep(_MOMENT)  # `is_locked` in another process may hold the lock briefly
            if not _take(file.fileno()):
                holder = (folder / FILE).read_text(errors="replace").strip() or "unknown"
                raise OptionError(f"another process ({holder}) is writing {what} in {folder}; wait for it, or stop it first")
        with files.naming(folder / FILE):
            file.truncate(0)
            os.write(file.fileno(), f"pid {os.getpid()}\n".encode())
        yield


@contextmanager
def scratch_folder(above: Path, prefix: str) -> Iterator[Path]:
    """Create a temporary folder in `above`, and remove it at the exit. Also remove those of killed processes."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
    descriptor = os.open(folder, os.O_RDONLY)
    _take(descriptor)
    try:
        for left in above.glob(f"{prefix}*"):
            if left != folder and left.is_dir() and not left.is_symlink() and not _is_locked(left):
                shutil.rmtree(left, ignore_errors=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the folder's lock."""
    return _is_locked(folder / FILE)


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that this process has locked, if it contains only the lock file."""
    with suppress(OSError):
        if os.listdir(folder) == [FILE]:
            (folder / FILE).unlink()
            folder.rmdir()


def _is_locked(path: Path) -> bool:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _take(descriptor: int) -> bool:
    """Lock an open file; return False if another process holds the lock. If the file system has no locks, return True."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
