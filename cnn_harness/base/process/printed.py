"""Discard or record what a call prints, while other threads of the program print as usual.

`contextlib.redirect_stdout` replaces the stream of all threads. If two threads leave it in another order than they entered
it, the output of the program is lost.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_STREAMS = ("stdout", "stderr")
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class _Call(NamedTuple):
    quiet: bool
    text: io.StringIO


_calls: dict[int, _Call] = {}  # the innermost call of each thread


class _Stream:
    """A standard stream while calls are open."""

    def __init__(self, stream: Any, name: str) -> None:
        self.stream, self._records = stream, name == "stdout"

    def write(self, text: str) -> int:
        """Write text, unless the call of this thread is quiet. Threads of TensorFlow belong to all calls."""
        call = _calls.get(threading.get_ident())
        if call and self._records:
            call.text.write(text)
        if call is None and threading.current_thread().name.startswith("Dummy-"):  # not started by Python
            quiet = [each.quiet for each in [*_calls.values()]]
            return len(text) if quiet and all(quiet) else self.stream.write(text)
        return len(text) if call and call.quiet else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def heard(quiet: bool) -> Iterator[io.StringIO]:
    """Inside, record the standard output of this thread. If `quiet`, print nothing."""
    call = _Call(quiet, io.StringIO())
    with _innermost(call):
        yield call.text


def aloud(function: Callable) -> Callable:
    """Return a function that prints as if no call were open, for callbacks of the calling program."""
    return _inside(None, function)


def for_thread(function: Callable) -> Callable:
    """Return a function for another thread, in which it prints as in this thread."""
    return _inside(_calls.get(threading.get_ident()), function)


def _inside(call: _Call | None, function: Callable) -> Callable:
    def inside(*arguments: Any) -> Any:
        with _innermost(call):
            return function(*arguments)

    return inside


@contextmanager
def _innermost(call: _Call | None) -> Iterator[None]:
    """Inside, `call` is the call of this thread."""
    thread = threading.get_ident()
    outer = _set(thread, call)
    try:
        yield
    finally:
        _set(thread, outer)


def _set(thread: int, call: _Call | None) -> _Call | None:
    """Set the call of a thread, and return the previous one. Replace the streams while at least one call is open."""
    with _lock:
        previous = _calls.pop(thread, None)
        if call:
            _calls[thread] = call
        for name in _STREAMS:
            stream = getattr(sys, name)
            if _calls and stream and not isinstance(stream, _Stream):
                setattr(sys, name, _Stream(stream, name))
            elif not _calls and isinstance(stream, _Stream):
                setattr(sys, name, stream.stream)
        return previous
