"""Signals that ask a command to end, so that a run can be stopped at any moment without any loss.

The first one asks: a device step ends at its next pass, a file that is being written is finished, anything else is left at
once. A second Ctrl-C or SIGTERM ends the process on the spot. SIGHUP asks only, however often it comes, because both the
kernel and a shell send it when a terminal goes; so does SIGUSR1, which is poprun's word, and a scheduler's. Output that is
printed then to a terminal or a pipe that has gone is dropped.
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

from base.fields import escaped
from base.process import early_exit

URGENT = (signal.SIGINT, signal.SIGTERM)  # which mean "at once" when they come again
STANDARD_OUTPUT = "standard output"  # the name of it as a file that an error names
_STOPPING = "stopping at the next micro-batch; once more to stop at once"


class StopRequest(BaseException):
    """A signal asked the command to end. No Exception, so that handlers of a library's errors let it by."""

    def __init__(self, number: int, instance: int | None = None) -> None:
        """`instance`: another one of the run, which got the signal."""
        super().__init__(signal.Signals(number).name if instance is None else f"instance {instance}, which was told to stop")
        self.number = number
        self.hinted = False  # whether the user was told how to resume


def for_others(number: int) -> int:
    """Return the signal that ends the other instances when one got this one. SIGUSR1 is a launcher's or a scheduler's word,
    and all exit codes say that it was: the call is to be made again."""
    return signal.SIGUSR1 if number == signal.SIGUSR1 else signal.SIGTERM


class Signals:
    """The handlers of one command or run, between `with`; the earlier ones come back after it, and know which signal came.
    In a thread that is not the main one nothing is handled."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._ask: Callable[[], None] | None = None  # called instead of raising
        self._instance: int | None = None  # that got the signal, if it was another one
        self._always: Callable[[], None] | None = None
        self._telling = _STOPPING
        self._agreed = False
        self._earlier: dict[int, Any] = {}
        self._outer: Signals | None = None  # whose handlers come back
        self._again: int | None = None
        self._outcome: queue.SimpleQueue[BaseException | None] | None = None  # of the call of `_ask` that is under way

    def __enter__(self) -> Signals:
        if _in_main_thread():
            self._earlier = {number: signal.signal(number, self._handle) for number in early_exit.stop_signals()}
            outer = [getattr(handler, "__self__", None) for handler in self._earlier.values()]
            self._outer = next((one for one in outer if isinstance(one, Signals)), None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        with suppress(Exception):  # the work that was to be stopped has ended
            self._await_call()

    @contextmanager
    def deferred(self, ask: Callable[[], None] = lambda: None, telling: str = _STOPPING) -> Iterator[None]:
        """Inside, a signal calls `ask`, or the shared request, in another thread, and raises StopRequest at the end only.
        `telling`: the line that answers the signal."""
        self._ask, self._telling = self._always or ask, telling
        try:
            yield
        finally:
            self._ask, self._telling = self._always, _STOPPING
        if self._always is None or self._agreed:
            self.raise_if_received()

    def defer_until_agreed(self, ask: Callable[[], None]) -> None:
        """Let a signal call `ask` from now on wherever it comes, and StopRequest wait until the instances of the run have
        agreed (`agree_to_stop`): one that left alone would leave the others waiting."""
        self._ask = self._always = ask

    def raise_if_received(self) -> None:
        """StopRequest, if a signal came, after the call that it began is done."""
        if self.received is not None:
            self._await_call()
            raise StopRequest(self.received, self._instance)

    def agree_to_stop(self, instance: int, number: int = signal.SIGTERM) -> None:
        """The instances have agreed to end, because this one got a signal, `number`; the others end as if they had. Their
        own signals that come later, when these handlers may have gone, ask for nothing more."""
        self._agreed = True
        if self.received is None:
            self._note(for_others(number))
            self._instance = instance

    def raise_again(self) -> None:
        """Repeat the request, because its error went nowhere: a destructor cannot be left that way."""
        self._again, self.received = self.received, None
        again = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
        again.daemon = True
        again.start()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            return  # it has been asked; a second urgent one is seen to in `at_once_when_urged`
        number, self._again = self._again or number, None
        self._note(number)
        if self._ask is None:
            raise StopRequest(number)
        print_error(f"\n{self._telling}")
        self._outcome = queue.SimpleQueue()
        # The main thread may hold a lock that `_ask` needs: TensorFlow's sessions have one for an instant at each call.
        # Starting a thread by `threading` needs locks as well.
        _thread.start_new_thread(_call, (self._ask, self._outcome))

    def _await_call(self) -> None:
        """Wait for the call of `_ask` that a signal began, if any; raise its error."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None and (error := outcome.get()) is not None:
            raise error

    def _note(self, number: int) -> None:
        self.received = number
        if self._outer:
            self._outer._note(number)


@contextmanager
def stoppable() -> Iterator[Signals]:
    """Inside, a signal raises StopRequest, a second urgent one ends the process, and a terminal may go away."""
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
    """Inside, the second Ctrl-C or SIGTERM ends the process, whatever the main thread is busy with: handlers wait for it to
    come back to Python, which a long call of a library keeps it from."""
    if not _in_main_thread():
        yield
        return
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    shown = os.dup(2)  # while a library is made quiet, standard error goes elsewhere
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


# what a terminal obeys, but for line ends, tabs, colours and the clearing of a line, which bars and loggers print
_OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\\[[0-9;]*[mK])")


class TolerantStream:
    """A stream that outlives where it goes to: what cannot be written because the terminal has gone is dropped, and after a
    signal so is what nobody reads any more, as a Ctrl-C ends the other end of a pipe too. Control characters, as the name of
    a folder may have them, become escapes."""

    def __init__(self, stream: TextIO, signals: Signals) -> None:
        self._stream, self._signals = stream, signals

    def write(self, text: str) -> int:
        """Write text as any stream does."""
        with self._dropping():
            self._stream.write(_OBEYED.sub(lambda found: escaped(found[0]), text))
        return len(text)

    def flush(self) -> None:
        """Flush as any stream does."""
        with self._dropping():
            self._stream.flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno != errno.EIO and (error.errno != errno.EPIPE or self._signals.received is None):
                if error.filename is None and error.errno != errno.EPIPE:  # that one ends a command without a word
                    error.filename = {"<stdout>": STANDARD_OUTPUT}.get(getattr(self._stream, "name", ""))
                raise
            with suppress(OSError, ValueError):  # buffered text must not come up again at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _call(ask: Callable[[], None], outcome: queue.SimpleQueue[BaseException | None]) -> None:
    """Call `ask`; put its error, or None, into `outcome`."""
    try:
        ask()
    except BaseException as error:
        outcome.put(error)
    else:
        outcome.put(None)


def print_error(text: str) -> None:
    """A line on standard error, from a handler too, which may have interrupted another line on that stream."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
