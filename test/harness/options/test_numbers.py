"""Every command takes numbers in ASCII only, in the usual notations."""

from __future__ import annotations

import json
import re

import pytest
from commands import run

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import command_line
from cnn_harness.base.process.command_line import UsageError
from cnn_harness.harness.distributed import poprun_options
from cnn_harness.harness.run import cli, membership
from cnn_harness.harness.run.membership import TF_CONFIG
from cnn_harness.LR_Schedules import stepped
from cnn_harness.tools import gc_info
from cnn_harness.tools.datasets import convert

NO_NUMBERS = [
    "１２",
    "٣",
    "1_000",
    "3 ",
    " 3",
    "3\n",
    "\u00a03",
    "०",
    "0x10",
    "0o7",
    "0b1",
    "1e",
    "",
    "1,5",
    "−3",
    "²",
    "9" * 400,
]
GIVEN = ("--dataset", "cifar-10", "--generated-data")
ROOT = plugins.ROOT
PACKAGES = ("base", "harness", "emulator", "Models", "Datasets", "LR_Schedules", "Optimisers", "tools", "bench")
WHOLE, DECIMAL = "batches_per_step", "epochs"


def parsed(*words: str):
    return cli.parse([*GIVEN, *words], "train", None, {}).options


@pytest.mark.parametrize("text", NO_NUMBERS)
@pytest.mark.parametrize("name", [WHOLE, DECIMAL, "weight_avg_N", "model_size", "learning_rate_schedule"])
def test_odd_numbers_are_rejected_everywhere(name, text, tmp_path):
    with pytest.raises(OptionError, match=name.replace("_", "[_-]")):
        parsed(f"--{name.replace('_', '-')}", text) if text else parsed(f"--{name.replace('_', '-')}=")
    file = tmp_path / "c.yml"
    quoted, plain = json.dumps(text), text  # as text, and in YAML's own types, which strip blanks
    for written in [quoted] * (name != "weight_avg_N") + [plain] * (text != "" and text.strip() == text):
        file.write_text(f"a:\n  {name}: {written}\n", encoding="utf-8")
        with pytest.raises(OptionError, match=rf"c\.yml:2: (?:.*must be|no model size|{name} takes)"):
            parsed("--config", "a", "--config-path", str(file))


def test_usual_notations_are_accepted():
    found = parsed("--batches-per-step", "012", "--epochs", "+.5e1", "--weight-decay", "1.", "--loss-scaling", "1E2")
    values = found.values()
    assert [values[name] for name in (WHOLE, DECIMAL, "weight_decay", "loss_scaling")] == [12, 5.0, 1.0, 100.0]
    assert parsed("--rmsprop-base-decay-exp", "-3").training.rmsprop_base_decay_exp == -3
    assert stepped.parse_fractions("0.5, 0.75") == (0.5, 0.75)


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_cluster_and_poprun_reject_odd_numbers(text):
    three = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"index": text}}
    options = parsed("--distributed")
    with pytest.raises(OptionError, match="must be a whole number from 0 to 1"):
        membership.find(options, {TF_CONFIG: json.dumps(three)})
    port = {"cluster": {"worker": ["a:1", f"b:{text}"]}, "task": {"index": 0}}
    with pytest.raises(OptionError, match="is not host:port with a port"):
        membership.find(options, {TF_CONFIG: json.dumps(port)})
    if text:
        rank = {TF_CONFIG: json.dumps(three | {"task": {"index": 0}}), membership.OPENMPI[0]: text}
        with pytest.raises(OptionError, match="must be a whole number from 0 to 1"):
            membership.find(options, rank)
        with pytest.raises(OptionError, match="must be a whole number"):
            membership.find(parsed(), {membership.TOTAL: text, membership.LOCAL: "1", membership.OFFSET: "0"})
        for option in ("num-instances", "first-port", "only-output-from-instance"):
            with pytest.raises(OptionError, match=f"--{option}: "):
                poprun_options.parse([f"--{option}", text, "python"])


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_small_commands_reject_odd_numbers(text, tmp_path, capsys):
    average = ("--restore-path", tmp_path, "--filename", "x", "--mode", "mean")
    for option in ("-N", "--decay", "--discard-last"):
        result = run("weight_avg", *average, option, text)
        assert result.code == 2 and option in result.err and "Traceback" not in result.err
    for option in ("--shards", "--validation", "--jobs", "--seed"):
        with pytest.raises(UsageError, match=option):
            convert.main([str(tmp_path), str(tmp_path / "out"), option, text])
    with pytest.raises(SystemExit):
        gc_info.main(["--ipus", text])
    assert "--ipus" in capsys.readouterr().err


def test_argparse_options_never_use_plain_int():
    """Python's int() and float() accept digits of other scripts."""
    assert command_line.number(0, 1)("0.5") == 0.5
    ours = [*ROOT.glob("*.py"), *(file for name in PACKAGES for file in (ROOT / name).glob("*.py"))]
    assert [file.name for file in ours if re.search(r"type=(int|float)\b", file.read_text(encoding="utf-8"))] == []
