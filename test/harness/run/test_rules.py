"""A first check of data, options and environment, before any graph: errors, and notes of one line."""

from __future__ import annotations

import dataclasses
import json
import shlex

import photos
import pytest
from commands import run

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.harness.options.sections import SECTIONS
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
    ("--abs-learning-rate 3 --optimiser RMSprop", {}, "warning: the learning rate rises to 3"),
    ("--iterations 1", {}, "warning: the learning rate is 0 in all updates"),
    ("--warmup-epochs 20 --epochs 10", {}, "warning: --warmup-epochs 20"),
    ("--precision 16.16 --loss-scaling 1e20", {}, "warning: --loss-scaling 1e+20"),
    ("--optimiser Adam", {}, "warning: --optimiser Adam"),
    ("--optimiser LAMB --abs-learning-rate 0.01 --precision 32.32 --slot-format e5m2", {}, "warning: --optimiser LAMB"),
    ("--batch-norm --batch-size 1", {}, "warning: batch norm sees one image"),
    ("--BN-decay 1", {}, "warning: --BN-decay 1"),
    ("", {"TF_CONFIG": TWO}, "warning: each of the 2 processes of TF_CONFIG"),
    ("", {"OMPI_COMM_WORLD_SIZE": "3"}, "warning: each of the 3 processes of mpirun"),
    ("--momentum 0.5", {}, "--momentum 0.5 has no effect with --optimiser SGD"),
    ("--groups 4 --contiguous-groups", {}, "--contiguous-groups has no effect without group norm"),
    ("--group-norm --BN-decay 0.9", {}, "--BN-decay 0.9 has no effect without batch norm"),
    ("--precision 32.32 --fp32-accumulators", {}, "--fp32-accumulators has no effect without half precision"),
    ("--enable-half-partials", {}, "--enable-half-partials"),
    ("--pipeline-schedule Grouped", {}, "--pipeline-schedule Grouped has no effect without several stages"),
    ("--worker-timeout 5", {}, "--worker-timeout 5.0 has no effect without several processes"),
    ("--wandb-project x", {}, "--wandb-project x has no effect without --wandb"),
    ("--gradient-accumulation-count 4 --fold 2 --fold-memory 5", {}, "--fold-memory 5 has no effect without --fold auto"),
    ("--ckpts-per-epoch 0 --max-ckpts-to-keep 2", {}, "--max-ckpts-to-keep 2 has no effect without a checkpoint"),
    ("--image-size 64 --dataset cifar-10 --generated-data", {}, "--image-size 64: the images of cifar-10 are resized"),
    ("--optimiser RMSprop --rmsprop-decay 0.9 --rmsprop-base-decay-exp -9", {}, "--rmsprop-base-decay-exp -9 is ignored"),
    ("--symmetric-input", {}, "--symmetric-input has no effect without photos"),
    ("--data-dir /data", {}, "--data-dir /data has no effect without data files"),
]  # fmt: skip


@pytest.mark.parametrize("words, environ, begins", WARNED)
def test_costly_mistakes_give_warning(words, environ, begins):
    assert [note for note in notes(words, environ) if note.startswith(begins)]


@pytest.mark.parametrize(
    "words, environ",
    [
        ("", {}),
        ("--image-size 32 --dataset cifar-10 --generated-data", {}),
        ("--optimiser RMSprop --rmsprop-base-decay-exp -9", {}),
        ("--optimiser RMSprop --rmsprop-decay 0.9", {}),
        ("--optimiser LARS --abs-learning-rate 29", {}),  # for batches of 65,536
        ("--abs-learning-rate 48", {}),  # EfficientNet's 2^-7 x 6144
        ("--abs-learning-rate 512 --epochs 1", {}),  # the warm-up does not reach it
        ("--precision 32.32 --loss-scaling 1e20", {}),
        ("--optimiser Adam --precision 16.32", {}),
        ("--optimiser LAMB --abs-learning-rate 0.01 --precision 16.16 --slot-format fp32", {}),
        ("--batch-norm --batch-size 1 --replicas 2 --BN-span 2", {}),
        ("--iterations 3", {}),  # ends within the default warm-up
        ("--no-wandb --log-dir ./logs/ --no-latency --no-validation --validation-split 0", {}),  # defaults
        ("--replicas 2 --identical-replica-seeding", {}),
        ("--distributed", {"TF_CONFIG": TWO}),
        ("", {"TF_CONFIG": "{"}),
        ("", {"OMPI_COMM_WORLD_SIZE": "1"}),
    ],
)
def test_sound_options_give_no_warning(words, environ):
    assert not [note for note in notes(words, environ) if "warning" in note or "no effect" in note]


