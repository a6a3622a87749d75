"""Handle the signals that stop a command, so that a run can be stopped at any moment without losing work.

The first signal requests a stop: a device step ends after its current micro-batch, a file being written is finished, and
all other work ends at once. A second Ctrl-C or SIGTERM ends the process immediately. A second SIGHUP or SIGUSR1 is
ignored, because the kernel and the shell both send SIGHUP when a terminal closes, and poprun and schedulers send SIGUSR1.
After a signal, output to a closed terminal or pipe is dropped.
"""

from __future__ import annotations

import _thread
import errno
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TextIO

from cnn_harness.base.fields import escaped
from cnn_harness.base.process import early_exit

URGENT = (signal.SIGINT, signal.SIGTERM)  # the second of these signals ends the process at once
STANDARD_OUTPUT = "standard output"  # the file name in errors about standard output
_STOPPING = "stopping at the next micro-batch; interrupt again to stop at once"


class StopRequest(BaseException):
    """A signal asked the command to stop. The base class is not Exception, so that libraries do not catch it."""

    def __init__(self, number: int, instance: int | None = None) -> None:
        """Store the signal. `instance` is the process that received the signal, if it was not this process."""
        super().__init__(
            signal.Signals(number).name if instance is None else f"instance {instance}, which received a signal"
        )
        self.number = number


def for_others(number: int) -> int:
    """Return the signal whose exit code the other instances use after one instance received `number`.

    SIGUSR1 comes from a launcher or scheduler. All instances then exit with SIGUSR1's code, which means that the command
    should be run again.
    """
    return signal.SIGUSR1 if number == signal.SIGUSR1 else signal.SIGTERM


class Signals:
    """Signal handlers of a command or run, as a context manager.

    The exit restores the earlier handlers. A received signal is also recorded in the `Signals` around this one. Only the
    main thread handles signals.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._ask: Callable[[], None] | None = None  # a signal calls this instead of raising StopRequest
        self._instance: int | None = None  # the instance that received the signal, if it was not this process
        self._always: Callable[[], None] | None = None
        self._telling = _STOPPING
        self._agreed = False
        self._earlier: dict[int, Any] = {}
        self._outer: Signals | None = None  # the Signals around this one
        self._again: int | None = None
        self._outcome: queue.SimpleQueue[BaseException | None] | None = None  # receives the result of calling `_ask`

    def __enter__(self) -> Signals:
        if _in_main_thread():
            self._earlier = {number: signal.signal(number, self._handle) for number in early_exit.stop_signals()}
            outer = [getattr(handler, "__self__", None) for handler in self._earlier.values()]
            self._outer = next((one for one in outer if isinstance(one, Signals)), None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        with suppress(Exception):  # the work to be stopped has already ended
            self._await_call()

    @contextmanager
    def deferred(self, ask: Callable[[], None] = lambda: None, telling: str = _STOPPING) -> Iterator[None]:
        """Inside, a signal calls `ask` in another thread, and StopRequest is raised only at the exit.

        `telling` is the line printed when a signal comes. After `defer_until_agreed`, its function is called, not `ask`.
        """
        self._ask, self._telling = self._always or ask, telling
        try:
            yield
        finally:
            self._ask, self._telling = self._always, _STOPPING
        if self._always is None or self._agreed:
            self.raise_if_received()

    def defer_until_agreed(self, ask: Callable[[], None]) -> None:
        """From now on, let every signal call `ask`, and raise StopRequest only after `agree_to_stop`.

        If one instance stopped alone, the other instances would wait for it forever.
        """
        self._ask = self._always = ask

    def raise_if_received(self) -> None:
        """If a signal came, wait for the call that it started, then raise StopRequest."""
        if self.received is not None:
            self._await_call()
            raise StopRequest(self.received, self._instance)

    def agree_to_stop(self, instance: int, number: int = signal.SIGTERM) -> None:
        """Record that all instances agreed to stop because `instance` received the signal `number`.

        The other instances stop as if they had received the signal. Later signals have no effect.
        """
        self._agreed = True
        if self.received is None:
            self._note(for_others(number))
            self._instance = instance

    def raise_again(self) -> None:
        """Repeat the request after a destructor raised StopRequest, because Python discards exceptions in destructors."""
        self._again, self.received = self.received, None
        again = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
        again.daemon = True
        again.start()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            return  # the stop is already requested; `at_once_when_urged` handles a second Ctrl-C or SIGTERM
        number, self._again = self._again or number, None
        self._note(number)
        if self._ask is None:
            raise StopRequest(number)
        print_error(f"\n{self._telling}")
        self._outcome = queue.SimpleQueue()
        # The main thread may hold a lock that `_ask` needs: TensorFlow's sessions take one briefly at each call.
        # `_thread` is used because starting a thread by `threading` needs locks too.
        _thread.start_new_thread(_call, (self._ask, self._outcome))

    def _await_call(self) -> None:
        """If a signal started a call of `_ask`, wait until the call ends and raise its error."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None and (error := outcome.get()) is not None:
            raise error

    def _note(self, number: int) -> None:
        self.received = number
        if self._outer:
            self._outer._note(number)


