"""Complete commands, options and their values in a shell.

cnn completion bash         print a script that switches completion on; also for zsh and fish
cnn completion words ...    print the completions of the last word of a call of cnn; exit code 1 if there are none
"""

from __future__ import annotations

import io
import re
import runpy
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.base.process import commands
from cnn_harness.base.process.commands import COMMANDS, Command
from cnn_harness.harness.commands import answers
from cnn_harness.harness.options import configs
from cnn_harness.harness.options.call import DEFAULT_CONFIG_PATH, Call
from cnn_harness.harness.options.catalogue import PLUGINS, all_options

# If there are no completions, the shell completes names of files and folders.
SCRIPTS = {
    "bash": """\
_cnn() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _cnn cnn
""",
    "zsh": """\
_cnn() {
    local -a found
    found=(${(f)"$($words[1] completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _cnn cnn
""",
    "fish": """\
function __cnn
    set -l words (commandline -opc) (commandline -ct)
    $words[1] completion words $words[2..] 2>/dev/null
    or __fish_complete_path $words[-1]
end
complete -c cnn -f -a '(__cnn)'
""",
}
_WORDS = "words"
_GENERAL = ("help", "--help", "--version", "--list-configs")
_OWN = re.compile(r"^  (?:-\w(?: \S+)?, )?(--[\w-]+)", re.MULTILINE)  # an option in the help of a command


def main(call: Call) -> int:
    """Print a script, or the completions of a call; return the exit code."""
    if call.words[:1] == (_WORDS,):
        found = completions(call.words[1:])
        print(*found, sep="\n", end="\n" * bool(found))
        return int(not found)
    shells = ", ".join(SCRIPTS)
    _, words, _ = answers.own_options(
        answers.OwnOptions, call, "cnn completion SHELL", __doc__, {"SHELL": f"the shell that reads the script: {shells}"}
    )
    if not words or words[0] not in SCRIPTS:
        raise OptionError(f"{f'{short(words[0])} is no shell' if words else 'the shell is missing'}; give one of {shells}")
    print(SCRIPTS[words[0]], end="")
    return 0


def completions(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of the words after cnn; none if it may be the name of a file or folder."""
    *before, last = words or [""]
    row = COMMANDS.get(before[0]) if before else None
    if not before:
        found = [*COMMANDS, *_GENERAL]
    elif before == [_GENERAL[0]]:
        found = [*COMMANDS]
    elif row is None:
        found = []
    elif last.startswith("-"):
        found = _flags(row)
    else:
        found = _values(row, before)
    return sorted({word for word in found if word.startswith(last)})


def _flags(row: Command) -> list[str]:
    """Return the options of a command: those of the script whose options it takes, and its own, which are in its help."""
    shared = all_options(row.takes).flags() if row.takes else {}
    flags = [flag for flag, spelling in shared.items() if spelling.canonical and flag.startswith("--")]
    return flags if row.module == row.takes else [*flags, *_OWN.findall(_help(row))]


def _help(row: Command) -> str:
    text, sys.argv[1:] = io.StringIO(), ["--help"]
    with redirect_stdout(text), redirect_stderr(io.StringIO()), suppress(SystemExit):
        runpy.run_module(f"{commands.PACKAGE}.{row.module}", run_name="__main__", alter_sys=True)
    return text.getvalue()


def _values(row: Command, before: Sequence[str]) -> Sequence[str]:
    """Return the values that the last word may have after these words."""
    spelling = all_options(row.takes).flags().get(before[-1]) if row.takes else None
    if spelling is None:
        return _configurations() if row.takes == row.module == "train" and len(before) == 1 else ()
    option = spelling.option
    folder = {name: folder for folder, name, _ in PLUGINS}.get(option.name)
    if option.name in ("config", "list_configs"):
        return _configurations()
    return plugins.names(folder) if folder else option.meta["choices"] or ()


def _configurations() -> list[str]:
    return [line.split()[0] for line in configs.listing(str(DEFAULT_CONFIG_PATH), configs.ALL).splitlines()]


if __name__ == "__main__":
    sys.exit(answers.run_command("completion", main, None))
