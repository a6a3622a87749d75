"""The commands, one row each, and the way that this process was called: a leaf that the first lines of scripts import.

`python train.py` and `cnn train` are the same command. Messages are written in the first form; `as_invoked` rewrites them in
the second one where the command was called so, as those that are pasted must work.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from base.errors import OptionError
from base.fields import escaped

_ANSWERED = ("--predict", "-h", "--help", "--version", "--list-configs")  # or written out
PACKAGE = "cnn_harness"  # the only name that an installation takes in site-packages
_ROOT = Path(__file__).resolve().parent.parent.parent


def _same(words: list[str]) -> list[str]:
    return words


def _to_predict(words: list[str]) -> list[str]:
    """Return the options that `cnn predict WEIGHTS PICTURE...` means; OptionError where nothing is to be predicted."""
    first = next((k for k, word in enumerate(words) if word.startswith("-")), len(words))
    answered = any(word.startswith(_ANSWERED) for word in words)
    if first < 2 and not answered:
        missing = "the pictures" if first else "the weights and the pictures"
        raise OptionError(f"{missing} are missing, as in efficientnet-lite0 PHOTO.jpg, before all options")
    return [*["--restore-path", *words[:1]] * (first > 0), *["--predict", *words[1:first]] * (first > 1), *words[first:]]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A row. `module`: the one that is run; `written`: the call in a checkout, if it is not `python <module>.py`; `takes`:
    the script whose options of runs it has beside its own; `usage`: the words before them; `words`: for the module."""

    module: str
    help: str
    written: str = ""
    takes: str = ""
    usage: str = ""
    words: Callable[[list[str]], list[str]] = _same

    @property
    def call(self) -> str:
        """The call in a checkout."""
        return self.written or f"python {self.module.replace('.', '/')}.py"


COMMANDS = {
    "train": Command(module="train", takes="train", usage="[FOLDER|CONFIGURATION] ", help="train a network"),
    "validate": Command(
        module="validation", takes="validation", usage="[RUN] ", help="validate checkpoints of a run, or weights"
    ),
    "restore": Command(module="restore", takes="restore", usage="RUN ", help="go on with a run"),
    "finetune": Command(
        module="tools.finetune", written="cnn finetune", takes="train",
        help="fit published weights to pictures of one's own",
    ),
    "sweep": Command(
        module="tools.sweep", written="cnn sweep", takes="train", help="train with many values of options, and compare them"
    ),
    "predict": Command(
        module="validation", takes="validation", usage="WEIGHTS PICTURE... ", words=_to_predict,
        help="name what photographs show: WEIGHTS PICTURE...",
    ),
    "export": Command(
        module="tools.export", written="cnn export", takes="validation",
        help="write a network for TensorFlow Lite, ONNX and others",
    ),
    "report": Command(
        module="tools.report", written="cnn report",
        help="write a run's page, or that of several",
    ),
    "plan": Command(
        module="tools.plan", written="cnn plan", takes="train",
        help="predict memory, rate and time of a training on a POD",
    ),
    "runs": Command(
        module="tools.runs", written="cnn runs",
        help="list the runs below a folder, and remove some",
    ),
    "poprun": Command(module="poprun", written="poprun", help="start a command as several instances that train together"),
    "weight-avg": Command(module="weight_avg", help="average checkpoints into one more"),
    "inference": Command(
        module="inference_embedded", takes="inference_embedded", usage="[RUN] ",
        help="measure inference with a frozen program",
    ),
    "compare": Command(module="tools.compare_runs", help="draw the curves of several runs into one picture"),
    "convert": Command(
        module="tools.datasets.convert", written="python -m Datasets.convert", help="turn pictures into TFRecord shards"
    ),
    "verify": Command(module="tools.datasets.verify", written="python -m Datasets.verify", help="check such shards"),
    "import-weights": Command(module="tools.import_weights", help="turn weights of other projects into a .npz"),
    "fit-planner": Command(module="tools.fit_planner", help="print the errors of the planner's predictions"),
    "kernels": Command(
        module="emulator.native.build", written="make kernels", help="compile the kernels in C++, for the norms' speed"
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of `cnn`, or of a program that is installed beside it, without a `command`. `prog`: how messages name `cnn`;
    `path`: the program's file, none for `python -m cnn_harness`."""

    prog: str
    command: str
    path: str = ""


_call: Call | None = None


def begin(call: Call) -> None:
    """Note how this process was called: once, before its command's module is run."""
    global _call
    _call = call


def current_call() -> Call | None:
    """The call, if it was one of `cnn`."""
    return _call


def prog(script: str) -> str:
    """Return the name that messages begin with: of the call, or else the script's."""
    return f"{_call.prog} {_call.command}" if _call and _call.command else script


def usage(script: str) -> str:
    """Return the words that come before the options of this call, or else a script's."""
    return COMMANDS[_call.command if _call and _call.command in COMMANDS else command_name(script)].usage


def command_name(module: str) -> str | None:
    """The command of a script."""
    return next((name for name, row in COMMANDS.items() if row.module in (module, f"tools.{module}")), None)


def as_invoked(text: str) -> str:
    """Return a text that names scripts, as `python train.py`, with the names that this call knows them by."""
    call = _call
    if call is None:
        return text
    return _written().sub(lambda found: f"{call.prog} {_names()[found['script']]}", text)


@cache
def _names() -> dict[str, str]:
    """The commands by the last words of their calls: train.py, Datasets.convert. The first of a script's counts."""
    calls = ((row.call.split("/")[-1].removeprefix("python ").removeprefix("-m "), name) for name, row in COMMANDS.items())
    return {call: name for call, name in reversed([*calls]) if call != name and not call.startswith("cnn ")}


@cache
def _written() -> re.Pattern[str]:
    scripts = "|".join(map(re.escape, _names()))
    return re.compile(rf"(?<![\w./-])(?:python (?:-m )?)?(?:tools/)?(?P<script>{scripts})(?![\w/]|: no such file)")


def in_shell(arguments: Sequence[str]) -> str:
    """Return arguments as a person would type them; control characters are escaped, as a terminal would obey them."""
    return escaped(shlex.join(arguments))


def in_checkout() -> bool:
    """Return whether the code is that of a checkout, which make sets up, and no installed copy."""
    return (_ROOT / "pyproject.toml").is_file()