@contextmanager
def stoppable() -> Iterator[Signals]:
    """Inside, a signal raises StopRequest, a second Ctrl-C or SIGTERM ends the process, and output may be closed."""
    with Signals() as signals, at_once_when_urged():
        streams, hook = (sys.stdout, sys.stderr), sys.unraisablehook

        def unraisable(lost: sys.UnraisableHookArgs) -> None:
            signals.raise_again() if isinstance(lost.exc_value, StopRequest) else hook(lost)

        sys.stdout, sys.stderr = (TolerantStream(stream, signals) for stream in streams)
        sys.unraisablehook = unraisable
        try:
            yield signals
        finally:
            sys.unraisablehook = hook
            sys.stdout, sys.stderr = streams


@contextmanager
def at_once_when_urged() -> Iterator[None]:
    """Inside, let a second Ctrl-C or SIGTERM end the process at once, even during a long library call.

    Python runs signal handlers only between instructions of the main thread, so another thread reads signals from a pipe.
    """
    if not _in_main_thread():
        yield
        return
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    shown = os.dup(2)  # a copy, because standard error is redirected while a library is silenced
    earlier = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    watch = threading.Thread(target=_watch, args=(reads, shown), daemon=True)
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        os.close(writes)
        watch.join()
        os.close(reads)
        os.close(shown)


def _watch(reads: int, shown: int) -> None:
    urged = 0
    while numbers := os.read(reads, 64):
        for number in numbers:
            urged += number in URGENT
            if urged > 1:
                with suppress(OSError):
                    os.write(shown, b"\nstopped at once\n")
                os._exit(128 + number)


# Control characters to escape. Progress bars and loggers need the others: line ends, tabs, colours and clearing a line.
_OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\\[[0-9;]*[mK])")


class TolerantStream:
    """A stream that drops output to a closed terminal, and after a signal also output to a closed pipe.

    Ctrl-C also ends the program that reads the pipe. Control characters, for example in folder names, are escaped.
    """

    def __init__(self, stream: TextIO, signals: Signals) -> None:
        self._stream, self._signals = stream, signals

    def write(self, text: str) -> int:
        """Write text, with control characters escaped."""
        with self._dropping():
            self._stream.write(_OBEYED.sub(lambda found: escaped(found[0]), text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._dropping():
            self._stream.flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno != errno.EIO and (error.errno != errno.EPIPE or self._signals.received is None):
                if error.filename is None and error.errno != errno.EPIPE:  # EPIPE ends a command silently
                    error.filename = {"<stdout>": STANDARD_OUTPUT}.get(getattr(self._stream, "name", ""))
                raise
            with suppress(OSError, ValueError):  # otherwise the interpreter would write buffered text again at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _call(ask: Callable[[], None], outcome: queue.SimpleQueue[BaseException | None]) -> None:
    """Call `ask` and put its error, or None, into `outcome`."""
    try:
        ask()
    except BaseException as error:
        outcome.put(error)
    else:
        outcome.put(None)


def print_error(text: str) -> None:
    """Print a line on standard error without Python's buffer, because a signal handler may interrupt another print."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
