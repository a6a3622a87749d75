"""Beginning with the weights of another run, and training a part of the network."""

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
from commands import assert_same_bits, run, succeed, variables

from base.errors import OptionError
from emulator.program.weights import ProgramVariables
from harness.checkpoints import compatibility, read, state_file, write
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.commands import cli
from harness.options.update_rules import UPDATE_RULES
from harness.programs.build import training_program
from harness.run.resolve import prepare
from harness.run.run import Run

BASE = "--precision 32.32 --dataset fashion-mnist --model-size 8 --batch-size 8 --seed 3 --optimiser momentum --no-validation --iterations 4"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("init") / "run"
    succeed("train", *BASE.split(), "--abs-learning-rate", 0.05, "--logs-path", folder)
    return folder


def prepared(words: str) -> Run:
    return prepare(cli.parse(f"{BASE} {words}".split(), "train", environ={}).options, {})


def test_a_run_begins_with_the_weights_of_another_and_counts_from_nought(trained, tmp_path):
    for k, path in enumerate((trained, trained / "ckpt-4", trained / "ckpt-4.index")):
        folder = tmp_path / str(k)
        out = succeed("train", *BASE.split(), "--logs-path", folder, "--init-path", path).out
        assert f"Begun with the weights of {trained / 'ckpt-4'}" in out
        source, start = variables(trained, 4), variables(folder, 0)
        assert start["global_step"] == 0
        assert all(source[name].tobytes() == start[name].tobytes() for name in source if name != "global_step")
        assert "differ modulo" not in out


@pytest.mark.parametrize(
    "layout", ["", "--shards 3 --pipeline --pipeline-splits b2/0/relu b3/0/relu --enable-recomputation"]
)
def test_only_what_the_filter_names_moves(trained, tmp_path, layout):
    words = f"{BASE} --gradient-accumulation-count 2 --abs-learning-rate 0.05 --variable-filter fc1 b3/0/2 {layout}"
    succeed("train", *words.split(), "--logs-path", tmp_path / "run", "--init-path", trained)
    before, after = variables(tmp_path / "run", 0), variables(tmp_path / "run", 4)
    changed = {name for name in after if not np.array_equal(before[name], after[name])} - {"global_step"}
    wanted = {name for name in after if "fc1" in name or "b3/0/2" in name}
    assert changed == wanted
    assert any("moving_mean" in name for name in changed)  # of the norm that the filter names, and of no other
    slots = {name for name in after if name.endswith("/Momentum")}
    assert slots == {
        f"{name}/Momentum" for name in wanted if not name.endswith(("/Momentum", "moving_mean", "moving_variance"))
    }


def test_what_is_trained_moves_as_if_all_were(trained, tmp_path):
    """The first update of a part is that part of the first update of all."""
    for name, words in (("all", []), ("part", ["--variable-filter", "fc1"])):
        succeed("train", *BASE.split(), "--iterations", 1, "--abs-learning-rate", 0.05, "--logs-path", tmp_path / name,
                "--init-path", trained, *words)  # fmt: skip
    whole, part = variables(tmp_path / "all", 1), variables(tmp_path / "part", 1)
    for name in ("all/fc1/dense/kernel", "all/fc1/dense/bias"):
        np.testing.assert_allclose(whole[name], part[name], rtol=1e-5, atol=1e-7)


def test_frozen_parts_are_not_differentiated():
    def backward(words: str) -> int:
        built = training_program(prepared(words), 0)
        count = sum(op.type.endswith("Conv2DBackpropInput") for op in built.graph.get_operations())
        built.close()
        return count

    assert backward("") == 7
    assert backward("--variable-filter b3") == 2
    assert backward("--variable-filter fc1") == 0


