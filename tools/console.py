"""The console commands of an installation: cnn with its commands, poprun, gc-profile and gc-info.

The modules of this project import each other by their names in a checkout, as base and train. An installation has all of
them in one package, whose folder is put before everything else that could be imported: neither the working directory nor
another project's files of these names count.
"""

from __future__ import annotations

import os
import runpy
import sys

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_HELP, _VERSION, _LIST = ("-h", "--help", "help"), "--version", "--list-configs"


def cnn() -> None:
    """The command cnn."""
    _begin("cnn")
    _run("cnn", os.path.abspath(sys.argv[0]))


def module() -> None:
    """The command python -m cnn_harness."""
    _begin("cnn")
    _run("python -m cnn_harness", "")


def poprun() -> None:
    """The command poprun."""
    _begin("poprun")
    import poprun

    poprun.script()


def gc_profile() -> None:
    """The command gc-profile."""
    _begin("gc-profile")
    from harness.commands.gc_profile import main

    sys.exit(main())


def gc_info() -> None:
    """The command gc-info."""
    _begin("gc-info")
    from harness.commands.gc_info import main

    sys.exit(main())


def _begin(prog: str) -> None:
    """Find the project's modules, in place of those beside the program's file or in the working directory, and let a
    signal end the command in one line from now on."""
    looked_there = not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
    sys.path[: int(looked_there)] = [HERE]
    from base.process import early_exit

    early_exit.install(prog)
    from base.process import commands

    if prog != "cnn" and not commands.in_checkout():  # a checkout's scripts may be called as well
        commands.begin(commands.Call(prog="cnn", command=""))


def _run(prog: str, path: str) -> None:
    """Run the command that the first word names, as Python would run its file."""
    from base.errors import OptionError
    from base.process import commands

    words = sys.argv[1:]
    listing = words[:1] == [_LIST] or (words[:1] != [] and words[0].startswith(f"{_LIST}="))
    name = "train" if listing else words[0] if words else ""
    row = commands.COMMANDS.get(name)
    if row is None:
        from base.process import command_line

        sys.exit(command_line.run(prog, _answer, words, (OptionError,)))
    commands.begin(commands.Call(prog=prog, command=name, path=path))
    try:
        sys.argv[1:] = row.words(words if listing else words[1:])
    except OptionError as error:
        from base.process import command_line

        print(f"{prog} {name}: error: {command_line.escaped_message(error)}", file=sys.stderr)
        sys.exit(2)
    runpy.run_module(row.module, run_name="__main__", alter_sys=True)


def _answer(words: list[str]) -> int:
    """Help, the version, or OptionError for a command that there is not."""
    from base import plugins, version
    from base.errors import OptionError
    from base.fields import short
    from base.process import commands

    first = words[0] if words else _HELP[0]
    if first == _VERSION:
        print(version.line())
        return 0
    if first not in _HELP:
        kind, known = ("option", [_HELP[1], _VERSION, _LIST]) if first.startswith("-") else ("command", [*commands.COMMANDS])
        near = plugins.did_you_mean(first, known) or ";"
        raise OptionError(f"no {kind} '{short(first)}'{near} cnn --help lists all")
    rows = [(name, row.help) for name, row in commands.COMMANDS.items()]
    rows += [("", ""), (_VERSION, "print the versions"), (f"{_LIST} [WORD]", "print the named configurations, a line each")]
    width = max(len(name) for name, _ in rows)
    print("usage: cnn COMMAND [option]...\n\nTrains convolutional networks on emulated IPUs.\n")
    print("\n".join(f"  {name:<{width}}  {text}".rstrip() for name, text in rows))
    print("\ncnn COMMAND --help shows a command's options.")
    return 0
