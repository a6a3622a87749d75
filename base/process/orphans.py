"""Stop a process after its launcher has ended: first by SIGUSR1, a minute later by force.

A killed launcher cannot stop its processes. Each one therefore watches its parent: poprun, mpirun, or mpirun's daemon
on another host. The trials of cnn sweep do the same.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping

from base.process import signals

MARK = "POPRUN_PROCESS"  # environment variable of processes that end with their parent
_OF_MPIRUN = "OMPI_COMM_WORLD_RANK"  # set by mpirun, with or without poprun
GRACE = 60  # seconds from the stop request to the forced end
_EVERY = 0.5  # seconds


def watch(environ: Mapping[str, str]) -> None:
    """Watch the parent in a thread, if a launcher started this process."""
    if (MARK in environ or _OF_MPIRUN in environ) and threading.current_thread() is threading.main_thread():
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_EVERY)
    signal.alarm(GRACE)  # the kernel then ends the process, even during a long library call
    signals.print_error("\nthe launcher of this process has ended")
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
