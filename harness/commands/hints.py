"""Command lines that a user can paste: how to resume, how to begin again, what comes next."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from base import plugins
from base.process import command_line, commands
from base.process.signals import StopRequest
from harness.cluster.membership import call_is_of_later_instance, under_poprun
from harness.run.run import Run


def command(script: str, *words: str) -> str:
    """The call of a script with these words, from the working directory: as `cnn` calls it, where this process was."""
    called = commands.current_call()
    if called:
        program = [_python(), "-m", commands.PACKAGE] if not called.path else [_program(called.path)]
        return commands.in_shell([*program, commands.command_name(script), *words])
    file, beside = plugins.ROOT / f"{script}.py", Path(sys.executable).with_name("cnn")  # where make has put it
    if not file.exists() and beside.exists():
        return commands.in_shell([_from_here(str(beside)), script, *words])
    file = file if file.exists() else plugins.ROOT / f"tools/{script}.py"
    return commands.in_shell([_python(), _from_here(str(file)), *words])


def _program(path: str) -> str:
    """A program by its name, if the shell finds the same, or else by its path."""
    found, shown = shutil.which(os.path.basename(path)), _from_here(path)
    if found and os.path.exists(path) and os.path.samefile(found, path):
        return os.path.basename(path)
    return path if os.sep not in shown else shown


def _python() -> str:
    """This interpreter, as the shell finds it from here."""
    python = _from_here(sys.executable)
    if os.path.isabs(python) or os.sep not in python:
        python = "python" if shutil.which("python") == sys.executable else sys.executable
    return python


def restoring(folder: Path) -> list[str]:
    """The words that name a run to any command."""
    return ["--restore-path", command_line.as_value(folder)]


def resuming(run: Run, folder: Path) -> list[str]:
    """The words of restore.py that resume a run."""
    return [*restoring(folder), *["--distributed"] * (run.cluster.source != "" and not run.cluster.by_poprun)]


@contextmanager
def repeatable(script: str, argv: list[str], state: str, label: str, alone: bool = False) -> Iterator[None]:
    """Inside, a signal before anything is saved leads to the line `state`, and to the same call after `label`. `alone`: one
    process does the same as all that poprun started."""
    try:
        yield
    except StopRequest as request:
        if not request.hinted and not call_is_of_later_instance(argv, script):
            request.hinted = True
            again = command(script, *argv) if alone or not under_poprun(os.environ) else "the same call of poprun"
            print(f"{state}\n{label + ':':<16} {again}")
        raise


def resumable(script: str, argv: list[str], alone: bool = True) -> AbstractContextManager[None]:
    """Return `repeatable` for a call that resumes a run: a signal before it saves leads to a hint to call again."""
    return repeatable(script, argv, "The run is as it was.", "Go on", alone)


def _from_here(path: str) -> str:
    """A path below the working directory by its place there, any other as it is, good from anywhere."""
    try:
        shown = os.path.relpath(path)
    except FileNotFoundError:  # the working directory has gone
        return path
    return path if shown.startswith("..") else shown
