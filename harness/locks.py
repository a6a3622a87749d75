"""One process at a time writes a run folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.options import OptionError

_NAME = ".lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which ends with the process however that ends; OptionError if another process holds it."""
    with open(folder / _NAME, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(20).strip()
            raise OptionError(
                f"the run in {folder} is being written by another process ({holder or 'unknown'}): wait for it, or stop it "
                "first"
            ) from None
        except OSError:
            pass  # a file system without locks
        file.truncate(0)
        file.write(f"pid {os.getpid()}\n")
        file.flush()
        yield
