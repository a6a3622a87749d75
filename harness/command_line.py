"""The edge of every command: foreseeable errors as one line and an exit code (2: wrong input, 1: failure at run time, 128 +
the signal's number: stopped by one)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from harness import quiet, signals, tether

_INSTALLED = ("tensorflow", "numpy", "yaml", "PIL")
_UNLIMITED = 999_999_999
Errors = tuple[type[Exception], ...]


class UsageError(Exception):
    """Wrong words on the command line."""


class Parser(argparse.ArgumentParser):
    """Wrong options as every other wrong input."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Reads a whole number between the two."""
    largest = _UNLIMITED if most is None else most

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 11 and least <= int(text) <= largest):
            limits = f"from {least} on" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text} is not a whole number {limits}")
        return int(text)

    return read


def run(
    prog: str, main: Callable[[list[str]], int], argv: list[str] | None, wrong: Errors, failures: Errors = (),
    unprintable: str = "replace",
) -> int:  # fmt: skip
    """main(argv) with every foreseeable error as one line on standard error: those of `wrong` input, `failures`, and what
    the system, TensorFlow and missing packages give; and a signal that asks to end. `unprintable`: what becomes of
    characters that standard output lacks.
    """
    for stream, errors in ((sys.stdout, unprintable), (sys.stderr, "backslashreplace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)  # a terminal without our characters must not end a run
    try:
        with signals.stoppable() as stop:
            tether.watch(os.environ)
            try:
                return main(sys.argv[1:] if argv is None else argv)
            except Exception as error:
                try:
                    return _told(prog, error, wrong, failures)
                except Exception:
                    stop.raise_if_received()  # a library may have made something else of the request
                    raise
    except signals.StopRequest as asked:
        with suppress(OSError):
            print(f"{prog}: stopped by {asked}", file=sys.stderr)
        return 128 + asked.number


def _told(prog: str, error: Exception, wrong: Errors, failures: Errors) -> int:
    """Says what went wrong; the exit code. What nobody foresaw is raised again."""

    def told(text: object, code: int) -> int:
        print(f"{prog}: error: {text}", file=sys.stderr)
        return code

    try:
        raise error
    except (UsageError, *wrong) as error:
        return told(error, 2)
    except failures as error:
        return told(error, 1)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _INSTALLED:
            raise
        return told(f"Python package {error.name} is not installed; `make setup` installs it", 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at exit
        return 1
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return told(f"{error.strerror or error}{where}", 1)
    except Exception as error:
        if not type(error).__module__.startswith("tensorflow"):
            raise
        return told(quiet.device_error(error), 1)
