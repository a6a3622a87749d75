"""The original's printed commands: each is accepted unchanged, or listed as impossible."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field

import pytest
from manual import COMMANDS, REFUSED
from photos import write_imagenet

from cnn_harness import poprun
from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import command_line
from cnn_harness.harness.distributed import launch, poprun_options
from cnn_harness.harness.options import option_help
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import Prepared, prepare
from cnn_harness.tools import gc_profile

ROOT = plugins.ROOT
SCRIPTS = ("train", "validation", "restore", "inference_embedded")


@dataclass
class Call:
    """A script's words, and the environment from its launcher."""

    words: list[str]
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def script(self) -> str:
        assert re.fullmatch(r"python3?", self.words[0]) and self.words[1].endswith(".py"), self.words[:2]
        name = self.words[1].removesuffix(".py")
        assert name in SCRIPTS and (ROOT / self.words[1]).exists()
        return name


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("manual")
    write_imagenet(folder / "imagenet", 8, 8, shards=8)
    (folder / "run").mkdir()
    return {"<DIR>": str(folder / "imagenet"), "<RUN>": str(folder / "run")}


def launched(command: str, places: dict[str, str]) -> Call:
    """Return the command that a launcher starts; our launcher reads its own words."""
    for sign, path in places.items():
        command = command.replace(sign, path)
    call = Call(shlex.split(command), {"DATA_DIR": places["<DIR>"]})
    while "=" in call.words[0] and not call.words[0].startswith("-"):
        name, _, value = call.words.pop(0).partition("=")
        call.environ[name] = value
    if call.words[0] == "poprun":
        args = poprun_options.parse(call.words[1:])
        where = launch.layout(args.num_replicas, args.num_instances, args.ipus_per_replica, args.host, 2000)
        return Call(args.program, {**call.environ, **where.variables(0)})
    if call.words[0] == "mpirun":
        first = next(i for i, word in enumerate(call.words) if word.startswith("python"))
        for flag, value in zip(call.words, call.words[1:first]):
            if flag == "-x" and "=" in value:
                call.environ[value.partition("=")[0]] = value.partition("=")[2]
        return Call(call.words[first:], call.environ)
    if call.words[0] == "gc-profile":
        assert gc_profile.__doc__
        return Call(call.words[call.words.index("--") + 1 :], call.environ)
    return call


def resolved(call: Call) -> Prepared | None:
    """Return the run of a call, or None if it only asks for help."""
    parsed = cli.parse(
        call.words[2:], call.script, {"dataset": "imagenet"} if call.script == "restore" else None, call.environ
    )
    if parsed.options.main.help:
        assert "\n  --model-size " in option_help.help_text(parsed.catalogue, parsed.options, "train")
        return None
    return prepare(parsed.options, call.environ, parsed.notes, training=call.script in ("train", "restore"))


@pytest.mark.parametrize("name", COMMANDS)
def test_printed_commands_are_accepted(name, places):
    call = launched(COMMANDS[name], places)
    prepared = resolved(call)
    if prepared is None:
        return
    run = prepared.run
    text = COMMANDS[name]
    for flag, value in (
        ("batch-size", run.plan.micro_batch_size), ("micro-batch-size", run.plan.micro_batch_size), ("shards", run.plan.options.shards),
        ("gradient-accumulation-count", run.plan.accumulation), ("pipeline-depth", run.plan.accumulation),
    ):  # fmt: skip
        said = re.findall(rf"--{flag}[ =](\d+)", text)
        if said and call.script == "train":
            assert str(value) == said[-1], flag
    if "poprun" in text:
        instances = int(re.findall(r"--num-instances[ =](\d+)", text)[0])
        assert run.plan.instances == instances if call.script == "train" else prepared.cluster.size == instances
    elif "TF_CONFIG" in text:
        assert run.plan.instances == 2
    if "--precision" in text:
        assert run.plan.precision.name in text


@pytest.mark.parametrize("command", REFUSED)
def test_broken_commands_get_clear_errors(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    error = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(error):
        code = command_line.run("poprun", poprun.main, shlex.split(command)[1:], (OptionError,))
    assert code == 2 and REFUSED[command] in error.getvalue() and error.getvalue().count("\n") == 1
