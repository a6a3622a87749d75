"""Signals before a command has begun and after it has ended, and missing packages: each ends the process with one line.

The first lines of every script call this, as the imports below them take most of a second, in which an interrupt would
otherwise be a traceback. Few modules are imported here for the same reason.
"""

import os
import signal
import sys
from functools import partial

BEFORE = " before it began: nothing is changed, and the same call can be made again"
INSTALLED = ("tensorflow", "numpy", "yaml", "PIL", "grpc", "google")  # as imported, by `make setup`


def install(prog: str) -> None:
    """Let such a signal, or a missing package, end the process from now on at once, in one line."""
    prog = _as_called(prog)
    for number in stop_signals():
        signal.signal(number, partial(_leave, prog, BEFORE))
    sys.excepthook = partial(_report_import_error, prog)


def mark_begun(prog: str) -> None:
    """Note that the command may have changed something when a signal comes from now on, up to its very end."""
    prog = _as_called(prog)
    for number in stop_signals():
        if getattr(signal.getsignal(number), "func", None) is _leave:
            signal.signal(number, partial(_leave, prog, ""))


def _as_called(prog: str) -> str:
    """The name that messages begin with: where `cnn` was called, it has imported the table of commands."""
    commands = sys.modules.get("base.process.commands")
    return commands.prog(prog) if commands else prog


def missing_package_message(error: BaseException) -> str | None:
    """The message for a missing package; None for any other error."""
    name = getattr(error, "name", None) or ""
    if not isinstance(error, ModuleNotFoundError) or name.split(".")[0] not in INSTALLED:
        return None
    remedy = "`make setup` installs it for .venv/bin/python"
    from base.process import commands

    if not commands.in_checkout():
        remedy = "pip installs it with the wheel, unless it is told --no-deps"
    return f"Python package {name} is not installed in {sys.executable}; {remedy}"


def starved_message(error: BaseException) -> str | None:
    """The message for an import that found too little memory; None for any other error."""
    if isinstance(error, MemoryError):  # options, which could be others, have not been read yet
        return "out of memory: give more (ulimit -v, ulimit -d)"
    from base.process import tf_runtime

    return tf_runtime.starved_message(error)


def _report_import_error(prog: str, kind: type, error: BaseException, trace: object) -> None:
    reason = missing_package_message(error) or starved_message(error)
    if reason:
        print(f"{prog}: error: {reason}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to end. A SIGHUP that is ignored, as under nohup, stays so."""
    hung_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, *hung_up)  # poprun says it with SIGUSR1


def _leave(prog: str, when: str, number: int, frame: object) -> None:
    try:
        os.write(2, f"\n{prog}: stopped by {signal.Signals(number).name}{when}\n".encode())
    finally:  # also when the terminal has gone
        os._exit(128 + number)
