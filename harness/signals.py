"""SIGINT and SIGTERM, so that a run can be stopped at any moment and nothing of it is lost.

The first signal asks: a device step ends at its next micro-batch, what is being written is finished, anything else is left
at once. A second signal ends the process on the spot.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HANDLED = (signal.SIGINT, signal.SIGTERM)


class StopRequest(Exception):
    """A signal asked the run to stop."""

    def __init__(self, number: int, instance: int | None = None) -> None:
        """`instance`: another one of the run, which got it."""
        super().__init__(signal.Signals(number).name if instance is None else f"instance {instance}, which was told to stop")
        self.number = number


class Signals:
    """The handlers of one run, between `with`; the earlier ones come back after it. In a thread that is not the main one
    nothing is handled."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._ask: Callable[[], None] | None = None  # what to do instead of raising
        self._instance: int | None = None  # that got the signal, if it was another one
        self._always: Callable[[], None] | None = None
        self._agreed = False
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._earlier = {number: signal.signal(number, self._handle) for number in HANDLED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    @contextmanager
    def asking(self, ask: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Inside, a signal calls `ask` and raises StopRequest at the end only."""
        self._ask = ask
        try:
            yield
        finally:
            self._ask = self._always
        if self._always is None or self._agreed:
            self.raise_if_received()

    def share(self, ask: Callable[[], None]) -> None:
        """From now on a signal calls `ask` wherever it comes, and StopRequest waits until the instances of the run have
        agreed (`follow`): one that left alone would leave the others waiting."""
        self._ask = self._always = ask

    def raise_if_received(self) -> None:
        """StopRequest, if a signal came."""
        if self.received is not None:
            raise StopRequest(self.received, self._instance)

    def follow(self, instance: int) -> None:
        """The instances have agreed to end, because this one got a signal; the others end as if they had."""
        self._agreed = True
        if self.received is None:
            self.received, self._instance = signal.SIGTERM, instance

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            print("\nstopped at once", file=sys.stderr, flush=True)
            os._exit(128 + number)
        self.received = number
        if self._ask is None:
            raise StopRequest(number)
        print("\nstopping at the next micro-batch; once more to stop at once", file=sys.stderr, flush=True)
        self._ask()