def test_a_resumed_fine_tuning_ends_with_the_same_bits(trained, tmp_path):
    words = [*BASE.split(), "--abs-learning-rate", 0.05, "--variable-filter", "b3", "fc1", "--init-path", trained]
    succeed("train", *words, "--logs-path", tmp_path / "whole")
    succeed("train", *words, "--logs-path", tmp_path / "parts", "--stop-after", 2)
    succeed("restore", "--restore-path", tmp_path / "parts")
    whole, parts = variables(tmp_path / "whole", 4), variables(tmp_path / "parts", 4)
    assert all(whole[name].tobytes() == parts[name].tobytes() for name in whole)


def test_another_number_of_classes_gets_a_new_classifier(trained, tmp_path):
    other = BASE.replace("fashion-mnist", "cifar-100 --generated-data")
    out = succeed("train", *other.split(), "--logs-path", tmp_path / "run", "--init-path", trained).out
    assert "all/fc1/dense begins anew" in out and "other names" not in out
    source, start = variables(trained, 4), variables(tmp_path / "run", 0)
    assert np.array_equal(source["all/b0/conv/conv2d/kernel"], start["all/b0/conv/conv2d/kernel"])
    assert start["all/fc1/dense/kernel"].shape == (64, 100)


def test_classes_of_other_names_are_warned_of(trained, tmp_path):
    """As many as the weights know, so that the classifier goes on with them."""
    other = [*BASE.replace("fashion-mnist", "cifar-10 --generated-data").split(), "--init-path", trained]
    warning = "warning: the classes have other names, or another order, than in the training of those weights"
    assert warning in succeed("train", *other, "--iterations", 1, "--logs-path", tmp_path / "run").out


def test_another_size_of_pictures_is_warned_of_where_it_matters(trained, tmp_path):
    for size, warned in ((42, True), (40, False)):  # the network strides 4
        words = [*BASE.split(), "--image-size", size, "--logs-path", tmp_path / str(size), "--init-path", trained]
        out = succeed("train", *words).out
        assert ("differ modulo 4," in out) == warned


def test_weights_that_do_not_fit_or_are_not_there(trained, tmp_path):
    """Known before there is a graph, and so to --dry-run."""
    other = "does not fit the network asked for: all/b1/1/1/conv/conv2d/kernel is missing"
    rule = "does not fit the optimiser asked for: all/b0/conv/conv2d/kernel/LAMB_m is missing"
    begin, going_on = ("train", *BASE.split()), ("restore", "--iterations", 9, "--restore-path")
    for words, said in (
        ((*begin, "--model-size", 14, "--logs-path", tmp_path / "x", "--init-path", trained), other),
        ((*begin, "--model-size", 14, "--dry-run", "--init-path", trained / "ckpt-0"), other),
        ((*begin, "--dry-run", "--init-path", "efficientnet-lite0"), "efficientnet_lite0.npz does not fit the network"),
        ((*begin, "--logs-path", tmp_path / "x", "--init-path", tmp_path / "nowhere"), "no checkpoint there"),
        (
            ("validation", "--restore-path", "gs://a/b.npz"),
            "--restore-path gs://a/b.npz: only files here are read; download",
        ),
        (
            (*going_on, "https://a.b/c"),
            "--restore-path https://a.b/c: only files here are read; download it first, and give",
        ),
        ((*going_on, trained, "--optimiser", "LAMB", "--dry-run"), rule),
        (("validation", "--restore-path", trained, "--model-size", 14, "--dry-run"), other),
    ):
        result = run(*words)
        assert result.code == 2 and said in result.err, (words, result.err)
    assert not (tmp_path / "x").exists()


def test_the_tensors_of_a_checkpoint_are_those_that_a_plan_expects(trained):
    expected = {name: each.shape for name, each in compatibility.expected_training_tensors(prepared("")).items()}
    assert read.shapes(Checkpoint.at(trained, 4)) == expected
    assert compatibility.shapes_of_values(read.tensors(Checkpoint.at(trained, 4))) == expected


