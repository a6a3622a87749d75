"""A call: the same from words and from values, joined, completed, and shown as words."""

from __future__ import annotations

import pytest

from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.sections import COMMAND_LINE
from cnn_harness.harness.run import cli

SAME = {
    "--epochs=3 --base-learning-rate-exponent=-9": {"epochs": 3, "base_learning_rate_exponent": -9},
    "--epochs -3 --lr 0.1": {"epochs": "-3", "lr": 0.1},
    "--lr cosine": {"lr": "cosine"},
    "--weight-avg-exp 0.9 0.8 --dry-run": {"weight-avg-exp": [0.9, 0.8], "dry_run": True},
    "--no-validation --no-lars-skip-list": {"validation": False, "lars_skip_list": [], "seed": None},
    "--no-logs --logs": {"no_logs": True, "no-logs": False},
    "--data-dir=-odd": {"data_dir": "-odd"},
}


@pytest.mark.parametrize("words", SAME)
def test_values_and_words_make_the_same_call(words):
    call = Call.of_values(SAME[words], "train")
    assert call.given == Call.of_words(words.split(), "train").given == Call.of_words(call.words, "train").given


def test_last_option_wins_and_switches_can_be_off():
    call = Call.of_words(["--epo", "2", "--autoresume", "--epochs", "3", "--no-autoresume", "--foo", "4"], "train")
    assert call.argument("epochs") == "3" and "epochs" in call and "autoresume" not in call and "foo" not in call
    call += Call.of_values({"epochs": 4, "autoresume": True}, "train")
    assert call.argument("epochs") == "4" and "autoresume" in call and call.words[-2:] == ("--epochs=4", "--autoresume")


def test_values_below_a_call_also_change_its_options():
    """As if they had been given: with their source, and below the call's own values."""
    call = Call.of_words(["--dataset", "cifar-10", "--epochs", "3", "--no-autoresume"], "train")
    values = {"epochs": 5, "autoresume": True, "skip_bad_records": 2, "class_weights": "balanced"}
    early = Call(call.script, call.words, call.bare, call.given, cli.resolve(call, environ={})).under(values)
    late = cli.resolve(call.under(values), environ={})
    assert early.parsed.options == late.options and late.options.training.epochs == 3
    assert late.options.sources["class_weights"] == f"{COMMAND_LINE}: --class-weights"
