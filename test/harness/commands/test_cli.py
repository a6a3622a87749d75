"""The command line: which value wins, how options may be spelled, and the errors of mistyped calls."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import run, succeed
from PIL import Image

from cnn_harness.base import plugins, version
from cnn_harness.base.errors import Answered, DataError, OptionError
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan.options import PASSES
from cnn_harness.harness.commands import entry, hints
from cnn_harness.harness.options import call, catalogue, configs
from cnn_harness.harness.options.call import Call, Parsed
from cnn_harness.harness.options.other_names import OTHER_NAMES, OTHER_VALUES
from cnn_harness.harness.options.sources import DEFAULT_CONFIG_PATH
from cnn_harness.harness.run import cli

CIFAR = ("--dataset", "cifar-10")
IMAGENET = "--dataset imagenet --data-dir nowhere"  # parsing opens no data


def parse(
    words: str | Sequence[str], script: str = "train", recorded: Mapping[str, Any] | None = None, **environ: str
) -> Parsed:
    """Parse a call; the data set is CIFAR-10 unless the call names one."""
    words = shlex.split(words) if isinstance(words, str) else list(words)
    named = any(word.startswith(("--dataset", "--data-dir", "--config")) for word in words)
    return cli.parse([*([] if named else CIFAR), *words], script, recorded, environ)


def values(words: str | Sequence[str], *names: str, **kwargs: Any) -> list[Any]:
    found = parse(words, **kwargs).options.values()
    return [found[name] for name in names]


def refused(words: str | Sequence[str], **kwargs: Any) -> str:
    """Return the first line of the message, which must be complete."""
    with pytest.raises((OptionError, DataError)) as caught:
        parse(words, **kwargs)
    first = str(caught.value).splitlines()[0]
    assert first and not first.endswith(":")
    return first


@pytest.fixture
def block(tmp_path):
    """Return words that select a block with these keys."""

    def write(**keys: object) -> str:
        keys = {"dataset": "cifar-10", **keys}
        (tmp_path / "c.yml").write_text("a:\n" + "".join(f"  {key}: {value}\n" for key, value in keys.items()))
        return f"--config a --config-path {tmp_path}/c.yml "

    return write


# Precedence


@pytest.mark.parametrize(
    "name, words, in_block, recorded, expected",
    [
        ("momentum", "--momentum 0.5", 0.6, 0.7, [0.9, 0.7, 0.6, 0.5]),  # field default below all
        ("batches_per_step", "--batches-per-step 5", 6, 7, [1000, 7, 6, 5]),
        ("weight_decay", "--weight-decay 0", 0.6, 0.7, [1e-6, 0.7, 0.6, 0.0]),  # the model's default below all
        ("micro_batch_size", "--batch-size 5", 6, 7, [32, 7, 6, 5]),
        ("groups", "--groups 8", 4, 2, [16, 2, 4, 8]),
        ("warmup_epochs", "--warmup-epochs 0", 6, 7, [5.0, 7.0, 6.0, 0.0]),
        ("learning_rate_schedule", "--learning-rate-schedule 0.5", "0.6,0.7", "0.7", ["0.5,0.75", "0.7", "0.6,0.7", "0.5"]),
        ("normalise_input", "--no-normalise-input", "true", False, [False, False, True, False]),
        ("dataset_cache", "--dataset-cache", "false", True, [True, True, False, True]),
        ("optimiser", "--optimiser sgd", "Momentum", "SGD", ["SGD", "SGD", "momentum", "SGD"]),
        ("stochastic_rounding", "--no-stochastic-rounding", "ON_prng_stable", "ON", ["ON", "ON", "ON_prng_stable", "OFF"]),
        ("available_memory_proportion", "--available-memory-proportion 0.1", "[0.2, 0.3]", [0.4],
         [(), (0.4,), (0.2, 0.3), (0.1,)]),
    ],
)  # fmt: skip
def test_command_line_beats_block_beats_recorded_run(block, name, words, in_block, recorded, expected):
    calls = [
        values("", name, script="restore"),
        values("", name, script="restore", recorded={name: recorded}),
        values(block(**{name: in_block}), name, script="restore", recorded={name: recorded}),
        values(block(**{name: in_block}) + words, name, script="restore", recorded={name: recorded}),
    ]
    assert [value for (value,) in calls] == expected


@pytest.mark.parametrize(
    "keys, words, expected",
    [
        ({"epochs": 4}, "--iterations 2", {"epochs": None, "iterations": 2}),
        ({"iterations": 4}, "--epochs 2", {"epochs": 2.0, "iterations": None}),
        ({}, "--iterations 2", {"epochs": None, "iterations": 2}),
        ({"abs_learning_rate": 0.1}, "--base-learning-rate -11",
         {"abs_learning_rate": None, "base_learning_rate_exponent": -11.0}),
        ({"abs_learning_rate": 0.1}, "--base-learning-rate 0",
         {"abs_learning_rate": None, "base_learning_rate_exponent": 0.0}),
        ({"base_learning_rate_exponent": 0}, "--abs-learning-rate 0.1",
         {"abs_learning_rate": 0.1, "base_learning_rate_exponent": None}),
        ({"base_learning_rate_exponent": 0}, "", {"base_learning_rate_exponent": 0.0}),
        ({}, "--abs-learning-rate 0.1", {"abs_learning_rate": 0.1, "base_learning_rate_exponent": None}),
        ({"batch_norm": True}, "--group-norm", {"batch_norm": False, "group_norm": True}),
        ({"group_norm": True}, "--batch-norm", {"batch_norm": True, "group_norm": False}),
        ({}, "--group-norm", {"batch_norm": False, "group_norm": True}),
        ({"batch_norm": True, "model": "efficientnet"}, "--group-norm", {"batch_norm": False, "group_norm": True}),
        # a switch that is off does not count: the model's default returns
        ({"batch_norm": True, "dataset": "imagenet"}, "--no-batch-norm", {"batch_norm": False, "group_norm": True}),
        ({"group_norm": True}, "--no-group-norm", {"batch_norm": True, "group_norm": False}),
        ({"epochs_per_ckpt": 4}, "--ckpts-per-epoch 2", {"epochs_per_ckpt": 0, "ckpts_per_epoch": 2}),
        ({"epochs_per_ckpt": 4}, "--ckpts-per-epoch 1", {"epochs_per_ckpt": 0, "ckpts_per_epoch": 1}),
        ({"epochs_per_ckpt": 4}, "--ckpts-per-epoch 0", {"epochs_per_ckpt": 0, "ckpts_per_epoch": 0}),
        ({"epochs_per_ckpt": 4}, "--epochs-per-ckpt 0", {"epochs_per_ckpt": 0, "ckpts_per_epoch": 1}),
        ({"epochs_per_ckpt": 4}, "--epochs-per-ckpt 0 --ckpts-per-epoch 0", {"epochs_per_ckpt": 0, "ckpts_per_epoch": 0}),
        ({"ckpts_per_epoch": 4}, "--epochs-per-ckpt 0", {"epochs_per_ckpt": 0, "ckpts_per_epoch": 4}),
        ({"ckpts_per_epoch": 4}, "--epochs-per-ckpt 2", {"epochs_per_ckpt": 2, "ckpts_per_epoch": 1}),
        ({"ckpts_per_epoch": 1, "epochs_per_ckpt": 4}, "", {"epochs_per_ckpt": 4, "ckpts_per_epoch": 1}),
        ({"gradient_accumulation_count": 4}, "--global-batch-size 64",
         {"global_batch_size": 64, "gradient_accumulation_count": 1}),
        ({"global_batch_size": 64}, "--gradient-accumulation-count 4",
         {"global_batch_size": None, "gradient_accumulation_count": 4}),
        ({"global_batch_size": 64}, "--gradient-accumulation-count 1",
         {"global_batch_size": None, "gradient_accumulation_count": 1}),
        ({"log_freq": 10}, "--logs-per-epoch 2", {"log_freq": None, "logs_per_epoch": 2}),
        ({"log_freq": 10}, "--logs-per-epoch 0", {"log_freq": None, "logs_per_epoch": 0}),
        ({"logs_per_epoch": 2}, "--log-freq 10", {"log_freq": 10, "logs_per_epoch": None}),
        ({"synthetic_data": True}, "--generated-data", {"synthetic_data": False, "generated_data": True}),
        ({"lr_schedule": "polynomial_decay_lr", "abs_end_learning_rate": 0.1}, "--poly-lr-end-ratio 0.5",
         {"abs_end_learning_rate": None, "poly_lr_end_ratio": 0.5}),
    ],
)  # fmt: skip
def test_exclusive_options_across_layers(block, keys, words, expected):
    """An exponent of 0 lost to the block's absolute rate, and --ckpts-per-epoch 0 to its epochs_per_ckpt. A block's batch
    norm that was switched off left a network without any norm.
    """
    assert values(block(**keys) + words, *expected) == list(expected.values())


@pytest.mark.parametrize(
    "one, other",
    [
        ("iterations 5", "epochs 3"),
        ("base-learning-rate-exponent 0", "abs-learning-rate 0.1"),
        ("base-learning-rate -11", "poly-lr-initial-lr 0.1"),
        ("group-norm", "batch-norm"),
        ("generated-data", "synthetic-data"),
        ("epochs-per-ckpt 2", "ckpts-per-epoch 2"),
        ("epochs-per-ckpt 2", "ckpts-per-epoch 0"),
        ("log-freq 10", "logs-per-epoch 0"),
        ("global-batch-size 64", "gradient-accumulation-count 2"),
        ("global-batch-size 64", "gradient-accumulation-count 1"),
        ("global-batch-size 64", "pipeline-depth 1"),
    ],
)
def test_exclusive_options_in_one_layer_are_rejected(block, one, other):
    for said in (refused(f"--{one} --{other}"), refused(block(**keys_of(one, other)))):
        assert "exclude each other" in said, said


def keys_of(*texts: str) -> dict[str, str]:
    """Return the keys of a block for command-line options."""
    return {name.replace("-", "_"): value for name, value in ((text.split() + ["true"])[:2] for text in texts)}


def test_resumed_run_may_change_length_and_rate():
    recorded = {"dataset": "cifar-10", "epochs": 8.0, "base_learning_rate_exponent": -6.0, "batch_norm": True,
                "group_norm": False, "gradient_accumulation_count": 4, "ckpts_per_epoch": 1, "epochs_per_ckpt": 0}  # fmt: skip
    found = parse("--iterations 9 --abs-learning-rate 0.5 --group-norm --global-batch-size 64 --epochs-per-ckpt 2",
                  "restore", recorded).options.values()  # fmt: skip
    assert (found["epochs"], found["iterations"]) == (None, 9)
    assert (found["base_learning_rate_exponent"], found["abs_learning_rate"]) == (None, 0.5)
    assert (found["batch_norm"], found["group_norm"]) == (False, True)
    assert (found["gradient_accumulation_count"], found["global_batch_size"]) == (1, 64)
    assert (found["ckpts_per_epoch"], found["epochs_per_ckpt"]) == (1, 2)


def test_recorded_run_decides_model_and_schedule():
    recorded = {"model": "efficientnet", "lr_schedule": "cosine", "dataset": "cifar-10", "model_size": "B1", "shards": 4,
                "seed": 3, "unheard_of": 1, "epochs": None}  # fmt: skip
    parsed = parse(["--dataset", "cifar-10"], "restore", recorded)
    found = parsed.options.values()
    names = ("model", "lr_schedule", "model_size", "shards")
    assert [found[name] for name in names] == ["efficientnet", "cosine", "B1", 4]
    assert parsed.options.sources["seed"] == "the recorded run"
    said = refused("--model resnet", script="restore", recorded=recorded)
    assert "--model" in said and "resnet" in said and "efficientnet" in said


def test_inferred_data_set_is_logged():
    for path, name in [("/x/cifar100/y", "cifar-100"), ("/x/CIFAR-10", "cifar-10"), ("/data/ImageNet-1k", "imagenet")]:
        options = parse(["--data-dir", path]).options
        assert (options.dataset.dataset, options.sources["dataset"]) == (name, f"inferred from --data-dir {path}")
    options = cli.parse([], "train", None, {"DATA_DIR": "/data/cifar-100-binary"}).options
    assert options.dataset.dataset == "cifar-100"
    assert "DATA_DIR" in options.sources["dataset"]
    assert cli.parse(CIFAR, "train", None, {"DATA_DIR": "/imagenet"}).options.dataset.dataset == "cifar-10"
    assert "no data set can be inferred from --data-dir /x/foo" in refused("--data-dir /x/foo")


# Spellings

ALIASES = [  # older words, value of the canonical options
    ("--batch-size 8", {"micro_batch_size": 8}),
    ("--gradients-to-accumulate 3", {"gradient_accumulation_count": 3}),
    ("--pipeline-depth 1", {"gradient_accumulation_count": 1, "pipeline": False}),
    ("--pipeline-depth 128", {"gradient_accumulation_count": 128, "pipeline": True}),
    ("--xla-recompute true", {"enable_recomputation": True}),
    ("--enable-recompute true", {"enable_recomputation": True}),
    ("--pipeline-split b1/2/relu", {"pipeline_splits": ("b1/2/relu",)}),
    ("--base-learning-rate -11", {"base_learning_rate_exponent": -11.0}),
    ("--poly-lr-initial-lr 0.5", {"abs_learning_rate": 0.5}),
    ("--lr-schedule polynomial_decay_lr --poly-lr-end-lr 0.01", {"abs_end_learning_rate": 0.01}),
    ("--select-ipus 1", {"select_ipu": ("1",)}),
    ("--device-iterations 10", {"batches_per_step": 10}),
    ("--total-batch-size 64", {"global_batch_size": 64}),
    ("--epoch 3", {"epochs": 3.0}),
    ("--optimizer momentum", {"optimiser": "momentum"}),
    ("--no-xla-recompute", {"enable_recomputation": False}),
    ("--no-enable-recompute", {"enable_recomputation": False}),
]
SAME_NAME = [  # spellings that are not older names
    ("--no-hostside-norm", {"hostside_norm": False}),
    ("--stochastic-rounding OFF", {"stochastic_rounding": "OFF"}),
    ("--no-stochastic-rounding", {"stochastic_rounding": "OFF"}),
    ("--stochastic-rounding", {"stochastic_rounding": "ON"}),
    ("--stochastic-rounding ri_PRNG_stable", {"stochastic_rounding": "RI_prng_stable"}),
    ("--select-ipu auto", {"select_ipu": ("AUTO",)}),
    ("--select-ipu 3", {"select_ipu": ("3",)}),
    ("--gc-profile", {"gc_profile": "IPU_PROFILE", "profile": None}),
    ("--gc-profile tile_profile", {"gc_profile": "TILE_PROFILE"}),
    ("--no-gc-profile", {"gc_profile": "NO_PROFILE"}),
    ("--no-profile", {"profile": None}),
    ("--profile", {"profile": "auto", "gc_profile": None}),
    ("--profile chart.svg", {"profile": "chart.svg"}),
    ("--valid-batch-size 5", {"valid_batch_size": 5}),
    ("--global-batch-size 64", {"global_batch_size": 64}),
    ("--max-ckpts-to-keep 2", {"max_ckpts_to_keep": 2}),
    ("--no-eight-bit", {"eight_bit_io": False}),
    ("--eight-bit", {"eight_bit_io": True}),
    ("--generated-data", {"generated_data": True, "synthetic_data": False}),
    ("--synthetic-data", {"generated_data": False, "synthetic_data": True}),
]


@pytest.mark.parametrize("words, expected", ALIASES)
def test_older_spellings_give_one_line(words, expected):
    parsed = parse(words)
    assert {name: parsed.options.values()[name] for name in expected} == expected
    older = [note for note in parsed.notes if "older" in note]
    assert len(older) == ("--no-" not in words)  # the --no- form says what it switches off
    assert all("--" + name.replace("_", "-") in note for note in older for name in expected)


CURVE = ("poly_lr_early", "abs_learning_rate", "base_learning_rate_exponent", "abs_end_learning_rate", "poly_lr_end_ratio",
         "poly_lr_decay_power", "warmup_epochs", "poly_lr_decay_steps")  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), [
    ("--poly-lr-initial-lr 0.1", [True, 0.1, None, 1e-4, 1e-5, 1.0, 0.0, None]),
    ("--poly-lr-end-lr 0.01", [True, 0.0012, None, 0.01, 1e-5, 1.0, 0.0, None]),
    ("--poly-lr-end-lr 0", [True, 0.0012, None, 0.0, 1e-5, 1.0, 0.0, None]),
    ("--poly-lr-decay-steps 9", [True, 0.0012, None, 1e-4, 1e-5, 1.0, 0.0, 9]),
    ("--poly-lr-early", [True, 0.0012, None, 1e-4, 1e-5, 1.0, 0.0, None]),
    ("--poly-lr-initial-lr 0.1 --poly-lr-decay-power 3 --warmup-epochs 2 --poly-lr-end-ratio 0.5",
     [True, 0.1, None, None, 0.5, 3.0, 2.0, None]),
    ("--poly-lr-end-lr 0.1 --base-learning-rate -7", [True, None, -7.0, 0.1, 1e-5, 1.0, 0.0, None]),
    ("--poly-lr-initial-lr 0.1 --no-poly-lr-early", [False, 0.1, None, None, 1e-5, 2.0, 5.0, None]),
    ("--abs-learning-rate 0.1 --abs-end-learning-rate 0.01", [False, 0.1, None, 0.01, 1e-5, 2.0, 5.0, None]),
    ("--release 1.3", [True, 0.0012, None, 1e-4, 1e-5, 1.0, 0.0, None]),
    ("--release 1.4 --poly-lr-end-lr 0", [True, 0.0012, None, 0.0, 1e-5, 1.0, 0.0, None]),
])  # fmt: skip
def test_older_polynomial_spellings_select_older_curve(words, expected):
    parsed = parse(f"--lr-schedule polynomial_decay_lr {words}")
    assert [parsed.options.values()[name] for name in CURVE] == expected
    assert any(" selects the curve of " in note for note in parsed.notes) == expected[0]
    recorded = parse("", recorded={**parsed.options.values()}).options  # what a resumed run reads
    assert [recorded.values()[name] for name in CURVE] == expected


@pytest.mark.parametrize("words, expected", SAME_NAME)
def test_other_spellings_give_no_line(words, expected):
    parsed = parse(words)
    assert {name: parsed.options.values()[name] for name in expected} == expected
    assert parsed.notes == ()


@pytest.mark.parametrize("name", PASSES)
def test_summary_shows_network_after_pass(name, capsys):
    """Each pass shows its work, and architecture.md shows the printed lines."""
    words = "--dataset cifar-10 --generated-data --model-size 8 --batch-norm --precision 16.16 --summary --after"
    with pytest.raises(Answered):
        entry.checked_run(Call.of_words([*words.split(), name], "train"))
    out = capsys.readouterr().out
    assert ("16-bit core" in out) == (name == "kernels" and "emulator_convolution" in library.operations())
    assert ("sum_gradients" in out) == (PASSES.index(name) >= PASSES.index("formats"))
    assert ("norm + relu" in out) == (name != "stages")


def test_summary_adds_up(capsys):
    """The rows of a stage add up to the stage's line, the stages to the total, and the log has the same total."""
    words = ["--dataset", "cifar-10", "--generated-data", "--model-size", "20", "--shards", "3", "--summary"]
    with pytest.raises(Answered):
        entry.checked_run(Call.of_words(words, "train"))
    lines = capsys.readouterr().out.splitlines()

    titles = ("parameters", "moving", "multiply-adds", "activations")
    ends = [lines[0].index(titles[0]), *(lines[0].index(name) + len(name) for name in titles)]
    stages, sums, total = [], [0] * 4, None
    for line in filter(None, lines[1:]):
        counts = [int(line[a:b].split()[-1].replace(",", "")) if line[a:b].split() else 0 for a, b in pairwise(ends)]
        if line.startswith("stage "):
            assert counts == sums
            stages, sums = [*stages, counts], [0] * 4
        elif line.startswith("all "):
            total = counts
        else:
            sums = [a + b for a, b in zip(sums, counts)]
    assert len(stages) == 3
    assert total == [sum(column) for column in zip(*stages)]
    assert total[:2] == [269_722, 271_098 - 269_722]


