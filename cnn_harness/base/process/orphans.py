"""Stop a process after its launcher has ended: first by SIGUSR1, a minute later by force.

A killed launcher cannot stop the processes that it started. Each process therefore watches its parent, which is poprun,
mpirun, mpirun's daemon on another host, `cnn sweep`, or a study.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping

from cnn_harness.base.process import signals

MARK = "POPRUN_PROCESS"  # a process with this environment variable ends if its parent has ended.
_OF_MPIRUN = "OMPI_COMM_WORLD_RANK"  # environment variable that mpirun sets, with or without poprun
GRACE = 60  # seconds from the stop request to the forced end
_EVERY = 0.5  # seconds between two checks of the parent


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
