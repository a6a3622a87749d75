"""The table of commands, and the way in which the user called this process.

`python train.py` and `cnn train` are the same command. The code writes messages with the first form. If the user called
`cnn`, `as_invoked` replaces it by the second form, so that the user can paste commands from messages.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import cnn_harness
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import escaped

_ANSWERED = ("--predict", "-h", "--help", "--version", "--list-configs")  # with these options, `cnn predict` needs no photos
PACKAGE = "cnn_harness"  # the only folder with code that an installation creates in site-packages


def _to_predict(words: list[str]) -> list[str]:
    """Return the arguments of validation.py for those of `cnn predict WEIGHTS PHOTO...`.

    Raise OptionError if the weights or the photos are missing.
    """
    first = next((k for k, word in enumerate(words) if word.startswith("-")), len(words))
    answered = any(word.startswith(_ANSWERED) for word in words)
    if first < 2 and not answered:
        missing = "the photos" if first else "the weights and the photos"
        raise OptionError(
            f"{missing} are missing; give weights and photos before all options, as in efficientnet-lite0 PHOTO.jpg"
        )
    return [*["--restore-path", *words[:1]] * (first > 0), *["--predict", *words[1:first]] * (first > 1), *words[first:]]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command.

    `module` is the module that runs, without the package's name. `written` is the call in a checkout, if it is not
    `python <module>.py`. `takes` is the script whose options the command accepts in addition to its own. `usage` shows the
    arguments before the options. `words` is a function that rewrites the arguments for the module.
    """

    module: str
    help: str
    written: str = ""
    takes: str = ""
    usage: str = ""
    words: Callable[[list[str]], list[str]] = list

    @property
    def call(self) -> str:
        """Return the call in a checkout."""
        return self.written or f"python {self.module.replace('.', '/')}.py"


COMMANDS = {
    "train": Command(module="train", takes="train", usage="[FOLDER|CONFIGURATION] ", help="train a network"),
    "validate": Command(
        module="validation", takes="validation", usage="[RUN] ", help="validate checkpoints of a run, or a weight file"
    ),
    "restore": Command(module="restore", takes="restore", usage="RUN ", help="resume a run"),
    "finetune": Command(
        module="tools.finetune", written="cnn finetune", takes="train",
        help="fine-tune published weights on your own photos",
    ),
    "sweep": Command(
        module="tools.sweep", written="cnn sweep", takes="train",
        help="train with many values of options and compare the runs",
    ),
    "predict": Command(
        module="validation", takes="validation", usage="WEIGHTS PHOTO... ", words=_to_predict,
        help="classify photos: WEIGHTS PHOTO...",
    ),
    "export": Command(
        module="tools.export", written="cnn export", takes="validation",
        help="export a network to TensorFlow Lite, ONNX and other formats",
    ),
    "report": Command(
        module="tools.report", written="cnn report",
        help="write an HTML report of one or more runs",
    ),
    "plan": Command(
        module="tools.plan", written="cnn plan", takes="train",
        help="predict memory, speed and duration of a training run on a POD",
    ),
    "systems": Command(
        module="tools.systems", written="cnn systems",
        help="print the facts of the systems that cnn plan knows",
    ),
    "runs": Command(
        module="tools.runs", written="cnn runs",
        help="list the runs below a folder, and delete some",
    ),
    "poprun": Command(module="poprun", written="poprun", help="start a command as several instances that train together"),
    "weight-avg": Command(module="weight_avg", help="average checkpoints"),
    "inference": Command(
        module="inference_embedded", takes="inference_embedded", usage="[RUN] ",
        help="measure inference with a frozen program",
    ),
    "compare": Command(
        module="tools.compare_runs", written="cnn compare", help="draw the curves of several runs in one chart"
    ),
    "convert": Command(
        module="tools.datasets.convert", written="python -m Datasets.convert", help="convert images to TFRecord shards"
    ),
    "verify": Command(module="tools.datasets.verify", written="python -m Datasets.verify", help="check a data set"),
    "import-weights": Command(
        module="tools.import_weights", written="cnn import-weights", help="convert weights of other projects to .npz"
    ),
    "fit-planner": Command(
        module="tools.fit_planner", written="cnn fit-planner", help="print the prediction errors of the planner"
    ),
    "kernels": Command(
        module="emulator.native.build", written="make kernels", help="compile the C++ kernels, which make norms faster"
    ),
    "completion": Command(
        module="tools.completion", written="cnn completion", help="print a script that completes options in your shell"
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of `cnn`, or of another installed program, for which `command` is "".

    `prog` is the name of `cnn` in messages. `path` is the program's file, or "" for `python -m cnn_harness`.
    """

    prog: str
    command: str
    path: str = ""


_call: Call | None = None


def begin(call: Call) -> None:
    """Record how this process was called, before the command's module runs."""
    global _call
    _call = call


def current_call() -> Call | None:
    """Return the call of `cnn`; None for a script."""
    return _call


def prog(script: str) -> str:
    """Return the name for the beginning of messages: `cnn COMMAND` if the user called `cnn`, otherwise `script`."""
    return f"{_call.prog} {_call.command}" if _call and _call.command else script


def usage(script: str) -> str:
    """Return the arguments before the options, as help shows them, for the called command or else for a script."""
    return COMMANDS[_call.command if _call and _call.command in COMMANDS else command_name(script)].usage


def command_name(module: str) -> str | None:
    """Return the name of the command that runs a module; None if no command does."""
    return next((name for name, row in COMMANDS.items() if row.module in (module, f"tools.{module}")), None)


def as_invoked(text: str) -> str:
    """If the user called `cnn`, replace script calls in a text, such as `python train.py`, by `cnn train`."""
    call = _call
    if call is None:
        return text
    return _written().sub(lambda found: f"{call.prog} {_names()[found['script']]}", text)


@cache
def _names() -> dict[str, str]:
    """Map each script, as written in messages (train.py, Datasets.convert), to the first command that runs it."""
    calls = ((row.call.split("/")[-1].removeprefix("python ").removeprefix("-m "), name) for name, row in COMMANDS.items())
    return {call: name for call, name in reversed([*calls]) if call != name and not call.startswith("cnn ")}


@cache
def _written() -> re.Pattern[str]:
    scripts = "|".join(map(re.escape, _names()))
    return re.compile(rf"(?<![\w./-])(?:python (?:-m )?)?(?P<script>{scripts})(?![\w/]|: no such file)")


def in_shell(arguments: Sequence[str]) -> str:
    """Return arguments quoted for a shell, with control characters escaped."""
    return escaped(shlex.join(arguments))


def in_checkout() -> bool:
    """Return whether the code is a checkout rather than an installed package."""
    return os.path.isfile(os.path.join(cnn_harness.ROOT, "pyproject.toml"))
