"""Trials as processes, several at once, each on cores of its own. They end with this process, however that ends: on a signal
they are asked to save, and where this process is killed the kernel, and a thread of their own, ask them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from base import plugins
from base.fields import brief
from base.process import orphans
from base.process.signals import Signals
from base.storage import files, input_files, locks
from harness.processes import launch

_EVERY = 0.2  # seconds between two looks
_MAX_OUTPUT = 1 << 26  # bytes of a trial's output that are looked through for its reason
Ended = Callable[["Work", int, bool], None]  # told of a trial, its exit code, and whether it was asked to end


@dataclass(frozen=True)
class Work:
    """A trial to train. `words`: of train.py; `output`: the file for what it prints."""

    name: str
    folder: Path
    words: tuple[str, ...]
    output: Path


def shares(jobs: int, cores: Sequence[int]) -> list[tuple[int, ...]]:
    """The cores, divided evenly; the first shares have one more."""
    each, more = divmod(len(cores), jobs)
    starts = [k * each + min(k, more) for k in range(jobs + 1)]
    return [tuple(cores[start:end]) for start, end in pairwise(starts)]


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


class Workers:
    """Trains every work, as many at once as there are shares of the cores."""

    def __init__(self, shares: Sequence[Sequence[int]], say: Callable[[str], None]) -> None:
        self._free, self._say = list(shares), say
        self._running: dict[subprocess.Popen, tuple[Work, Sequence[int]]] = {}
        self._asked: set[int] = set()  # processes that were told to end
        self._waiting_since: dict[str, float] = {}  # for an earlier call's process, by the trial's name

    def run(self, works: Sequence[Work], started: Callable[[Work], None], ended: Ended) -> None:
        """Train all, and tell of each when it starts and ends. A signal is handed on to those that run, starts no
        others, and is a StopRequest once they have ended."""
        waiting = list(works)
        with Signals() as signals, signals.deferred(self._stop):
            try:
                while self._running or (waiting and signals.received is None):
                    for work in list(islice(filter(self._is_ready, waiting), len(self._free))):
                        if signals.received is not None:
                            break
                        waiting.remove(work)
                        started(work)
                        self._start(work)
                    if signals.received is not None:  # one may have been starting while the others were told
                        self._stop()
                    self._collect(ended, signals.received is not None)
                    time.sleep(_EVERY)
            finally:
                self._end()

    def _is_ready(self, work: Work) -> bool:
        """Return whether no process of an earlier call writes a trial any more, or has for longer than one that was told to
        end."""
        if not locks.is_locked(work.folder):
            return True
        if work.name not in self._waiting_since:
            self._waiting_since[work.name] = time.monotonic()
            self._say(f"{work.name} is still being written by another process; it is waited for")
        return time.monotonic() - self._waiting_since[work.name] > 1.5 * orphans.GRACE

    def _start(self, work: Work) -> None:
        share = self._free.pop(0)
        with files.append(work.output) as output:
            output.truncate(0)
            process = subprocess.Popen(
                [sys.executable, str(plugins.ROOT / "train.py"), *work.words], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, env={**os.environ, orphans.MARK: orphans.mark()}, start_new_session=True,
                preexec_fn=_placed(share),
            )  # fmt: skip
        self._running[process] = (work, share)

    def _collect(self, ended: Ended, stopping: bool) -> None:
        for process in [process for process in self._running if process.poll() is not None]:
            work, share = self._running.pop(process)
            self._free.append(share)
            ended(work, process.returncode if process.returncode >= 0 else 128 - process.returncode, stopping)

    def _stop(self) -> None:
        """Ask all that run to save and end, each once: a second request would end it at once."""
        for process in list(self._running):
            if process.poll() is None and process.pid not in self._asked:
                self._asked.add(process.pid)
                process.send_signal(signal.SIGTERM)

    def _end(self) -> None:
        """Leave no process behind."""
        self._stop()
        until = time.monotonic() + orphans.GRACE
        for process in self._running:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def reason(output: Path, code: int) -> str:
    """Why a trial failed: the line of its error, or the signal that ended it."""
    try:
        lines = input_files.content(output, _MAX_OUTPUT).decode("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    messages = [line.partition("train.py: error: ")[2] for line in lines if line.startswith("train.py: error: ")]
    if messages:
        return messages[-1]
    if code > 128:
        return f"ended by {signal.Signals(code - 128).name}" if code - 128 in set(signal.Signals) else f"exit code {code}"
    return brief(lines[-1]) if lines else f"exit code {code}"


def _placed(share: Sequence[int]) -> Callable[[], None]:
    """Return the function to call in a process before its program begins."""
    ends_with_this = launch.ending_with_this_process()

    def begin() -> None:
        os.sched_setaffinity(0, share)
        if ends_with_this:
            ends_with_this()

    return begin