def test_older_keys_are_reported_with_line(block):
    words = block(batch_size=8, base_learning_rate=-11, xla_recompute="false", pipeline_depth=1)
    names = ("micro_batch_size", "base_learning_rate_exponent", "gradient_accumulation_count", "pipeline")
    assert values(words, *names) == [8, -11.0, 1, False]
    notes = parse(words).notes
    assert [int(re.search(r"c\.yml:(\d+)", note)[1]) for note in notes] == [3, 4, 5, 6]
    assert "pipeline_depth" in notes[-1] and "gradient_accumulation_count and pipeline" in notes[-1]


@pytest.mark.parametrize(
    "words",
    [
        "--batch-size 4 --micro-batch-size 8",
        "--gradients-to-accumulate 4 --gradient-accumulation-count 8",
        "--pipeline-depth 1 --pipeline",
        "--pipeline-depth 1 --gradient-accumulation-count 8",
        "--base-learning-rate -11 --base-learning-rate-exponent -10",
        "--batches-per-step 1 --device-iterations 2",
        "--validation --no-validation",
        "--no-stochastic-rounding --stochastic-rounding ON",
    ],
)
def test_conflicting_spellings_in_one_layer_are_rejected(words):
    said = refused(words)
    assert all(flag in said for flag in words.split() if flag.startswith("--"))


