"""Print one line instead of a traceback if a signal comes while a script starts or exits, or if a package is missing.

Every script calls `install` before its other imports, which take most of a second. Therefore this file imports few
modules.
"""

import os
import signal
import sys
from functools import partial

BEFORE = " before it began; nothing was changed, so run the same command again"
INSTALLED = (
    "tensorflow",
    "numpy",
    "yaml",
    "PIL",
    "grpc",
    "google",
)  # import names; `make setup` installs these packages


def install(prog: str) -> None:
    """From now on, if a signal comes or a package is missing, print one line and end the process."""
    prog = _as_called(prog)
    for number in stop_signals():
        signal.signal(number, partial(_leave, prog, BEFORE))
    sys.excepthook = partial(_report_import_error, prog)


def mark_begun(prog: str) -> None:
    """Record that the command has begun, so that a later signal no longer reports that nothing was changed."""
    prog = _as_called(prog)
    for number in stop_signals():
        if getattr(signal.getsignal(number), "func", None) is _leave:
            signal.signal(number, partial(_leave, prog, ""))


def _as_called(prog: str) -> str:
    """Return the name for the beginning of messages. The table of commands is imported so early only by `cnn`."""
    commands = sys.modules.get("cnn_harness.base.process.commands")
    return commands.prog(prog) if commands else prog


def missing_package_message(error: BaseException) -> str | None:
    """Return the message for a missing package; None for any other error."""
    name = getattr(error, "name", None) or ""
    if not isinstance(error, ModuleNotFoundError) or name.split(".")[0] not in INSTALLED:
        return None
    remedy = "run `make setup`, which installs it for .venv/bin/python"
    from cnn_harness.base.process import commands

    if not commands.in_checkout():
        remedy = "install the wheel again, without --no-deps"
    return f"Python package {name} is not installed in {sys.executable}; {remedy}"


def starved_message(error: BaseException) -> str | None:
    """Return the message if an import ran out of memory; None for any other error."""
    if isinstance(error, MemoryError):  # no options have been read yet, so suggest none
        return "out of memory: raise the limit (ulimit -v, ulimit -d)"
    from cnn_harness.base.process import tf_runtime

    return tf_runtime.starved_message(error)


def _report_import_error(prog: str, kind: type, error: BaseException, trace: object) -> None:
    reason = missing_package_message(error) or starved_message(error)
    if reason:
        print(f"{prog}: error: {reason}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to stop. If SIGHUP is ignored, as under nohup, keep ignoring it."""
    hung_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, *hung_up)  # poprun sends SIGUSR1


def _leave(prog: str, when: str, number: int, frame: object) -> None:
    try:
        os.write(2, f"\n{prog}: stopped by {signal.Signals(number).name}{when}\n".encode())
    finally:  # the process must exit even if the terminal is closed
        os._exit(128 + number)
