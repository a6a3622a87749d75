"""A first look at data, options and environment, before any graph: refusals, and notes of a line."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex

import photos
import pytest
from commands import run

from base import plugins
from base.errors import OptionError
from harness.commands import cli
from harness.options.sections import SECTIONS
from harness.run import rules
from harness.run.resolve import prepare

TWO = json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"index": 0}})
BASE = "--dataset cifar-10 --generated-data --model-size 8"


def notes(words: str, environ: dict[str, str] | None = None, script: str = "train") -> list[str]:
    """Return the notes of a prepared training, or of a validation's."""
    parsed = cli.parse(shlex.split(f"{BASE} {words}"), script, environ={})
    return list(prepare(parsed.options, environ or {}, training=script == "train").notes)


WARNED = [
    ("--abs-learning-rate 1000", {}, "warning: the learning rate goes up to 1000"),
    ("--base-learning-rate-exponent 1 --batch-size 64", {}, "warning: the learning rate goes up to 128"),
    ("--abs-learning-rate 3 --optimiser RMSprop", {}, "warning: the learning rate goes up to 3"),
    ("--iterations 1", {}, "warning: the learning rate is 0 in all 1 updates"),
    ("--warmup-epochs 20 --epochs 10", {}, "warning: --warmup-epochs 20 is the whole run"),
    ("--precision 16.16 --loss-scaling 1e20", {}, "warning: --loss-scaling 1e+20"),
    ("--optimiser Adam", {}, "warning: --optimiser Adam keeps mean squares"),
    ("--optimiser LAMB --abs-learning-rate 0.01 --precision 32.32 --slot-format e5m2", {}, "warning: --optimiser LAMB keeps mean"),
    ("--batch-norm --batch-size 1", {}, "warning: batch norm sees one image"),
    ("--BN-decay 1", {}, "warning: --BN-decay 1"),
    ("", {"TF_CONFIG": TWO}, "warning: TF_CONFIG names 2 workers, and this process trains alone; give --distributed"),
    ("", {"OMPI_COMM_WORLD_SIZE": "3"}, "warning: mpirun started 3 processes, and each of them trains alone"),
    ("--momentum 0.5", {}, "--momentum 0.5 has no effect with --optimiser SGD"),
    ("--optimiser momentum --lars-eeta 0.1", {}, "--lars-eeta 0.1 has no effect with --optimiser momentum"),
    ("--groups 4 --contiguous-groups", {}, "--contiguous-groups has no effect without group norm"),
    ("--group-norm --BN-decay 0.9", {}, "--BN-decay 0.9 has no effect without batch norm"),
    ("--precision 32.32 --fp32-accumulators", {}, "--fp32-accumulators has no effect without half precision"),
    ("--enable-half-partials", {}, "--enable-half-partials is not emulated"),
    ("--pipeline-schedule Grouped", {}, "--pipeline-schedule Grouped has no effect without several stages"),
    ("--identical-replica-seeding", {}, "--identical-replica-seeding has no effect without several replicas"),
    ("--worker-timeout 5", {}, "--worker-timeout 5.0 has no effect without several processes"),
    ("--wandb-project x", {}, "--wandb-project x has no effect without --wandb"),
    (
        "--frozen-norm-statistics batch --batch-norm",
        {},
        "--frozen-norm-statistics batch has no effect without frozen batch norms",
    ),
    ("--no-logs --logs-path run", {}, "--logs-path run has no effect without --logs"),
    ("--gradient-accumulation-count 4 --fold 2 --fold-memory 5", {}, "--fold-memory 5 has no effect without --fold auto"),
    ("--ckpts-per-epoch 0 --max-ckpts-to-keep 2", {}, "--max-ckpts-to-keep 2 has no effect without a checkpoint"),
    ("--symmetric-input", {}, "--symmetric-input has no effect without photos"),
    ("--no-dataset-cache", {}, "--no-dataset-cache has no effect without data files"),
    ("--data-dir /data", {}, "--data-dir /data has no effect without data files"),
]  # fmt: skip


@pytest.mark.parametrize("words, environ, begins", WARNED)
def test_mistakes_that_cost_hours_are_warned_of(words, environ, begins):
    assert [note for note in notes(words, environ) if note.startswith(begins)], notes(words, environ)