@pytest.mark.parametrize("rule", UPDATE_RULES)
def test_what_a_training_keeps_is_known_without_tensorflow(rule):
    for words in ("--precision 16.16 --offload-fp32-weight-copy", "--precision 16.32 --force-weight-to-fp16 fc1"):
        asked = prepared(f"{words} --optimiser {rule} --abs-learning-rate 0.1 --variable-filter b3 fc1")
        with tf.Graph().as_default():
            slots, precision = UPDATE_RULES[rule].slots, asked.plan.precision
            weights = ProgramVariables(asked.trace.variables, 0, slots, asked.is_trained, precision=precision)
            kept = {name: variable.shape.as_list() for name, variable in weights.saved.items()}
        assert {name: list(each.shape) for name, each in compatibility.expected_training_tensors(asked).items()} == kept


def test_a_damaged_index_without_a_manifest_is_refused(trained, tmp_path):
    whole, rng, good = (trained / "ckpt-4.index").read_bytes(), np.random.default_rng(1), variables(trained, 4)
    (tmp_path / "x.data-00000-of-00001").symlink_to(trained / "ckpt-4.data-00000-of-00001")
    for _ in range(100):
        at = int(rng.integers(len(whole)))
        changed = whole[:at] + bytes([whole[at] ^ int(rng.integers(1, 256))]) + whole[at + 1 :]
        for content in (changed, whole[:at], whole[at:]):
            (tmp_path / "x.index").write_bytes(content)
            with suppress(CheckpointError):
                assert_same_bits(read.tensors(Checkpoint(str(tmp_path / "x"))), good)


def test_tensors_of_every_type_are_read_from_a_folder_of_any_name(tmp_path):
    kinds = (
        "f4",
        "f8",
        "f2",
        "i1",
        "u1",
        "i2",
        "i4",
        "i8",
        "?",
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e4m3fn,
    )
    values = {f"{k}": np.arange(6).reshape(2, 3).astype(kind) for k, kind in enumerate(kinds)} | {"scalar": np.int64(3)}
    for name in ("plain", "[a]*?", os.fsdecode(b"\xff")):
        (tmp_path / name).mkdir()
        found = write.save_weights_only(tmp_path / name / "x[1]", values)
        assert_same_bits(read.tensors(found), values)


def test_an_index_that_claims_more_than_its_files_have_takes_no_memory(tmp_path):
    found = write.save_weights_only(tmp_path / "x", {"w": np.zeros(1 << 20)})
    (tmp_path / "x.manifest.json").unlink()
    os.truncate(tmp_path / "x.data-00000-of-00001", 8)
    with pytest.raises(CheckpointError, match="its files have 8 bytes, and its index claims tensors of 8,388,608"):
        read.tensors(found)


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def copied(index: Path) -> None:
    for file in index.parent.glob("ckpt-0.*"):
        shutil.copy(file, index.with_name(file.name.replace("-0", "-4", 1)))


