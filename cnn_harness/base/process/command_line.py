"""Run a command: parse its options, and turn expected errors into one line and an exit code.

Exit codes: 2 for wrong input, 1 for a failure at run time, 128 + the signal's number after a signal.
"""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from cnn_harness.base import errors, plugins, version
from cnn_harness.base.fields import decimal_number, escaped, short
from cnn_harness.base.process import commands, early_exit, orphans, signals, tf_runtime

_UNLIMITED = 999_999_999
_OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)  # errors caused by the path that the user gave
Errors = tuple[type[Exception], ...]


class UsageError(Exception):
    """Wrong arguments on the command line."""


class HelpParser(argparse.ArgumentParser):
    """A parser whose help writes commands as the user called them: `cnn train` or `python train.py`."""

    def format_help(self) -> str:
        """Return the help text."""
        return commands.as_invoked(super().format_help())


class Parser(HelpParser):
    """A parser with the option --version. Wrong arguments raise UsageError."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.add_argument("--version", action="version", version=version.line(), help="print the versions and stop")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the options. Raise UsageError for an extra argument or an unknown option, and suggest similar options."""
        known, rest = self.parse_known_args(args, namespace)
        unknown = [word.partition("=")[0] for word in rest if word.startswith("-")]
        if unknown:
            flags = [flag for each in self._actions for flag in each.option_strings if flag.startswith("--")]
            self.error(f"unknown option {short(unknown[0])}{plugins.did_you_mean(unknown[0], flags)}")
        if rest:
            self.error(f"unexpected argument {short(rest[0])}")
        return known

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the options and the unknown words.

        Raise UsageError for an empty value, because an empty path would mean the current folder.
        """
        known, rest = super().parse_known_args(args, namespace)
        for action in self._actions:
            value = getattr(known, action.dest, None)
            if value != action.default and "" in (value if isinstance(value, list) else [value]):
                name = "/".join(action.option_strings) or action.metavar or action.dest
                self.error(f"{name} needs a value, but the given value is empty")
        return known, rest

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def int_between(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a function for argparse's `type=` that reads a whole number from `least` to `most`."""
    largest = _UNLIMITED if most is None else most

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 11 and least <= int(text) <= largest):
            limits = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{short(text)} is not a whole number {limits}")
        return int(text)

    return read


def number(least: float, most: float, ends: bool = True) -> Callable[[str], float]:
    """Return a function for argparse's `type=` that reads a number from `least` to `most`.

    If `ends` is false, the number must not equal a limit.
    """

    def read(text: str) -> float:
        try:
            value = decimal_number(text)
        except ValueError:
            value = math.nan
        if not (least <= value <= most and (ends or value not in (least, most))):
            raise argparse.ArgumentTypeError(f"{short(text)} must be between {least:g} and {most:g}")
        return value

    return read


def as_value(path: Path) -> str:
    """Return a path as an option's value. Prefix ./ to a path that begins with a dash, which would be read as an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def run(
    prog: str, main: Callable[[list[str]], int], argv: list[str] | None, wrong: Errors, failures: Errors = (),
    unprintable: str = "replace",
) -> int:  # fmt: skip
    """Call main(argv) and return the exit code. Print an expected error as one line on standard error.

    Expected errors are the types `wrong` (exit code 2) and `failures` (exit code 1), signals, missing packages, and errors
    of the operating system and of TensorFlow. `unprintable` is the error handler for characters that standard output
    cannot encode. Errors may be raised in a Leave.
    """
    prog, seconds = commands.prog(prog), None
    early_exit.mark_begun(prog)
    for stream, handling in ((sys.stdout, unprintable), (sys.stderr, "backslashreplace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=handling)  # a run must not fail because a terminal lacks a character

    def call() -> int:
        nonlocal seconds
        try:
            return main(sys.argv[1:] if argv is None else argv)
        except errors.Answered:
            return 0
        except errors.Leave as leave:
            seconds = leave.seconds
            raise leave.error from leave.error.__cause__

    try:
        code = _code(prog, call, wrong, failures)
    except Exception as error:
        if seconds is None:
            raise
        traceback.print_exception(error)
        code = 1
    if seconds is not None:
        _end_process(code, seconds)
    return code


def _code(prog: str, call: Callable[[], int], wrong: Errors, failures: Errors) -> int:
    """Return the exit code of a call. Print expected errors, and raise other errors."""
    try:
        with signals.stoppable() as stop:
            orphans.watch(os.environ)
            try:
                code = call()
                sys.stdout.flush()  # report a failed write here rather than at interpreter exit
                return code
            except Exception as error:
                try:
                    return _reported(prog, error, wrong, failures)
                except Exception:
                    stop.raise_if_received()  # a library may have replaced the StopRequest by another error
                    raise
    except signals.StopRequest as request:
        with suppress(OSError):
            print(f"{prog}: stopped by {request}", file=sys.stderr)
        return 128 + request.number


def _end_process(code: int, seconds: float) -> NoReturn:
    """End the process after some seconds, without the interpreter's clean-up."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the stream, or the pipe's reading end, is closed
            stream.flush()
    if seconds:
        with suppress(OSError):
            wait = f"import time; time.sleep({seconds}); raise SystemExit({code})"
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", wait])
    os._exit(code)


def escaped_message(text: object) -> str:
    """Return an error's message, with control characters escaped. The list below the message keeps its lines."""
    message, listed = errors.parts(text) if isinstance(text, Exception) else (str(text), "")
    return "\n".join(map(escaped, (message, *listed.splitlines())))


def _give_up_standard_output() -> None:
    """Discard buffered output. Otherwise the interpreter tries to write it again at exit, and prints an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reported(prog: str, error: Exception, wrong: Errors, failures: Errors) -> int:
    """Print the error and return the exit code; raise unexpected errors again."""

    def report(text: object, code: int) -> int:
        print(f"{prog}: error: {commands.as_invoked(escaped_message(text))}", file=sys.stderr)
        return code

    try:
        raise error
    except (UsageError, *wrong) as error:
        return report(error, 2)
    except failures as error:
        return report(error, 1)
    except ModuleNotFoundError as error:
        if early_exit.missing_package_message(error) is None:
            raise
        return report(early_exit.missing_package_message(error), 1)
    except (MemoryError, ImportError, RuntimeError) as error:
        if tf_runtime.starved_message(error) is None:
            raise
        return report(tf_runtime.starved_message(error), 1)
    except BrokenPipeError as error:
        _give_up_standard_output()
        return (
            report(f"{error.strerror}: {error.filename}", 1) if error.filename else 1
        )  # the file name is set only if the log of a run fails
    except OSError as error:
        if error.filename == signals.STANDARD_OUTPUT:
            _give_up_standard_output()
        where = f": {short(error.filename)}" if error.filename else ""
        return report(f"{error.strerror or error}{where}", 2 if error.errno in _OF_NAMES else 1)
    except Exception as error:
        if not tf_runtime.is_of_tensorflow(error):
            raise
        return report(tf_runtime.device_error(error), 1)