def test_agreeing_spellings_are_accepted(block):
    assert values("--batch-size 4 --micro-batch-size 4", "micro_batch_size") == [4]
    assert values(block(batch_size=4) + "--micro-batch-size 8", "micro_batch_size") == [8]
    assert values(block(micro_batch_size=4) + "--batch-size 8", "micro_batch_size") == [8]


@pytest.mark.parametrize(("depth", "count", "pipeline"), [(4, 1, True), (1, 8, False), (1, 1, False)])
def test_oldest_release_multiplies_both_counts(block, depth, count, pipeline):
    for words in (
        f"--pipeline-depth {depth} --gradients-to-accumulate {count}",
        f"--gradients-to-accumulate {count} --pipeline-depth {depth}",
        block(pipeline_depth=depth, gradients_to_accumulate=count),
    ):
        assert values(words, "gradient_accumulation_count", "pipeline") == [depth * count, pipeline]
    said = refused("--pipeline-depth 4 --gradients-to-accumulate 8")
    assert "--pipeline-depth 4" in said and "--gradients-to-accumulate 8" in said


def test_last_value_of_one_spelling_wins():
    assert values("--batch-size 4 --batch-size 8", "micro_batch_size") == [8]
    assert values("--available-memory-proportion 0.1 0.2 --available-memory-proportion 0.3",
                  "available_memory_proportion") == [(0.3,)]  # fmt: skip
    assert values("--model resnext --model resnet", "model") == ["resnet"]


