"""Start child processes, share the cores among them, and stop all of them together.

Every child has a session of its own, so that a terminal sends Ctrl-C only to this process, which sends it to the children.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cnn_harness.base.process import orphans

if TYPE_CHECKING:
    from typing_extensions import Self

Item, Value = TypeVar("Item"), TypeVar("Value")

_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
_KILLED_AFTER = 5.0  # seconds from SIGTERM to SIGKILL


class Ending(NamedTuple):
    """The exit code of child processes, and the reason for it."""

    code: int  # The exit code of the first failure. After signal n, it is 128 + n.
    stopped: bool  # True if this process sent a signal to its children.
    reason: str  # Which child failed first, and how.


class Children:
    """Child processes, used in a `with` statement: at its end, all of them have ended.

    If this process is killed, the kernel sends SIGUSR1 to every child.
    """

    def __init__(self) -> None:
        self.sent: list[int] = []  # the signals that were sent to all children
        self.reason = ""  # the first failure
        self._code = 0  # the exit code of the child that failed first
        self._started: dict[subprocess.Popen, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for child in self._started:
            child.wait()

    def start(
        self, name: str, command: Sequence[str], environ: Mapping[str, str], cores: Collection[int] = (), **options: Any
    ) -> subprocess.Popen | None:
        """Start a child process on these cores, or on all. After a signal, do nothing. `options` are arguments of Popen."""
        if self.sent:
            return None
        child = subprocess.Popen(
            command, env={**environ, orphans.MARK: "1"}, start_new_session=True, preexec_fn=_beginning(cores), **options
        )
        self._started[child] = name
        for number in self.sent:  # signals that came while the child was starting
            child.send_signal(self.translated(number))
        return child

    def send(self, number: int) -> None:
        """Send a signal to all children. Afterwards, no child is started."""
        self.sent.append(number)
        self._send(self.translated(number))

    def translated(self, number: int) -> int:
        """Return the signal that the children get for the signal `number`."""
        return number

    def stop(self) -> None:
        """Ask all children to save and end, unless a signal has asked them already: a second one would prevent saving."""
        if not self.sent:
            self.send(signal.SIGTERM)

    def wait(self, grace: float) -> Ending:
        """Wait until all children have ended. If one fails, end the others: SIGTERM after `grace` seconds, then SIGKILL.

        If they have received a signal already, they may be saving, and get only SIGKILL after a longer time.
        """
        failed, steps = math.inf, [(grace, signal.SIGTERM), (grace + _KILLED_AFTER, signal.SIGKILL)]
        while self._running():
            if self.reason:
                failed = min(failed, time.monotonic())
            if self.sent and len(steps) > 1:
                steps = [(orphans.GRACE, signal.SIGKILL)]
            if steps and time.monotonic() > failed + steps[0][0]:
                self._send(steps.pop(0)[1])
            time.sleep(0.05)
        code = self._code or int(bool(self.reason))
        if self.sent and not self._started:
            code = 128 + self.sent[0]
        return Ending(code if code >= 0 else 128 - code, bool(self.sent), self.reason)

    def run_on_cores(
        self, work: Callable[[Item, Sequence[int]], Value], items: Iterable[Item], shares: Sequence[Sequence[int]]
    ) -> Iterator[Value]:
        """Call `work` for every item in threads, one call at a time for each share of the cores. Yield results as calls end.

        `work` starts children and waits for them. After an error, begin no further call, and stop the children.
        """
        free = list(shares)

        def call(item: Item) -> Value:
            cores = free.pop()
            try:
                return work(item, cores)
            finally:
                free.append(cores)

        with ThreadPoolExecutor(len(shares)) as pool:
            try:
                for future in as_completed([pool.submit(call, item) for item in items]):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()
                raise

    def _running(self) -> bool:
        """Return whether a child is still running. Store the first failure."""
        codes = [(name, child.poll()) for child, name in self._started.items()]
        for name, code in codes:
            if code and not self._code:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                self._code, self.reason = code, self.reason or f"{name} {how}"
        return any(code is None for _, code in codes)

    def _send(self, number: int) -> None:
        for child in list(self._started):
            child.send_signal(number)  # this does nothing if the child has ended


@contextmanager
def forwarding(children: Children) -> Iterator[None]:
    """Inside, forward the signals that would end this process to the children."""
    # Signals that are ignored stay ignored, such as SIGHUP under nohup.
    numbers = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    earlier = {number: signal.signal(number, lambda number, _: children.send(number)) for number in numbers}
    wakeup = signal.set_wakeup_fd(-1)  # Otherwise the reader of this pipe ends this process at the second Ctrl-C.
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _beginning(cores: Collection[int]) -> Callable[[], None]:
    """Return a function to call in a child process before its program starts.

    After the call, the kernel sends SIGUSR1 to the child when its parent ends.
    """
    prctl, parent = getattr(ctypes.CDLL(None), "prctl", None), os.getpid()  # only Linux has prctl

    def begin() -> None:
        if cores:
            os.sched_setaffinity(0, cores)
        if prctl:
            prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGUSR1)

    return begin