@pytest.mark.parametrize(
    "words, environ",
    [
        ("", {}),
        ("--optimiser LARS --abs-learning-rate 29", {}),  # for batches of 65,536
        ("--abs-learning-rate 48", {}),  # EfficientNet's 2^-7 x 6144
        ("--abs-learning-rate 512 --epochs 1", {}),  # which the warm-up does not reach
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


def test_what_an_option_needs_exists():
    """Every `needs` is a condition, or a switch or value of another option."""
    parsed = cli.parse(shlex.split(BASE), "train", environ={})
    run = prepare(parsed.options, {})
    for section in SECTIONS.values():
        for field in dataclasses.fields(section):
            if field.metadata["needs"]:
                assert rules._is_met(field.metadata["needs"], run) in (True, False)


@pytest.mark.parametrize("model", plugins.names("Models"))
def test_any_model_takes_any_option_of_norms(model):
    """A model without norms ended in a traceback."""
    size = "--model-size B0" if model == "efficientnet" else ""
    words = f"--dataset imagenet --generated-data --model {model} {size} --force-unstable-norm --stable-norm"
    parsed = cli.parse(shlex.split(words), "train", environ={})
    prepare(parsed.options, {})


@pytest.mark.parametrize(
    "words, begins",
    [
        ("--momentum 1", "command line: --momentum: momentum is '1' but must be at least 0 and below 1"),
        ("--adam-beta2 1", "command line: --adam-beta2: adam_beta2 is '1'"),
        ("--optimiser RMSprop --abs-learning-rate 0.01 --rmsprop-base-decay-exp -70", "--rmsprop-base-decay-exp -70: 1 - glob"),
        ("--label-smoothing 0.9", "--label-smoothing 0.9 makes the true class no more likely"),
        ("--dataset imagenet --model-size 18 --num-classes 1", "data set imagenet has one class"),
        ("--image-mean 124 116 104 --image-std 58 57 57", "--image-mean and --image-std are of pixels from 0 to 255"),
        ("--num-classes 3", "--num-classes 3 contradicts"),
        ("--dataset-percentage-to-use 50", "--dataset-percentage-to-use 50 takes a part"),
        ("--validation-split 0.1", "--validation-split 0.1 is for folders"),
        ("--variable-filter nothing", "--variable-filter nothing: no trained variable's name contains it"),
        ("--force-weight-to-fp16 fc1 --force-weight-to-fp32 kernel", "--force-weight-to-fp16 fc1 and --force-weight-to-fp32"),
        ("--precision 8.16 --format-for lsat=fp32", "--format-for lsat=fp32: no convolution's"),
        ("--optimiser LARS --lars-skip-list nothing", "--lars-skip-list nothing matches no variable"),
        ("--ckpts-per-epoch 0 --weight-avg-N 1", "--weight-avg-N and --weight-avg-exp average checkpoints"),
        ("--no-validation --patience 2", "--patience 2 depends on validation accuracy, but --no-validation"),
        ("--precision 32.32 --automatic-loss-scaling", "--automatic-loss-scaling back-off has nothing to go by"),
        ("--automatic-loss-scaling --fp-exceptions", "--automatic-loss-scaling back-off needs gradients that overflow"),
        ("--native-arithmetic", "--native-arithmetic multiplies in BF16"),
        ("--available-memory-proportion 0.1 0.2 0.3", "--available-memory-proportion has 3 values"),
        ("--name-suffix a/b", "--name-suffix 'a/b'"),
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_refused(words, begins):
    with pytest.raises(OptionError) as refused:
        notes(words)
    assert str(refused.value).startswith(begins)


def test_pictures_of_one_class_and_pictures_without_validation(tmp_path):
    """The one trained to a loss of 0, the other recommended to validate; validating it made a run folder first."""
    words = ("--dataset", "imagefolder", "--data-dir", tmp_path, "--model-size", 18, "--log-dir", tmp_path / "logs")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(photos.jpegs(1)[0])
        if name == "cat":
            alone = run("train", *words, "--no-validation")
    assert (alone.code, alone.err.count("\n"), "imagefolder has one class" in alone.err) == (
        2,
        1,
        True,
    )
    unseen = "no pictures for validation in "
    told = run("train", *words, "--dry-run").out
    assert f"warning: data set imagefolder: {unseen}" in told and "or train with --no-validation" in told
    assert unseen not in run("train", *words, "--dry-run", "--no-validation").out
    for script in (("validation",), ("inference_embedded", "--iterations", 2)):
        refused = run(script[0], *words, *script[1:])
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1) and unseen in refused.err
    assert not (tmp_path / "logs").exists()


def test_data_whose_folder_no_run_could_name_again_are_refused(tmp_path, monkeypatch):
    """The run was trained, and could neither go on nor be validated."""
    folder = tmp_path / os.fsdecode(b"lat\xe9")
    for name in ("cat", "dog"):
        (folder / "pics" / name).mkdir(parents=True)
        (folder / "pics" / name / "1.jpg").write_bytes(photos.jpegs(1)[0])
    monkeypatch.chdir(folder)
    words = ("--dataset", "imagefolder", "--data-dir", "pics", "--model-size", 18, "--no-validation", "--dry-run")
    refused = run("train", *words)
    assert (refused.code, refused.err.count("\n")) == (2, 1) and "which is no UTF-8 text" in refused.err
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    assert run("train", *words[:3], "link/pics", *words[4:]).code == 0