@pytest.mark.parametrize("name", ["normalise_input", "wandb", "stable_norm", "generated_data", "use_relu", "widenet"])
def test_flag_of_block_can_be_disabled(block, name):
    model = {"use_relu": "efficientnet", "widenet": "resnext"}.get(name, "resnet")
    words = block(**{name: True, "model": model})
    assert values(words, name) == [True]
    for off in (f"--no-{name}", f"--no-{name.replace('_', '-')}", f"--{name}=false", f"--{name} false"):
        assert values(words + off, name) == [False]


@pytest.mark.parametrize("name", ["validation", "logs", "dataset_cache", "on_demand"])
def test_enabled_flags_have_both_forms(block, name):
    flag = name.replace("_", "-")
    assert values("", name) == [True]
    assert values(f"--no-{flag}", name) == [False]
    assert values(f"--no-{flag} false", name) == [True]
    assert values(block(**{name: False}) + f"--{flag}", name) == [True]
    assert values(block(**{f"no_{name}": True}), name) == [False]


def test_flags_have_negative_forms():
    for model in plugins.names("Models"):
        known = parse(["--model", model]).catalogue
        switches = [option for option in known.options.values() if option.base is bool]
        assert len(switches) > 40
        assert [option.name for option in switches if "--no-" + option.flag[2:] not in known.flags()] == []


