"""The console commands of an installation: cnn, poprun, gc-profile and gc-info."""

from __future__ import annotations

import os
import runpy
import sys

_HELP, _VERSION, _LIST = ("-h", "--help", "help"), ("--version", "version"), "--list-configs"


def cnn() -> None:
    """Run the command cnn."""
    _begin("cnn")
    _run("cnn", os.path.abspath(sys.argv[0]))


def module() -> None:
    """Run the command python -m cnn_harness."""
    _begin("cnn")
    _run("python -m cnn_harness", "")


def poprun() -> None:
    """Run the command poprun."""
    _begin("poprun")
    from cnn_harness import poprun

    poprun.script()


def gc_profile() -> None:
    """Run the command gc-profile."""
    _begin("gc-profile")
    from cnn_harness.tools.gc_profile import main

    sys.exit(main())


def gc_info() -> None:
    """Run the command gc-info."""
    _begin("gc-info")
    from cnn_harness.tools.gc_info import main

    sys.exit(main())


def _begin(prog: str) -> None:
    """From now on, a signal ends the command with a one-line message."""
    from cnn_harness.base.process import early_exit

    early_exit.install(prog)
    from cnn_harness.base.process import commands

    if prog != "cnn" and not commands.in_checkout():  # in a checkout, messages name scripts such as train.py instead
        commands.begin(commands.Call(prog="cnn", command=""))


def _run(prog: str, path: str) -> None:
    """Run the command that the first argument names as Python would run the command's file."""
    from cnn_harness.base.errors import OptionError
    from cnn_harness.base.process import commands

    words = sys.argv[1:]
    if words[:1] == ["help"] and words[1:]:  # cnn help train
        words = [words[1], *words[2:], "--help"]
    listing = words[:1] == [_LIST] or (words[:1] != [] and words[0].startswith(f"{_LIST}="))
    name = "train" if listing else words[0] if words else ""
    row = commands.COMMANDS.get(name)
    if row is None:
        from cnn_harness.base.process import command_line

        sys.exit(command_line.run(prog, _answer, words, (OptionError,)))
    commands.begin(commands.Call(prog=prog, command=name, path=path))
    try:
        sys.argv[1:] = row.words(words if listing else words[1:])
    except OptionError as error:
        from cnn_harness.base.process import command_line

        print(f"{prog} {name}: error: {command_line.escaped_message(error)}", file=sys.stderr)
        sys.exit(2)
    runpy.run_module(f"{commands.PACKAGE}.{row.module}", run_name="__main__", alter_sys=True)


def _answer(words: list[str]) -> int:
    """Print the help or the version; raise OptionError for an unknown command."""
    from cnn_harness.base import plugins, version
    from cnn_harness.base.errors import OptionError
    from cnn_harness.base.fields import short
    from cnn_harness.base.process import commands

    first = words[0] if words else _HELP[0]
    if first in _VERSION:
        print(version.line())
        return 0
    if first not in _HELP:
        options = [_HELP[1], _VERSION[0], _LIST]
        kind, known = ("option", options) if first.startswith("-") else ("command", [*commands.COMMANDS])
        near = plugins.did_you_mean(first, known) or ";"
        raise OptionError(f"there is no {kind} '{short(first)}'{near} cnn --help lists all {kind}s")
    rows = [(name, row.help) for name, row in commands.COMMANDS.items()]
    rows += [("", ""), (_VERSION[0], "print the versions"), (f"{_LIST} [WORD]", "list the named configurations")]
    width = max(len(name) for name, _ in rows)
    print("usage: cnn COMMAND [option]...\n\nTrain convolutional networks on emulated IPUs.\n")
    print("\n".join(f"  {name:<{width}}  {text}".rstrip() for name, text in rows))
    print("\nFor the options of a command, run cnn COMMAND --help.")
    return 0
