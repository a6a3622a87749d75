"""Shells complete commands, options and values of options."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from cnn_harness.base import plugins
from cnn_harness.base.process.commands import COMMANDS
from cnn_harness.tools import completion
from cnn_harness.tools.completion import completions

SHELLS = {
    "bash": """. ./script; COMP_WORDS=({words}); COMP_CWORD={last}; _cnn cnn; printf '%s\\n' "${{COMPREPLY[@]}}" """,
    "zsh": """compdef() {{ : }}; compadd() {{ print -l -- ${{(P)2}} }}; _files() {{ print FILES }}
        . ./script; words=({words}); CURRENT=$(({last} + 1)); _cnn""",
    "fish": """source ./script; complete -C "{words}" """,
}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ex"], ["export"]),
        (["help", "pre"], ["predict"]),
        (["train", "--optimis"], ["--optimiser"]),
        (["train", "--lr-schedule", ""], plugins.names("LR_Schedules")),
        (["train", "--optimiser", "Ada"], ["Adam", "AdamW"]),
        (["train", "--config", "quick"], ["quickstart"]),
        (["train", "quick"], ["quickstart"]),
        (["export", "logs/run", "--int8"], ["--int8"]),  # an option of the command itself
        (["export", "logs/run", "--data-d"], ["--data-dir"]),  # an option of validation.py
        (["report", "--no-e"], ["--no-evaluation"]),
        (["restore", "lo"], []),  # the shell completes folders
        (["train", "--data-dir", ""], []),
        (["no-command", ""], []),
    ],
)
def test_words_are_completed(words, found):
    assert completions(words) == found


def test_every_command_is_completed():
    assert set(completions([""])) >= {*COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_options(name):
    assert "--version" in completions([name, "--"])


@pytest.mark.parametrize("shell", SHELLS)
def test_script_works_in_shell(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is missing")
    (tmp_path / "script").write_text(completion.SCRIPTS[shell])
    call = tmp_path / "cnn"
    call.write_text(f'#!/bin/sh\ncd "{plugins.ROOT}" && exec "{sys.executable}" -m cnn_harness "$@"\n')
    call.chmod(0o755)
    for words, found in (("cnn train --optimiser Ada", ["Adam", "AdamW"]), ("cnn help pre", ["predict"])):
        program = SHELLS[shell].format(words=words, last=len(words.split()) - 1)
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
        plain = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
        done = subprocess.run(
            [shell, *plain, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
        )
        assert done.stdout.split() == found, done.stderr
