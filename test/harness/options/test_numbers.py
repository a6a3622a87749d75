"""Every command takes numbers in ASCII only, in the usual notations."""

from __future__ import annotations

import json

import pytest

from cnn_harness.base.errors import OptionError
from cnn_harness.harness.run import cli
from cnn_harness.LR_Schedules import stepped

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
WHOLE, DECIMAL = "batches_per_step", "epochs"


def parsed(*words: str):
    return cli.parse([*GIVEN, *words], "train", None, {}).options


@pytest.mark.parametrize("text", NO_NUMBERS)
@pytest.mark.parametrize("name", [WHOLE, DECIMAL, "weight_avg_N"])
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
