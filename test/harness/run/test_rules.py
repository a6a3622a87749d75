"""A first check of data, options and environment, before any graph: errors, and notes of one line."""

from __future__ import annotations

import json
import shlex

import photos
import pytest
from commands import run

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare

TWO = json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"index": 0}})
BASE = "--dataset cifar-10 --generated-data --model-size 8"


def notes(words: str, environ: dict[str, str] | None = None, script: str = "train") -> list[str]:
    """Return the notes of a prepared training run or validation."""
    parsed = cli.parse(shlex.split(f"{BASE} {words}"), script, environ={})
    return list(prepare(parsed.options, environ or {}, training=script == "train").notes)


WARNED = [  # words, environment, start of the note
    ("--abs-learning-rate 1000", {}, "warning: the learning rate rises to 1000"),
    ("--precision 16.16 --loss-scaling 1e20", {}, "warning: --loss-scaling 1e+20"),
    ("--optimiser Adam", {}, "warning: --optimiser Adam"),
    ("--activation-format nvfp4 --gradient-format nvfp4 --hadamard --batch-size 3", {}, "warning: --hadamard has no effect"),
    ("--batch-norm --batch-size 1", {}, "warning: batch norm sees one image"),
    ("", {"TF_CONFIG": TWO}, "warning: each of the 2 processes of TF_CONFIG"),
    ("--momentum 0.5", {}, "--momentum 0.5 has no effect with --optimiser SGD"),
    ("--precision 32.32 --fp32-accumulators", {}, "--fp32-accumulators has no effect without half precision"),
    ("--wandb-project x", {}, "--wandb-project x has no effect without --wandb"),
    ("--ckpts-per-epoch 0 --max-ckpts-to-keep 2", {}, "--max-ckpts-to-keep 2 has no effect without a checkpoint"),
    ("--data-dir /data", {}, "--data-dir /data has no effect without data files"),
]  # fmt: skip


@pytest.mark.parametrize("words, environ, begins", WARNED)
def test_costly_mistakes_give_warning(words, environ, begins):
    assert [note for note in notes(words, environ) if note.startswith(begins)]


@pytest.mark.parametrize(
    "words, environ",
    [
        ("", {}),
        ("--optimiser LARS --abs-learning-rate 29", {}),  # for batches of 65,536
        ("--abs-learning-rate 512 --epochs 1", {}),  # the warm-up does not reach it
        ("--optimiser Adam --precision 16.32", {}),
        ("--batch-norm --batch-size 1 --replicas 2 --BN-span 2", {}),
        ("--iterations 3", {}),  # ends within the default warm-up
        ("--no-wandb --log-dir ./logs/ --no-latency --no-validation --validation-split 0", {}),  # defaults
        ("--distributed", {"TF_CONFIG": TWO}),
        ("", {"TF_CONFIG": "{"}),
    ],
)
def test_sound_options_give_no_warning(words, environ):
    assert not [note for note in notes(words, environ) if "warning" in note or "no effect" in note]


@pytest.mark.parametrize("model", plugins.names("Models"))
def test_any_model_accepts_any_norm_option(model):
    """A model without norms ended in a traceback."""
    size = "--model-size B0" if model == "efficientnet" else ""
    words = f"--dataset imagenet --generated-data --model {model} {size} --force-unstable-norm --stable-norm"
    parsed = cli.parse(shlex.split(words), "train", environ={})
    prepare(parsed.options, {})


def test_one_class_or_no_validation_is_reported(tmp_path):
    """One class trained to a loss of 0; without validation images, the hint to validate ended in an error."""
    words = ("--dataset", "imagefolder", "--data-dir", tmp_path, "--model-size", 18, "--log-dir", tmp_path / "logs")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(photos.jpegs(1)[0])
        if name == "cat":
            alone = run("train", *words, "--no-validation")
    assert (alone.code, alone.err.count("\n"), "imagefolder has only one class" in alone.err) == (2, 1, True)
    unseen = "no validation images in "
    out = run("train", *words, "--dry-run").out
    assert f"warning: data set imagefolder: {unseen}" in out and "or train with --no-validation" in out
    assert unseen not in run("train", *words, "--dry-run", "--no-validation").out
    for script in (("validation",), ("inference_embedded", "--iterations", 2)):
        refused = run(script[0], *words, *script[1:])
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1) and unseen in refused.err
    assert not (tmp_path / "logs").exists()


REFUSED = [  # words; the names and values in the error
    ("--label-smoothing 0.9", "--label-smoothing 0.9"),
    ("--class-weights balanced", "--class-weights balanced cifar-10"),
    ("--image-mean 124 116 104 --image-std 58 57 57", "--image-mean --image-std"),
    ("--variable-filter nothing", "--variable-filter nothing"),
    ("--force-weight-to-fp16 moving_mean --batch-norm", "--force-weight-to-fp16 moving_mean"),
    ("--optimiser LARS --lars-skip-list nothing", "--lars-skip-list nothing"),
    ("--no-validation --patience 2", "--patience 2 --no-validation"),
    ("--automatic-loss-scaling --fp-exceptions", "--automatic-loss-scaling --fp-exceptions"),
    ("--gradient-noise", "--gradient-noise --gradient-accumulation-count"),
    ("--gradient-noise --gradient-accumulation-count 4 --fold 4", "--gradient-noise --fold"),
    ("--inject weight:b1/0/1/conv:1:32", "--inject BIT 31"),
    ("--inject weight:b1:1", "--inject --summary"),
    ("--inject message:b1/0/1/conv:1", "--inject processes"),
    ("--native-arithmetic", "--native-arithmetic BF16"),
    ("--name-suffix a/b", "--name-suffix 'a/b'"),
]


@pytest.mark.parametrize("words, named", REFUSED)
def test_impossible_options_are_rejected(words, named):
    with pytest.raises(OptionError) as refused:
        notes(words)
    assert "\n" not in str(refused.value) and not [name for name in named.split() if name not in str(refused.value)]
