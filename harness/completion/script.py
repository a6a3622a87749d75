"""Prints a script that lets a shell complete the command cnn: commands, options, their values, configurations, paths.

eval "$(cnn completion bash)"                                   in ~/.bashrc
source <(cnn completion zsh)                                    in ~/.zshrc, below compinit
cnn completion fish > ~/.config/fish/completions/cnn.fish       once
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import startup

    startup.begin("cnn completion")

import argparse
import sys

from base.process import command_line, commands
from harness.commands import entry
from harness.completion import shells, tables


def main(argv: list[str]) -> int:
    """parse -> print."""
    parser = command_line.Parser(
        prog="cnn completion", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shell", choices=tables.SHELLS, help="the shell that is to complete")
    shell = parser.parse_args(argv).shell
    print(shells.script(shell, {name: tables.of(name) for name in commands.COMMANDS}), end="")
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run("cnn completion", main, None, entry.WRONG_INPUT))
