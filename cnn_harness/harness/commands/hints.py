"""Build command lines that a user can paste, to resume a run or to repeat a call."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cnn_harness.base import plugins
from cnn_harness.base.errors import Leave
from cnn_harness.base.process import command_line, commands
from cnn_harness.base.process.signals import StopRequest
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.run.cluster import Cluster
from cnn_harness.harness.run.membership import call_is_of_later_instance, under_poprun


def command(script: str, *arguments: str) -> str:
    """Return the command line of a script with these arguments, in the style in which the user called this process."""
    call, name = commands.current_call(), commands.command_name(script)
    file, beside = plugins.ROOT / f"{script}.py", Path(sys.executable).with_name("cnn")  # make installs it there
    if call:
        program = [_shortest(call.path), name] if call.path else [_shortest(sys.executable), "-m", commands.PACKAGE, name]
    elif file.exists():
        program = [_shortest(sys.executable), _from_here(str(file))]
    elif beside.exists():
        program = [_shortest(str(beside)), script]
    else:
        program = [_shortest(sys.executable), "-m", commands.PACKAGE, script]
    return commands.in_shell([*program, *arguments])


def _shortest(program: str) -> str:
    """Return the name of a program if the shell finds the program by name, otherwise its path."""
    name = os.path.basename(program)
    found = shutil.which(name)
    return name if found and os.path.exists(program) and os.path.samefile(found, program) else _from_here(program)


def restoring(folder: Path) -> list[str]:
    """Return the arguments that name a run directory."""
    return ["--restore-path", command_line.as_value(folder)]


def resuming(cluster: Cluster, folder: Path) -> list[str]:
    """Return the arguments of restore.py that resume a run."""
    return [*restoring(folder), *["--distributed"] * (cluster.source != "" and not cluster.by_poprun)]


def repeating(call: Call) -> str:
    """Return the command line that repeats a call."""
    return command(call.script, *call.words)


@contextmanager
def repeatable(call: Call, state: str, label: str, alone: bool = False) -> Iterator[None]:
    """If a signal stops this context, print `state`, then `label` and the command that repeats the call.

    If `alone`, one process can repeat the work of all processes that poprun started.
    """
    try:
        yield
    except (StopRequest, Leave) as stop:
        leave = Leave(stop)
        if isinstance(leave.error, StopRequest) and not leave.hinted and not call_is_of_later_instance(call):
            again = repeating(call) if alone or not under_poprun(os.environ) else "repeat the call of poprun"
            print(f"{state}\n{label + ':':<16} {again}")
        raise Leave(leave, hinted=True) from None


def resumable(call: Call, alone: bool = True) -> AbstractContextManager[None]:
    """Return `repeatable` for a call that resumes a run and has not saved a checkpoint yet."""
    return repeatable(call, "The run is unchanged.", "Resume", alone)


def _from_here(path: str) -> str:
    """Return a path inside the working directory as a relative path; return other paths unchanged."""
    try:
        shown = os.path.relpath(path)
    except FileNotFoundError:  # the working directory was deleted
        return path
    return path if shown.startswith("..") else shown
