"""The edges of this folder's commands: errors as one line and an exit code (2: wrong input, 1: failure), progress."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from Datasets._spec import DataError

_WIDTH = 30  # characters of the bar
_REDRAWN = 0.1  # seconds between two pictures of the bar
_LINE_EVERY = 10.0  # seconds between two lines where there is no terminal


class UsageParser(argparse.ArgumentParser):
    """Wrong options as the other commands report them."""

    def error(self, message: str) -> NoReturn:
        raise DataError(message)


def whole(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """Reads a whole number between the two."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 11 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} to {most}")
        return int(text)

    return read


def run(prog: str, main: Callable[[list[str]], int], argv: list[str] | None) -> int:
    """main(argv) with every foreseeable error as one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a file name may hold what no terminal shows
    try:
        return main(sys.argv[1:] if argv is None else argv)
    except DataError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at exit
        return 1
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"{prog}: error: {error.strerror or error}{where}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"{prog}: error: Python package {error.name} is not installed; `make setup` installs it", file=sys.stderr)
        return 1
    except Exception as error:
        if not type(error).__module__.startswith("tensorflow"):
            raise
        print(f"{prog}: error: {str(getattr(error, 'message', error)).splitlines()[0]}", file=sys.stderr)
        return 1


class Progress:
    """How far the work is: a bar on a terminal, otherwise a line now and then, on standard error. For many threads."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._terminal = sys.stderr.isatty()
        self._begun = self._shown = time.monotonic()
        self._lock = threading.Lock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._terminal and self._done:
            self._show("\n")

    def advance(self, count: int = 1) -> None:
        """So much more is done."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._shown >= (_REDRAWN if self._terminal else _LINE_EVERY):
                self._shown = now
                self._show("" if self._terminal else "\n")

    def _show(self, end: str) -> None:
        rate = self._done / max(time.monotonic() - self._begun, 1e-9)
        filled = _WIDTH * self._done // max(self._total, 1)
        bar = f"\r[{'#' * filled:{_WIDTH}}] " if self._terminal else ""
        print(f"{bar}{self._done} of {self._total} {self._what}, {rate:.0f} a second", end=end, file=sys.stderr, flush=True)
