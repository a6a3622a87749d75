"""Rewrite messages for the Python API: `--micro-batch-size 16` becomes `micro_batch_size=16`."""

from __future__ import annotations

import re
from functools import partial

from cnn_harness.base.process import commands
from cnn_harness.harness.options.catalogue import all_options
from cnn_harness.harness.options.sections import COMMAND_LINE

_FLAG = re.compile(r"(?<![\w-])--(?P<name>[a-zA-Z][\w-]*)(?:(?P<gap>[ =])(?P<value>(?!-)[^\s;,()]*[^\s;,():.]))?")
_NUMBER = re.compile(r"[+-]?\d[\d.]*(?:e[+-]?\d+)?")
_NAMED = re.compile(r"[A-Z][A-Z0-9-]+|.*[/.].*")  # a placeholder such as DIR, or a path
_FUNCTIONS = {"train": "train", "restore": "train", "validation": "evaluate", "finetune": "finetune", "plan": "plan"}
_CALL = re.compile(
    r"(?:python )?(?<![\w/])(?:cnn (?P<command>train|finetune|plan)\b|(?P<script>train|restore|validation)\.py)"
    r"(?P<options>(?: --[^\s;,:()]+(?: [^\s;,:()-][^\s;,:()]*)?)*)"
)
_OTHER_COMMAND = re.compile(r"(?:python (?:-m )?[\w./]+|(?:cnn|make|srun) [\w-]+|poprun) [^;:,()\n]*")


def in_python(message: str) -> str:
    """Return a message with keyword arguments instead of options, and with functions instead of commands.

    Commands that have no function in Python are unchanged.
    """
    message = _CALL.sub(_function, message.replace(f"{COMMAND_LINE}: ", ""))
    parts, end = [], 0
    for other in _OTHER_COMMAND.finditer(message):
        parts += [_FLAG.sub(_keyword, message[end : other.start()]), other[0]]
        end = other.end()
    return commands.as_invoked("".join([*parts, _FLAG.sub(_keyword, message[end:])]))


def _function(found: re.Match[str]) -> str:
    words = _FLAG.sub(partial(_keyword, sure=True), found["options"]).split()
    given = [word for word in words if "=" in word]
    arguments = ", ".join(given) or ("restore_path=..." if found["script"] == "restore" else "")
    return " ".join([f"{_FUNCTIONS[found['command'] or found['script']]}({arguments})", *words[len(given) :]])


def _keyword(found: re.Match[str], sure: bool = False) -> str:
    """Return an option as a keyword argument. If `sure`, the next word is its value; otherwise it must look like one."""
    name, value = found["name"].replace("-", "_"), found["value"] or ""
    rest = f"{found['gap'] or ''}{value}"
    spelling = all_options(None).flags().get(f"--{found['name']}")
    if spelling and spelling.takes == "nothing":
        return f"{name.removeprefix('no_')}={not name.startswith('no_')}{rest}"
    if value and (_NUMBER.fullmatch(value) or _NAMED.fullmatch(value) or found["gap"] == "="):
        return f"{name}={value}"
    if value and spelling and (sure or value in spelling.option.meta["choices"]):
        return f'{name}="{value}"'
    if (rest and value not in ("and", "or")) or found.string[found.end() :].startswith(":"):
        return f"{name}{rest}"  # the subject of a sentence
    return f"{name}={rest}"
