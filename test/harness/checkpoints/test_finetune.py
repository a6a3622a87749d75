"""Start from the weights of another run, and train a part of the network."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from commands import assert_same_bits, run, succeed, training_program, variables

from cnn_harness.emulator.program.variables import ProgramVariables
from cnn_harness.harness.checkpoints import compatibility, conversion, read, write
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from cnn_harness.harness.options.sections import UPDATE_RULES
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run

BASE = "--precision 32.32 --dataset fashion-mnist --model-size 8 --batch-size 8 --seed 3 --optimiser momentum --no-validation --iterations 4"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("init") / "run"
    succeed("train", *BASE.split(), "--abs-learning-rate", 0.05, "--logs-path", folder)
    return folder


def prepared(words: str) -> Run:
    return prepare(cli.parse(f"{BASE} {words}".split(), "train", environ={}).options, {}).run


def test_run_starts_at_zero_with_other_weights(trained, tmp_path):
    out = succeed("train", *BASE.split(), "--logs-path", tmp_path / "run", "--init-path", trained).out
    assert f"Initial weights: {trained / 'ckpt-4'}" in out and "by a multiple of" not in out
    source, start = variables(trained, 4), variables(tmp_path / "run", 0)
    assert start["global_step"] == 0
    assert all(source[name].tobytes() == start[name].tobytes() for name in source if name != "global_step")
    for path in (trained / "ckpt-4", trained / "ckpt-4.index"):
        assert read.load_init_path(path)[0].prefix == str(trained / "ckpt-4")


@pytest.mark.parametrize(
    "layout", ["", "--shards 3 --pipeline --pipeline-splits b2/0/relu b3/0/relu --enable-recomputation"]
)
def test_only_filtered_parameters_change(trained, tmp_path, layout):
    words = f"{BASE} --gradient-accumulation-count 2 --abs-learning-rate 0.05 --variable-filter fc1 b3/0/2 {layout}"
    succeed("train", *words.split(), "--logs-path", tmp_path / "run", "--init-path", trained)
    before, after = variables(tmp_path / "run", 0), variables(tmp_path / "run", 4)
    changed = {name for name in after if not np.array_equal(before[name], after[name])} - {"global_step"}
    wanted = {name for name in after if "fc1" in name or "b3/0/2" in name}
    assert changed == wanted
    assert any("moving_mean" in name for name in changed)  # only of the norm that the filter names
    slots = {name for name in after if name.endswith("/Momentum")}
    assert slots == {
        f"{name}/Momentum" for name in wanted if not name.endswith(("/Momentum", "moving_mean", "moving_variance"))
    }


@pytest.mark.slow
def test_frozen_parts_are_not_differentiated():
    def backward(words: str) -> int:
        built = training_program(prepared(words), 0)
        count = sum(op.type.endswith("Conv2DBackpropInput") for op in built.graph.get_operations())
        built.close()
        return count

    assert backward("") == 7
    assert backward("--variable-filter b3") == 2
    assert backward("--variable-filter fc1") == 0


def test_new_class_count_gets_new_classifier(trained, tmp_path):
    other = BASE.replace("fashion-mnist", "cifar-100 --generated-data")
    out = succeed("train", *other.split(), "--logs-path", tmp_path / "run", "--init-path", trained).out
    assert "all/fc1/dense is initialised" in out and "other names" not in out
    source, start = variables(trained, 4), variables(tmp_path / "run", 0)
    assert np.array_equal(source["all/b0/conv/conv2d/kernel"], start["all/b0/conv/conv2d/kernel"])
    assert start["all/fc1/dense/kernel"].shape == (64, 100)


def test_unfit_or_missing_weights_are_errors(trained, tmp_path):
    """The errors come before any graph is built, so a dry run shows them."""
    other = "does not fit the network of this call: all/b1/1/1/conv/conv2d/kernel is missing"
    rule = "does not fit the optimiser of this call: all/b0/conv/conv2d/kernel/LAMB_m is missing"
    begin, going_on = ("train", *BASE.split()), ("restore", "--iterations", 9, "--restore-path")
    for words, said in (
        ((*begin, "--model-size", 14, "--logs-path", tmp_path / "x", "--init-path", trained), other),
        ((*begin, "--model-size", 14, "--dry-run", "--init-path", trained / "ckpt-0"), other),
        ((*begin, "--dry-run", "--init-path", "efficientnet-lite0"), "efficientnet_lite0.npz does not fit the network"),
        ((*begin, "--logs-path", tmp_path / "x", "--init-path", tmp_path / "nowhere"), "no checkpoint found"),
        ((*going_on, trained, "--optimiser", "LAMB", "--dry-run"), rule),
        (("validation", "--restore-path", trained, "--model-size", 14, "--dry-run"), other),
    ):
        result = run(*words)
        assert result.code == 2 and said in result.err, (words, result.err)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("rule", UPDATE_RULES)
def test_saved_variables_are_known_without_tensorflow(rule):
    for words in ("--precision 16.16 --offload-fp32-weight-copy", "--precision 16.32 --force-weight-to-fp16 fc1"):
        asked = prepared(f"{words} --optimiser {rule} --abs-learning-rate 0.1 --variable-filter b3 fc1")
        with tf.Graph().as_default():
            slots, precision = UPDATE_RULES[rule].slots, asked.plan.precision
            weights = ProgramVariables(asked.network.variables, 0, slots, asked.is_trained, precision=precision)
            kept = {name: variable.shape.as_list() for name, variable in weights.saved.items()}
        assert {name: list(each.shape) for name, each in compatibility.expected_training_tensors(asked).items()} == kept


def test_damaged_index_without_manifest_is_rejected(trained, tmp_path):
    whole, rng, good = (trained / "ckpt-4.index").read_bytes(), np.random.default_rng(1), variables(trained, 4)
    (tmp_path / "x.data-00000-of-00001").symlink_to(trained / "ckpt-4.data-00000-of-00001")
    for _ in range(100):
        at = int(rng.integers(len(whole)))
        changed = whole[:at] + bytes([whole[at] ^ int(rng.integers(1, 256))]) + whole[at + 1 :]
        for content in (changed, whole[:at], whole[at:]):
            (tmp_path / "x.index").write_bytes(content)
            with suppress(CheckpointError):
                assert_same_bits(read.tensors(Checkpoint(str(tmp_path / "x"))), good)


def test_tensors_of_every_type_are_read(tmp_path):
    kinds = (
        *["f4", "f8", "f2", "i1", "u1", "i2", "i4", "i8", "?"],
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e4m3fn,
    )
    values = {f"{k}": np.arange(6).reshape(2, 3).astype(kind) for k, kind in enumerate(kinds)} | {"scalar": np.int64(3)}
    for name in ("plain", "[a]*?", os.fsdecode(b"\xff")):
        (tmp_path / name).mkdir()
        found = write.write_checkpoint(tmp_path / name / "x[1]", values)
        assert_same_bits(read.tensors(found), values)


def test_oversized_index_takes_no_memory(tmp_path):
    found = write.write_checkpoint(tmp_path / "x", {"w": np.zeros(1 << 20)})
    (tmp_path / "x.manifest.json").unlink()
    os.truncate(tmp_path / "x.data-00000-of-00001", 8)
    with pytest.raises(CheckpointError, match="its files have 8 bytes, but its index lists tensors of 8,388,608"):
        read.tensors(found)


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def copied(index: Path) -> None:
    for file in index.parent.glob("ckpt-0.*"):
        shutil.copy(file, index.with_name(file.name.replace("-0", "-4", 1)))


DAMAGE = {  # file of the checkpoint, damage, missing files
    "cut": ("data-00000-of-00001", lambda file: os.truncate(file, 1000), "manifest.json"),
    "index": ("index", lambda file: os.truncate(file, 700), "manifest.json"),
    "flipped": ("data-00000-of-00001", flipped, "none"),
    "a byte": ("data-00000-of-00001", flipped, "manifest.json"),
    "copied": ("index", copied, ("manifest.json", "state.json")),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_dry_run_rejects_damaged_checkpoint(trained, tmp_path, case):
    """A damaged checkpoint is an error if named by its prefix; in a folder it is skipped."""
    name, damage, without = DAMAGE[case]
    for file in [*trained.glob("ckpt-?.*"), trained / "arguments.json"]:
        if not file.name.endswith(without):
            shutil.copy(file, tmp_path)
    damage(tmp_path / f"ckpt-4.{name}")
    weights = tmp_path / "ckpt-4"
    for words in (("train", *BASE.split(), "--init-path", weights), ("validation", "--restore-path", weights)):
        result = run(*words, "--dry-run")
        assert (result.code, result.err.count("\n")) == (2, 1) and f"{weights} is damaged" in result.err
    shown = succeed("validation", "--restore-path", tmp_path, "--dry-run").out
    assert "warning: checkpoint ckpt-4 is damaged" in shown
    os.truncate(tmp_path / "ckpt-0.index", 700)
    result = run("validation", "--restore-path", tmp_path, "--dry-run")
    assert result.code == 2 and str(tmp_path) in result.err


BIAS, KERNEL, VARIANCE = "all/fc1/dense/bias", "all/fc1/dense/kernel", "all/b0/batch_norm/moving_variance"
FAULTS = {  # variable, first value, options, limit in the message
    "nan": (BIAS, np.nan, "", "not finite"),
    "half": (BIAS, 1e6, "--precision 16.32", "FP16's 65504"),
    "single": (BIAS, 1e300, "--precision 16.16", "FP16's 65504"),
    "double": (KERNEL, 1e300, "", "FP32's 3.403e+38"),
    "variance": (VARIANCE, -1.0, "--batch-norm", "negative"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_unusable_weights_are_named(tmp_path, case, monkeypatch):
    name, value, words, limit = FAULTS[case]
    arrays = {each.name: np.zeros(each.shape) for each in prepared(words).network.variables}
    arrays[name].flat[0] = value
    np.savez(tmp_path / "w.npz", **arrays)
    result = run("train", *BASE.split(), *words.split(), "--dry-run", "--init-path", tmp_path / "w.npz")
    assert result.code == 2 and f"weights {tmp_path}/w.npz: {name} holds " in result.err and limit in result.err
    assert (
        run("train", *BASE.split(), *words.split(), "--dry-run", "--init-path", tmp_path / "w.npz", "--keep-going").code == 0
    )
    if case == "nan":
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))  # a dry run writes nothing, so it needs no folder
        shown = succeed("validation", *BASE.split(), "--generated-data", "--no-logs", "--restore-path", tmp_path / "w.npz")
        assert f"warning: weights {tmp_path}/w.npz: {name} holds " in shown.out
        (tmp_path / "a.jpg").write_bytes(photos.jpegs(1)[0])
        words = ("--no-logs", "--predict", tmp_path / "a.jpg", "--output", tmp_path / "a.json")
        asked = run("validation", *BASE.split(), "--restore-path", tmp_path / "w.npz", *words)
        assert asked.code == 2 and f"{tmp_path}/w.npz are not finite" in asked.err
        assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    ("kernel", "bias", "fits"),
    [((64, 10), (10,), True), ((64, 7), (7,), True), ((10, 64), (10,), False), ((64, 7), (10,), False),
     ((64, 10), (10, 1), False), ((32, 7), (7,), False), ((64, 7), (8,), False)],
)  # fmt: skip
def test_classifier_is_reset_only_for_other_classes(kernel, bias, fits):
    asked, weights = prepared(""), Checkpoint("w.npz", -1)
    found = {name: each.shape for name, each in compatibility.expected_model_tensors(asked).items()} | {
        KERNEL: kernel,
        BIAS: bias,
    }
    if fits:
        assert conversion.classifier_to_reinitialise(found, asked, weights) == ([KERNEL, BIAS] if kernel[1] == 7 else [])
    else:
        with pytest.raises(CheckpointError, match="does not fit the network of this call: all/fc1/dense/"):
            conversion.classifier_to_reinitialise(found, asked, weights)


def test_network_options_come_from_weights(trained, tmp_path):
    """The call's own options win. If the weights do not fit, the error names the differences."""
    imagenet = ("--dataset", "imagenet", "--generated-data", "--iterations", "1", "--dry-run")
    shown = succeed("train", "--init-path", "efficientnet-lite0", *imagenet).out
    assert "taken from --init-path efficientnet-lite0: " in shown and "se no, symmetric_input yes" in shown
    assert "EfficientNet-B0_bs4_BN" in shown
    for words, differing in (
        ("--model resnet", "model efficientnet, not resnet"),
        ("--model efficientnet --se", "se no, not yes"),
    ):
        refused = run("train", "--init-path", "efficientnet-lite0", *words.split(), *imagenet)
        assert refused.code == 2 and f"({differing}" in refused.err
    (tmp_path / "c.yml").write_text(f"again:\n  init_path: {trained}\n  dataset: fashion-mnist\n  iterations: 1\n")
    again = succeed("train", "--config-path", tmp_path / "c.yml", "--config", "again", "--dry-run").out
    assert f"taken from --init-path {trained}: " in again and "model_size 8" in again