def test_requirements_of_options_exist():
    """Every `needs` is a condition, or a switch or value of another option."""
    parsed = cli.parse(shlex.split(BASE), "train", environ={})
    run = prepare(parsed.options, {})
    for section in SECTIONS.values():
        for field in dataclasses.fields(section):
            if field.metadata["needs"]:
                assert field.metadata["needs"].is_met(run) in (True, False)


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
    assert (alone.code, alone.err.count("\n"), "imagefolder has only one class" in alone.err) == (
        2,
        1,
        True,
    )
    unseen = "no validation images in "
    out = run("train", *words, "--dry-run").out
    assert f"warning: data set imagefolder: {unseen}" in out and "or train with --no-validation" in out
    assert unseen not in run("train", *words, "--dry-run", "--no-validation").out
    for script in (("validation",), ("inference_embedded", "--iterations", 2)):
        refused = run(script[0], *words, *script[1:])
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1) and unseen in refused.err
    assert not (tmp_path / "logs").exists()


REFUSED = [  # words; the names and values in the error
    ("--momentum 1", "--momentum '1'"),
    ("--optimiser RMSprop --abs-learning-rate 0.01 --rmsprop-base-decay-exp -70", "--rmsprop-base-decay-exp -70"),
    ("--label-smoothing 0.9", "--label-smoothing 0.9"),
    ("--class-weights balanced", "--class-weights balanced cifar-10"),
    ("--dataset imagenet --model-size 18 --num-classes 1", "imagenet"),
    ("--image-mean 124 116 104 --image-std 58 57 57", "--image-mean --image-std"),
    ("--image-mean 0.5 0.5 0.5", "--image-mean --image-std"),
    ("--num-classes 3", "--num-classes 3"),
    ("--dataset-percentage-to-use 50", "--dataset-percentage-to-use 50"),
    ("--validation-split 0.1", "--validation-split 0.1"),
    ("--variable-filter nothing", "--variable-filter nothing"),
    ("--force-weight-to-fp16 moving_mean --batch-norm", "--force-weight-to-fp16 moving_mean"),
    ("--force-weight-to-fp16 fc1 --force-weight-to-fp32 kernel", "--force-weight-to-fp16 fc1 --force-weight-to-fp32 kernel"),
    ("--precision 8.16 --format-for lsat=fp32", "--format-for lsat"),
    ("--optimiser LARS --lars-skip-list nothing", "--lars-skip-list nothing"),
    ("--ckpts-per-epoch 0 --weight-avg-N 1", "--weight-avg-N --ckpts-per-epoch 0"),
    ("--no-validation --patience 2", "--patience 2 --no-validation"),
    ("--keep-best-ckpt --max-ckpts-to-keep 2 --ckpts-per-epoch 0", "--keep-best-ckpt --ckpts-per-epoch 0"),
    ("--precision 32.32 --automatic-loss-scaling", "--automatic-loss-scaling 32.32"),
    ("--automatic-loss-scaling --fp-exceptions", "--automatic-loss-scaling --fp-exceptions"),
    ("--native-arithmetic", "--native-arithmetic BF16"),
    ("--available-memory-proportion 0.1 0.2 0.3", "--available-memory-proportion 3"),
    ("--name-suffix a/b", "--name-suffix 'a/b'"),
]


@pytest.mark.parametrize("words, named", REFUSED)
def test_impossible_options_are_rejected(words, named):
    with pytest.raises(OptionError) as refused:
        notes(words)
    assert "\n" not in str(refused.value) and not [name for name in named.split() if name not in str(refused.value)]
