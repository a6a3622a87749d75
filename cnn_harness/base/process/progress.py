"""Show the progress of slow commands on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from cnn_harness.base.process import printed

_WIDTH = 30  # width of the bar in characters
_REDRAWN = 0.1  # seconds between two updates of the bar
_LINE_EVERY = 10.0  # seconds between two lines if there is no terminal
_SECOND = 1.0
_LONG = 10.0  # show the time left of work that takes longer than this number of seconds


class Progress:
    """Shows how much of `total` is done: by a bar on a terminal, otherwise by a line every ten seconds. Thread-safe."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._terminal = sys.stderr.isatty()
        self._started = self._shown = time.monotonic()
        self._lock = threading.Lock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._terminal and self._done:
            self._show("\n")

    def advance(self, count: int = 1) -> None:
        """Add `count` to the work done."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._shown >= (_REDRAWN if self._terminal else _LINE_EVERY):
                self._shown = now
                self._show("" if self._terminal else "\n")

    def _show(self, end: str) -> None:
        seconds = time.monotonic() - self._started
        rate = self._done / max(seconds, 1e-9)
        left = (self._total - self._done) / max(rate, 1e-9)
        filled = _WIDTH * self._done // max(self._total, 1)
        bar = f"\r[{'#' * filled:{_WIDTH}}] " if self._terminal else ""
        more = f", {left:.0f} s left" if seconds + left > _LONG else ""
        tail = "\x1b[K" if self._terminal else ""  # clear the rest of a longer line
        print(
            f"{bar}{self._done} of {self._total} {self._what}, {rate:.3g} per second{more}{tail}",
            end=end, file=sys.stderr, flush=True,
        )  # fmt: skip


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that `what` is running: on a terminal by the elapsed seconds, otherwise by one line after ten seconds."""
    terminal, over, began = sys.stderr.isatty(), threading.Event(), time.monotonic()

    def show(text: str) -> None:
        with suppress(OSError):  # continue without the terminal
            print(text, end="", file=sys.stderr, flush=True)

    def count() -> None:
        while terminal and not over.wait(_SECOND):
            show(f"{what} ... {time.monotonic() - began:.0f} s\r")
        if not over.wait(_LINE_EVERY):
            show(f"{what} ...\n")

    thread = threading.Thread(target=printed.for_thread(count), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if terminal:
            show("\x1b[2K")
