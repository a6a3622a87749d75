"""Ends a process whose launcher has ended: first as on SIGUSR1, a minute later by force.

A killed launcher cannot tell its processes. Each of them therefore watches its parent: poprun, mpirun, or mpirun's daemon on
another host. The trials of cnn sweep do the same.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping

from base.process import signals

MARK = "POPRUN_PROCESS"  # in the environment of processes that end with their parent
_OF_MPIRUN = "OMPI_COMM_WORLD_RANK"  # set by mpirun, with or without poprun
GRACE = 60  # seconds from the request to end to the end by force
_EVERY = 0.5  # seconds


def watch(environ: Mapping[str, str]) -> None:
    """Watch the parent from now on, if a launcher started this process."""
    if (MARK in environ or _OF_MPIRUN in environ) and threading.current_thread() is threading.main_thread():
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_EVERY)
    signal.alarm(GRACE)  # the kernel ends the process then, whatever it is busy with
    signals.print_error("\nthe process that started this has ended")
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
