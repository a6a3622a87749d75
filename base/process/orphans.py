"""The end of an instance that its launcher has orphaned: as if on a request, by force after a while.

A launcher that is killed tells nobody. The instances look for poprun themselves: their parent (poprun, mpirun or mpirun's
daemon on another host) must stay the same, and poprun, whose mark they find in their environment, must be there if it is on
this host. The trials of cnn sweep find its mark, and end with it the same way.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from base.process import signals

MARK = "POPRUN_PROCESS"
_OF_MPIRUN = "OMPI_COMM_WORLD_RANK"  # in the environment of what mpirun starts, with or without a poprun above
GRACE = 60  # seconds from the request to end to the end by force
_EVERY = 0.5  # seconds
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # of this host, since it was started


def mark() -> str:
    """Return this process' mark, for the environment of those that it starts: host, process namespace, id, time of start."""
    return "/".join((socket.gethostname(), _namespace(), str(os.getpid()), began(os.getpid()) or ""))


def watch(environ: Mapping[str, str]) -> None:
    """End this process, from now on, when its launcher has ended; do nothing if the environment has no sign of one."""
    fields = environ.get(MARK, "").split("/")
    marked = len(fields) == 4
    if (marked or _OF_MPIRUN in environ) and threading.current_thread() is threading.main_thread():
        launcher = tuple(fields) if marked else None
        threading.Thread(target=_watch, args=(launcher, os.getppid()), daemon=True).start()


def _watch(marked: tuple[str, ...] | None, parent: int) -> None:
    while os.getppid() == parent and not (marked and _has_ended(*marked)):
        time.sleep(_EVERY)
    signal.alarm(GRACE)  # the kernel ends the process then, whatever it is busy with
    signals.print_error(f"\nthe {'process' if marked else 'mpirun'} that started this has ended")
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)


def _has_ended(host: str, namespace: str, pid: str, since: str) -> bool:
    """Return whether a process that is known by its mark has ended; False for one elsewhere, of which nothing is known."""
    here = (host, namespace) == (socket.gethostname(), _namespace()) and pid.isdigit()
    return here and began(int(pid)) != since


def began(pid: int) -> str | None:
    """When a process began, in the system's own words, so that another one with its id is not taken for it; None if it
    has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if words[0] in "ZX" else words[19]
    except (OSError, IndexError):
        return None if Path("/proc/self/stat").exists() or not _answers(pid) else ""


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True


def _namespace() -> str:
    """Ids of processes mean something inside it only; it is numbered alike on every host, and hosts may be named alike."""
    try:
        return f"{os.stat('/proc/self/ns/pid').st_ino}-{_BOOT.read_text(encoding='ascii').strip()}"
    except OSError:
        return ""
