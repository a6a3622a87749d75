"""The command line: which value wins, how options may be spelled, and the errors of mistyped calls."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from commands import run, succeed
from PIL import Image

from cnn_harness.base import plugins, version
from cnn_harness.base.errors import Answered, DataError, OptionError
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan.options import PASSES
from cnn_harness.harness.commands import entry
from cnn_harness.harness.options import catalogue, configs
from cnn_harness.harness.options.call import DEFAULT_CONFIG_PATH, Call, Parsed
from cnn_harness.harness.options.other_names import OF_OTHER_OPTIONS, OTHER_NAMES, OTHER_VALUES
from cnn_harness.harness.run import cli

CIFAR = ("--dataset", "cifar-10")


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
        ("weight_decay", "--weight-decay 0", 0.6, 0.7, [1e-6, 0.7, 0.6, 0.0]),  # the model's default below all
        ("micro_batch_size", "--batch-size 5", 6, 7, [32, 7, 6, 5]),
        ("learning_rate_schedule", "--learning-rate-schedule 0.5", "0.6,0.7", "0.7", ["0.5,0.75", "0.7", "0.6,0.7", "0.5"]),
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
        ({"abs_learning_rate": 0.1}, "--base-learning-rate -11",
         {"abs_learning_rate": None, "base_learning_rate_exponent": -11.0}),
        ({"abs_learning_rate": 0.1}, "--base-learning-rate 0",
         {"abs_learning_rate": None, "base_learning_rate_exponent": 0.0}),
        ({"base_learning_rate_exponent": 0}, "--abs-learning-rate 0.1",
         {"abs_learning_rate": 0.1, "base_learning_rate_exponent": None}),
        ({"batch_norm": True}, "--group-norm", {"batch_norm": False, "group_norm": True}),
        # a switch that is off does not count: the model's default returns
        ({"batch_norm": True, "dataset": "imagenet"}, "--no-batch-norm", {"batch_norm": False, "group_norm": True}),
        ({"epochs_per_ckpt": 4}, "--ckpts-per-epoch 0", {"epochs_per_ckpt": 0, "ckpts_per_epoch": 0}),
        ({"gradient_accumulation_count": 4}, "--global-batch-size 64",
         {"global_batch_size": 64, "gradient_accumulation_count": 1}),
        ({"global_batch_size": 64}, "--gradient-accumulation-count 4",
         {"global_batch_size": None, "gradient_accumulation_count": 4}),
        ({"global_batch_size": 64}, "--gradient-accumulation-count 1",
         {"global_batch_size": None, "gradient_accumulation_count": 1}),
        ({"log_freq": 10}, "--logs-per-epoch 0", {"log_freq": None, "logs_per_epoch": 0}),
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
        ("group-norm", "batch-norm"),
        ("epochs-per-ckpt 2", "ckpts-per-epoch 0"),
        ("global-batch-size 64", "gradient-accumulation-count 1"),
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
    ("--poly-lr-end-lr 0", [True, 0.0012, None, 0.0, 1e-5, 1.0, 0.0, None]),
    ("--poly-lr-initial-lr 0.1 --poly-lr-decay-power 3 --warmup-epochs 2 --poly-lr-end-ratio 0.5",
     [True, 0.1, None, None, 0.5, 3.0, 2.0, None]),
    ("--poly-lr-initial-lr 0.1 --no-poly-lr-early", [False, 0.1, None, None, 1e-5, 2.0, 5.0, None]),
    ("--abs-learning-rate 0.1 --abs-end-learning-rate 0.01", [False, 0.1, None, 0.01, 1e-5, 2.0, 5.0, None]),
    ("--release 1.3", [True, 0.0012, None, 1e-4, 1e-5, 1.0, 0.0, None]),
])  # fmt: skip
def test_older_polynomial_spellings_select_older_curve(words, expected):
    parsed = parse(f"--lr-schedule polynomial_decay_lr {words}")
    assert [parsed.options.values()[name] for name in CURVE] == expected
    assert any(" selects the curve of " in note for note in parsed.notes) == expected[0]
    recorded = parse("", recorded={**parsed.options.values()}).options  # what a resumed run reads
    assert [recorded.values()[name] for name in CURVE] == expected


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
        ("--lr 1e-3", "abs_learning_rate", 1e-3),
        ("--no-val", "validation", False),
        ("--no-sto", "stochastic_rounding", "OFF"),
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
        ("--model EfficientNet", "model", "efficientnet"),
        ("--model efficientnet --model-size b3", "model_size", "B3"),
        ("--model efficientnet --model-size cifar", "model_size", "CIFAR"),
        ("--dataset fashion-mnist", "precision", "32.32"),
        ("--dataset imagenet --data-dir x", "precision", "16.16"),
        ("--dataset cifar-10", "precision", "16.16"),
        ("--dataset fashion-mnist --no-stochastic-rounding", "precision", "16.16"),  # has a meaning in FP16 alone
        ("--config mk2_resnet8_test --dataset fashion-mnist", "precision", "16.16"),  # a recipe for other data
        ("--config mk2_resnet8_test@2.5 --data-dir x", "precision", "16.16"),
        ("--base-learning-rate -1e-3", "base_learning_rate_exponent", -1e-3),
        ("--epochs 1e2", "epochs", 100.0),
        ("--name-suffix=--odd", "name_suffix", "--odd"),
        ("--available-memory-proportion 0.1 0.2 --seed 3", "available_memory_proportion", (0.1, 0.2)),
    ],
)
def test_values_are_parsed(words, name, value):
    assert values(words, name) == [value]


@pytest.mark.parametrize(
    "words, parts",
    [
        ("--epochs --seed 3", "--epochs value"),
        ("--epochs 3 4", "--epochs one 3 4"),
        ("--normalise-input 3", "--normalise-input no value 3"),
        ("--epochs three", "--epochs 'three' number"),
        ("--epochs -3", "--epochs '-3' 0"),
        ("--batch-size 9999999999", "--batch-size '9999999999' 2147483647"),
        ("--available-memory-proportion 0.2 1.2", "--available-memory-proportion '0.2 1.2' 0 1"),
        ("--optimiser lamp", "--optimiser 'lamp' SGD LAMB, LARS or"),
        ("--model alexnet", "--model 'alexnet' resnet resnext?"),
        ("--model resnet50", "--model resnet --model-size 50?"),
        ("--dataset cfar-10", "--dataset 'cfar-10' cifar-10 or cifar-100?"),
        ("--model-size 21", "--model-size 21 20?"),
        ("--learning-rate-schedule 0.7,0.5", "--learning-rate-schedule '0.7,0.5' 0.5,0.75"),
        ("--micro-batchsize 3", "--micro-batchsize --micro-batch-size, --batch-size"),
        ("--lr-drops 3", "--lr-drops --lr-schedule exponential"),
        ("--name-suffix 'a\0b'", "--name-suffix text"),
        ("--name-suffix \udcff", "--name-suffix text"),  # from a file name that is not UTF-8
        ("--mod resnext", "--model, --model-size"),
        ("--learning-rate 0.1", "--learning-rate-decay, --abs-learning-rate RATE"),
        ("--resume x", "--resume restore.py --restore-path RUN"),
        ("--precision fp16", "--precision 'fp16' use 16.16"),
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


def test_foreign_options_point_to_existing_ones():
    known = catalogue.all_options("train")
    flags = {*known.flags(), "--restore-path"}
    assert not [name for name in OTHER_NAMES if f"--{name}" in flags]
    assert all({*values.values()} <= {*known.options[name].meta["choices"]} for name, values in OTHER_VALUES.items())
    for answer in (*OTHER_NAMES.values(), *(each for values in OF_OTHER_OPTIONS.values() for each in values.values())):
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


# --- The call --------------------------------------------------------------------------------------------------

COUNTING = """
import atexit, runpy, sys
from collections import Counter
from cnn_harness.harness.run import cli
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
        "cnn_harness.tools.finetune photos --dry-run",
        "cnn_harness.tools.plan --config quickstart",
        "cnn_harness.tools.plan --model resnet",
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