@pytest.mark.parametrize(
    "words, name, value",
    [
        ("--micro-batch 8", "micro_batch_size", 8),
        ("--lr cosine", "lr_schedule", "cosine"),
        ("--lr 1e-3", "abs_learning_rate", 1e-3),
        ("--lr=0.2", "abs_learning_rate", 0.2),
        ("--lr-s=cosine", "lr_schedule", "cosine"),
        ("--base-l -3", "base_learning_rate_exponent", -3.0),
        ("--no-val", "validation", False),
        ("--no-ckpt", "ckpt_all_instances", False),
        ("--no-sto", "stochastic_rounding", "OFF"),
        ("--train-with", "train_with_valid_preprocessing", True),
        ("--micro_batch_size 8", "micro_batch_size", 8),
        ("--model resnext --conv 16", "convolution_groups", 16),
    ],
)
def test_unambiguous_prefixes_are_accepted(words, name, value):
    """`--lr cosine` trained with the stepped schedule."""
    assert values(words, name) == [value]


@pytest.mark.parametrize(
    "words, name, value",
    [
        ("--optimiser MOMENTUM", "optimiser", "momentum"),
        ("--optimiser sgd", "optimiser", "SGD"),
        ("--model EfficientNet", "model", "efficientnet"),
        ("--lr-schedule Polynomial_Decay_LR", "lr_schedule", "polynomial_decay_lr"),
        ("--dataset CIFAR-100", "dataset", "cifar-100"),
        ("--scheduling-algorithm Post-Order", "scheduling_algorithm", "post-order"),
        ("--model efficientnet --model-size b3", "model_size", "B3"),
        ("--model efficientnet --model-size 0", "model_size", "B0"),
        ("--model efficientnet --model-size CIFAR", "model_size", "CIFAR"),
        ("--model efficientnet --model-size cifar", "model_size", "CIFAR"),
        ("--precision 32.32", "precision", "32.32"),
        ("--dataset fashion-mnist", "precision", "32.32"),
        ("--dataset imagefolder --data-dir x", "precision", "32.32"),
        ("--dataset imagenet --data-dir x", "precision", "16.16"),
        ("--dataset cifar-10", "precision", "16.16"),
        ("--dataset fashion-mnist --precision 16.16", "precision", "16.16"),
        ("--dataset fashion-mnist --no-stochastic-rounding", "precision", "16.16"),  # has a meaning in FP16 alone
        ("--dataset fashion-mnist --saturate-on-overflow", "precision", "16.16"),
        ("--config mk2_resnet8_test --dataset fashion-mnist", "precision", "16.16"),  # a recipe for other data
        ("--config mk2_resnet8_test@2.5 --data-dir x", "precision", "16.16"),
        ("--base-learning-rate -11", "base_learning_rate_exponent", -11.0),
        ("--base-learning-rate -1e-3", "base_learning_rate_exponent", -1e-3),
        ("--base-learning-rate -.5", "base_learning_rate_exponent", -0.5),
        ("--base-learning-rate=-9.5", "base_learning_rate_exponent", -9.5),
        ("--epochs 1e2", "epochs", 100.0),
        ("--name-suffix=--odd", "name_suffix", "--odd"),
        ("--name-suffix=a=b", "name_suffix", "a=b"),
        ("--available-memory-proportion=0.1 0.2", "available_memory_proportion", (0.1, 0.2)),
        ("--available-memory-proportion 0.1 0.2 --seed 3", "available_memory_proportion", (0.1, 0.2)),
    ],
)
def test_values_are_parsed(words, name, value):
    assert values(words, name) == [value]