DAMAGE = {  # a file of the checkpoint, the damage, the files that are not there, and the message
    "lost": ("data-00000-of-00001", Path.unlink, "manifest.json", "its files have 0 bytes, and its index claims tensors of "),
    "cut": ("data-00000-of-00001", lambda file: os.truncate(file, 1000), "manifest.json",
            "its files have 1,000 bytes, and its index claims tensors of "),
    "index": ("index", lambda file: os.truncate(file, 700), "manifest.json", "TensorFlow cannot read it: "),
    "flipped": ("data-00000-of-00001", flipped, "none", "ckpt-4.data-00000-of-00001 has other bytes than were written"),
    "a byte": ("data-00000-of-00001", flipped, "manifest.json",
               "TensorFlow cannot read it: "),
    "copied": ("index", copied, ("manifest.json", "state.json"), "it holds the weights of update 0: it was copied or renamed"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_a_dry_run_refuses_a_damaged_checkpoint(trained, tmp_path, case):
    """By its prefix, of which nothing else is read before the training is built; among others it is left out."""
    name, damage, without, said = DAMAGE[case]
    for file in [*trained.glob("ckpt-?.*"), trained / "arguments.json"]:
        if not file.name.endswith(without):
            shutil.copy(file, tmp_path)
    damage(tmp_path / f"ckpt-4.{name}")
    weights = tmp_path / "ckpt-4"
    for words in (("train", *BASE.split(), "--init-path", weights), ("validation", "--restore-path", weights)):
        result = run(*words, "--dry-run")
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert f"checkpoint {weights} is damaged: {said}" in result.err
    if case != "flipped":
        shown = succeed("validation", "--restore-path", tmp_path, "--dry-run").out
        assert f"warning: checkpoint ckpt-4 is damaged and left out: {said}" in shown
        os.truncate(tmp_path / "ckpt-0.index", 700)
        result = run("validation", "--restore-path", tmp_path, "--dry-run")
        assert result.code == 2 and f"--restore-path {tmp_path}: all 2 checkpoints are damaged; of ckpt-0, " in result.err


def test_a_dry_run_refuses_weights_that_are_not_finite(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    weights, going_on = folder / "ckpt-4", ("restore", "--restore-path", folder, "--iterations", 8, "--dry-run")
    begin = ("train", *BASE.split(), "--dry-run", "--init-path", weights)

    def spoil(number: int) -> None:
        spoilt, values = Checkpoint.at(folder, number), variables(folder, number)
        values[BIAS][3] = np.inf
        write.save_numbered(spoilt, values, state_file.read(spoilt))

    def refused(words: tuple[object, ...], way_out: str) -> None:
        result = run(*words)
        said = f"weights {weights}: {BIAS} holds values that are not finite; {way_out}, or --keep-going to go on with these"
        assert result.code == 2 and said in result.err and run(*words, "--keep-going").code == 0

    spoil(4)
    refused(going_on, "move the checkpoints after ckpt-0 elsewhere to go back to that one")
    refused(begin, "give other weights")
    shown = succeed("validation", "--restore-path", folder, "--dry-run").out
    assert shown.count(f"warning: weights {weights}: {BIAS} holds values that are not finite\n") == 1
    initial = [folder / f"ckpt-0.{name}" for name in ("data-00000-of-00001", "manifest.json")]
    content = [file.read_bytes() for file in initial]
    flipped(initial[0])
    refused(going_on, "begin a new run, as no older checkpoint is sound")
    initial[1].unlink()
    refused(going_on, "begin a new run, as no older checkpoint is sound")
    for file, before in zip(initial, content):
        file.write_bytes(before)
    spoil(0)
    refused(going_on, "begin a new run, as no older checkpoint is sound")


BIAS, KERNEL, VARIANCE = "all/fc1/dense/bias", "all/fc1/dense/kernel", "all/b0/batch_norm/moving_variance"
FAULTS = {  # a variable, its first value, the options, and the message
    "nan": (BIAS, np.nan, "", "values that are not finite"),
    "half": (BIAS, 1e6, "--precision 16.32", "values beyond FP16's 65504 (see --precision)"),
    "single": (BIAS, 1e300, "--precision 16.16", "values beyond FP16's 65504 (see --precision)"),
    "double": (KERNEL, 1e300, "", "values beyond FP32's 3.403e+38"),
    "variance": (VARIANCE, -1.0, "--batch-norm", "negative values"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_weights_that_cannot_be_computed_with_are_named(tmp_path, case, monkeypatch):
    name, value, words, said = FAULTS[case]
    arrays = {each.name: np.zeros(each.shape) for each in prepared(words).trace.variables}
    arrays[name].flat[0] = value
    np.savez(tmp_path / "w.npz", **arrays)
    result = run("train", *BASE.split(), *words.split(), "--dry-run", "--init-path", tmp_path / "w.npz")
    assert result.code == 2 and f"weights {tmp_path}/w.npz: {name} holds {said}; " in result.err
    assert (
        run("train", *BASE.split(), *words.split(), "--dry-run", "--init-path", tmp_path / "w.npz", "--keep-going").code == 0
    )
    if case == "nan":
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))  # it needs no folder to write nothing
        shown = succeed("validation", *BASE.split(), "--generated-data", "--no-logs", "--restore-path", tmp_path / "w.npz")
        assert f"warning: weights {tmp_path}/w.npz: {name} holds {said}\n" in shown.out
        (tmp_path / "a.jpg").write_bytes(photos.jpegs(1)[0])
        words = (
            "--no-logs",
            "--restore-path",
            tmp_path / "w.npz",
            "--predict",
            tmp_path / "a.jpg",
            "--output",
            tmp_path / "a.json",
        )
        asked = run("validation", *BASE.split(), *words)
        assert asked.code == 2 and f"{tmp_path}/w.npz answers with numbers that are not finite" in asked.err
        assert not (tmp_path / "a.json").exists()


def test_weights_without_a_classifier_are_something_to_begin_with():
    """But not those of another network, which has none of the variables."""
    asked, weights = prepared(""), Checkpoint("w.npz", -1)
    found = {
        name: each.shape for name, each in compatibility.expected_model_tensors(asked).items() if name not in (KERNEL, BIAS)
    }
    assert compatibility.classifier_to_reinitialise(found, asked, weights) == [KERNEL, BIAS]
    for others in ({f"other/{name}": shape for name, shape in found.items()}, {"v": (3,)}):
        with pytest.raises(CheckpointError, match="does not fit the network asked for"):
            compatibility.classifier_to_reinitialise(others, asked, weights)


@pytest.mark.parametrize(
    ("kernel", "bias", "fits"),
    [((64, 10), (10,), True), ((64, 7), (7,), True), ((10, 64), (10,), False), ((64, 7), (10,), False),
     ((64, 10), (10, 1), False), ((32, 7), (7,), False), ((64, 7), (8,), False)],
)  # fmt: skip
def test_a_classifier_begins_anew_only_for_other_classes(kernel, bias, fits):
    asked, weights = prepared(""), Checkpoint("w.npz", -1)
    found = {name: each.shape for name, each in compatibility.expected_model_tensors(asked).items()} | {
        KERNEL: kernel,
        BIAS: bias,
    }
    if fits:
        assert compatibility.classifier_to_reinitialise(found, asked, weights) == ([KERNEL, BIAS] if kernel[1] == 7 else [])
    else:
        with pytest.raises(CheckpointError, match="does not fit the network asked for: all/fc1/dense/"):
            compatibility.classifier_to_reinitialise(found, asked, weights)


def test_a_filter_that_matches_nothing():
    with pytest.raises(OptionError) as error:
        prepared("--variable-filter fc1 dnese")
    assert str(error.value).startswith("--variable-filter dnese: no trained variable's name contains it")


def test_the_network_of_the_weights_is_taken_over_unless_the_call_says_otherwise(trained, tmp_path):
    """The switches of published weights, and of a run's; what differs is named where they do not fit."""
    photographs = ("--dataset", "imagenet", "--generated-data", "--iterations", "1", "--dry-run")
    shown = succeed("train", "--init-path", "efficientnet-lite0", *photographs).out
    assert "as --init-path efficientnet-lite0 was trained: " in shown and "se no, symmetric_input yes" in shown
    assert "EfficientNet-B0_bs4_BN" in shown
    for words, differing in (
        ("--model resnet", "model efficientnet, not resnet"),
        ("--model efficientnet --se", "se no, not yes"),
    ):
        refused = run("train", "--init-path", "efficientnet-lite0", *words.split(), *photographs)
        assert refused.code == 2 and f"the model options that it was trained with ({differing}" in refused.err
    (tmp_path / "c.yml").write_text(f"again:\n  init_path: {trained}\n  dataset: fashion-mnist\n  iterations: 1\n")
    again = succeed("train", "--config-path", tmp_path / "c.yml", "--config", "again", "--dry-run").out
    assert f"as --init-path {trained} was trained: " in again and "model_size 8" in again