def test_configuration_may_spell_data_set_freely(tmp_path):
    (tmp_path / "own.yml").write_text("own:\n  dataset: Fashion-MNIST\n")
    assert values(f"--config own --config-path {tmp_path / 'own.yml'}", "precision") == ["32.32"]


@pytest.mark.parametrize(
    "words, parts",
    [
        ("--epochs --seed 3", "--epochs value"),
        ("--available-memory-proportion --seed 3", "--available-memory-proportion at least one"),
        ("--epochs 3 4", "--epochs one 3 4"),
        ("--normalise-input 3", "--normalise-input no value 3"),
        ("--epochs three", "--epochs 'three' number"),
        ("--epochs -inf", "--epochs '-inf' number"),
        ("--mtbf-hours 1e300", "--mtbf-hours '1e300' 3.4e+38"),
        ("--epochs -3", "--epochs '-3' 0"),
        ("--epochs ''", "--epochs '' number"),
        ("--batch-size 1.5", "--batch-size '1.5' whole number"),
        ("--batch-size 9999999999", "--batch-size '9999999999' 2147483647"),
        ("--seed -1", "--seed '-1' 0"),
        ("--available-memory-proportion 0.2 1.2", "--available-memory-proportion '0.2 1.2' 0 1"),
        ("--optimiser lamp", "--optimiser 'lamp' SGD LAMB, LARS or"),
        ("--precision 32", "--precision '32' 8.32, 32.32 16.32?"),
        ("--model alexnet", "--model 'alexnet' resnet resnext?"),
        ("--model ../train", "--model '../train'"),
        ("--model _layers", "--model '_layers'"),
        ("--model resnet50", "--model resnet --model-size 50?"),
        ("--model efficientnet_b0", "--model efficientnet --model-size B0?"),
        ("--lr-schedule cosin", "--lr-schedule 'cosin' cosine?"),
        ("--dataset cfar-10", "--dataset 'cfar-10' cifar-10 or cifar-100?"),
        ("--data-dir /x/foo", "--data-dir /x/foo"),
        ("--model-size 21", "--model-size 21 20?"),
        ("--learning-rate-schedule 0.7,0.5", "--learning-rate-schedule '0.7,0.5' 0.5,0.75"),
        ("--micro-batchsize 3", "--micro-batchsize --micro-batch-size, --batch-size"),
        ("--no-use-relu", "--no-use-relu --model efficientnet"),
        ("--lr-drops 3", "--lr-drops --lr-schedule exponential"),
        ("--repeat 3", "--repeat validation.py"),
        ("--wandb-id x", "--wandb-id restore.py"),
        ("--seed 3 stray", "--seed one 3 stray"),
        ("--logs-path ''", "--logs-path '' text"),
        ("--name-suffix 'a\0b'", "--name-suffix text"),
        ("--name-suffix \udcff", "--name-suffix text"),  # from a file name that is not UTF-8
        ("--hlep", "--hlep --help"),
        ("--pipeline-depth x", "--pipeline-depth 'x' whole number"),
        ("--ckpt 3", "--ckpt-all-instances, --ckpt-epochs-offset, --ckpts-per-epoch"),
        ("--mod resnext", "--model, --model-size"),
        ("--lr exponential", "--lr-decay-rate, --lr-drops, --lr-schedule"),
        ("--learning-rate 0.1", "--learning-rate-decay, --abs-learning-rate RATE"),
        ("--batch 4", "--batch --batch-size"),
        ("--resume x", "--resume restore.py --restore-path RUN"),
        ("--tensorboard", "--tensorboard TensorBoard run directory"),
        ("--tensorboard 1", "--tensorboard TensorBoard run directory"),  # not --tensorboard-images 1
        ("--sched cosine", "--sched --lr-schedule"),
        ("--device cuda", "--device 'cuda' use gpu"),
        ("--precision fp16", "--precision 'fp16' use 16.16"),
        ("--precision BF16", "--precision 'BF16' use bf16.32"),
        ("--precision mixed", "--precision 'mixed' use 16.32"),
        ("--release 2.7", "--release '2.7'"),
    ],
)  # fmt: skip
def test_wrong_arguments_give_one_line(words, parts):
    """The line has the option, the value, and the rule, the remedy or the nearest names."""
    said = refused(words)
    assert all(part in said for part in re.split(r" (?![^']*'(?: |$))", parts)), said


def test_explain_names_source_of_each_value(block):
    parsed = parse(block(momentum=0.7, epochs=3) + "--base-learning-rate -11 --iterations 5", "restore", {"seed": 5})
    lines = cli.explain(parsed.options).splitlines()
    rows = {line.split()[0]: re.split(r"  +", line)[1:] for line in lines}
    assert len(rows) == len(lines)
    assert rows.keys() == parsed.options.values().keys()
    assert rows["momentum"][0] == "0.7"
    assert re.fullmatch(r"configuration a \(.*c\.yml:3\)", rows["momentum"][1])
    assert rows["base_learning_rate_exponent"] == ["-11.0", "command line: --base-learning-rate"]
    assert rows["iterations"] == ["5", "command line: --iterations"]
    assert rows["epochs"] == ["(not set)", "default"]
    assert rows["seed"] == ["5", "the recorded run"]
    assert rows["micro_batch_size"] == ["32", "default of resnet on cifar-sized data"]
    assert rows["loss_scaling"] == ["128.0", "default"]
    result = run("train", *CIFAR, "--explain", "--seed", 3)
    assert (result.code, result.err) == (0, "")
    assert re.search(r"^seed +3 +command line: --seed$", result.out, re.M)


def test_validation_accepts_training_and_schedule_options():
    """So the command or block of a training works unchanged."""
    words = "--optimiser momentum --lr-schedule polynomial_decay_lr --poly-lr-decay-power 1 --warmup-epochs 2 --ckpts-per-epoch 2"
    assert values(words, "lr_schedule", "poly_lr_decay_power", script="validation") == ["polynomial_decay_lr", 1.0]


def test_printed_command_runs_from_anywhere(tmp_path, monkeypatch):
    """From another folder it printed `python`, which may be another interpreter or missing."""
    words = ["--restore-path", "a run"]
    for folder in (tmp_path, Path(entry.__file__).parent):
        monkeypatch.chdir(folder)
        python, script, *rest = shlex.split(hints.command("restore", *words))
        assert os.path.abspath(shutil.which(python)) == sys.executable
        assert Path(script) == plugins.ROOT / "restore.py" and rest == words
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    python, script, *rest = shlex.split(hints.command("restore", *words))
    assert (shutil.which(python), rest) == (sys.executable, words) and Path(script).is_absolute() and Path(script).exists()


def test_list_of_block_can_be_emptied(block):
    words = block(weight_avg_exp="[0.97, 0.9]", lars_skip_list="[beta]")
    assert values(words, "weight_avg_exp", "lars_skip_list") == [(0.97, 0.9), ("beta",)]
    assert values(words + "--no-weight-avg-exp --no-lars-skip-list", "weight_avg_exp", "lars_skip_list") == [(), ()]
    assert values(block(no_lars_skip_list="true"), "lars_skip_list") == [()]
    assert values(block(no_lars_skip_list="false"), "lars_skip_list") == [("beta", "gamma", "bias")]
    assert "takes no value" in refused(words + "--no-weight-avg-exp 0.5")


def test_lars_has_one_weight_decay_by_default():
    lars = "--optimiser LARS --abs-learning-rate 1 --dataset imagenet --data-dir x"
    assert values(lars, "weight_decay", "lars_weight_decay") == [0.0, 1e-4]
    assert values(lars + " --weight-decay 1e-3", "weight_decay", "lars_weight_decay") == [1e-3, 1e-4]
    assert values("--optimiser momentum --dataset imagenet --data-dir x", "weight_decay") == [1e-4]


@pytest.mark.parametrize("script", ["train", "validation", "restore", "inference_embedded"])
def test_our_flags_beat_names_of_other_tools(script):
    flags = catalogue.all_options(script).flags()
    assert [each for each in flags if call.full_flag(each, flags) != each] == []


def test_foreign_options_point_to_existing_ones():
    known = catalogue.all_options("train")
    flags = {*known.flags(), "--restore-path"}
    assert not [name for name in OTHER_NAMES if f"--{name}" in flags]
    assert all({*values.values()} <= {*known.options[name].meta["choices"]} for name, values in OTHER_VALUES.items())
    for answer in OTHER_NAMES.values():
        assert [word for word in re.findall(r"--[a-z-]+", answer) if word not in flags] == []


# --- Versions and configurations -------------------------------------------------------------------------------


def test_help_and_version_are_words_too():
    def answer(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "cnn_harness", *words], cwd=plugins.ROOT, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout

    assert answer("version") == answer("--version") == (0, f"{version.line()}\n")
    assert answer("help", "runs") == answer("runs", "--help") != answer("help")
    assert answer("help", "nothing") == (2, "")


def test_every_command_has_version():
    scripts = ("train.py", "validation.py", "restore.py", "weight_avg.py", "inference_embedded.py", "poprun.py")
    commands = ("plan", "finetune", "sweep", "export")
    for words in [[script] for script in scripts] + [["-m", "cnn_harness", command] for command in commands]:
        call = [sys.executable, *words, "--version"]
        found = subprocess.run(call, cwd=plugins.ROOT, capture_output=True, text=True, timeout=60)
        assert (found.returncode, found.stdout, found.stderr) == (0, f"{version.line()}\n", ""), words
    assert re.fullmatch(r"cnn-harness \d+\.\d+\.\d+ \(Python 3\.[\d.]+, TensorFlow 2\.21\.\d+\)", version.line())


def test_configurations_are_listed(tmp_path):
    """Lists all but older names; with a word, those that contain it or else the nearest names."""
    lines = succeed("train", "--list-configs").out.splitlines()
    names = [name for name in configs.ConfigFile(str(DEFAULT_CONFIG_PATH)).names if "@" not in name]
    assert [line.split()[0] for line in lines] == names
    assert "quickstart" in lines[0] and lines[0].endswith(
        "resnet 14, fashion-mnist, batch 64 x 1 x 1, 8 epochs, 32.32, momentum"
    )
    lars = succeed("plan", "--list-configs", "LARS").out.splitlines()
    assert 5 < len(lars) < len(lines) and all("lars" in line.lower() for line in lars)
    refused = run("train", "--list-configs", "quikstart")
    assert refused.code == 2 and "did you mean quickstart" in refused.err
    (tmp_path / "c.yml").write_text("mine:\n  model: resnet\n  epochs: 3\n")
    assert succeed("restore", "--config-path", tmp_path / "c.yml", "--list-configs").out == "mine  resnet, 3 epochs\n"


@pytest.mark.parametrize("off", ["--no-autoresume", "--autoresume=False"])
def test_disabled_switch_is_not_given(off):
    assert "autoresume" in Call.of_words([off, "--autoresume"], "train")
    assert "autoresume" not in Call.of_words(["--autoresume", off], "train")


# --- The call --------------------------------------------------------------------------------------------------

COUNTING = """
import atexit, runpy, sys
from collections import Counter
from cnn_harness.harness.commands import cli
from cnn_harness.harness.options.call import Call
module, *sys.argv[1:] = sys.argv[1:]
counts = Counter()

def counted(name, function):
    def call(*values, **named):
        counts[name] += 1
        return function(*values, **named)
    return call

Call.of_words = counted("cut", Call.of_words)
cli.from_call = counted("converted", cli.from_call)
cli.resolve = counted("resolved", cli.resolve)
atexit.register(lambda: print(counts["cut"], counts["converted"], counts["resolved"]))
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "command",
    [
        "train quickstart --dry-run",
        "train --config quickstart --epochs 1 --dry-run",
        "validation --config quickstart --dry-run",
        "tools.finetune photos --dry-run",
        "tools.plan --config quickstart",
        "tools.plan --model resnet",
    ],
)
def test_call_is_cut_and_parsed_once(command, tmp_path):
    """In its process, whose first lines parse the options before the slow imports."""
    for shade in range(24):
        file = tmp_path / f"photos/{'cats' if shade % 2 else 'dogs'}/{shade}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 36), (10 * shade, 0, 0)).save(file)
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, *command.split()], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(plugins.ROOT)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "1 1 1", done.stdout + done.stderr
