"""Beginning with the weights of another run, and training a part of the network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runs import run, succeed, variables

from harness import cli
from harness.build import training_program
from harness.options import OptionError
from harness.run import prepare

BASE = "--precision 32.32 --dataset fashion-mnist --model-size 8 --batch-size 8 --seed 3 --optimiser momentum --no-validation --iterations 4"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("init") / "run"
    succeed("train", *BASE.split(), "--abs-learning-rate", 0.05, "--logs-path", folder)
    return folder


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
        options = cli.parse(f"{BASE} {words}".split(), "train", environ={}).options
        built = training_program(prepare(options, {}), 0)
        count = sum(op.type == "Conv2DBackpropInput" for op in built.graph.get_operations())
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
    assert "all/fc1/dense begins anew" in out
    source, start = variables(trained, 4), variables(tmp_path / "run", 0)
    assert np.array_equal(source["all/b0/conv/conv2d/kernel"], start["all/b0/conv/conv2d/kernel"])
    assert start["all/fc1/dense/kernel"].shape == (64, 100)


def test_another_size_of_pictures_is_warned_of_where_it_matters(trained, tmp_path):
    for size, warned in ((42, True), (40, False)):  # the network strides 4
        words = [*BASE.split(), "--image-size", size, "--logs-path", tmp_path / str(size), "--init-path", trained]
        out = succeed("train", *words).out
        assert ("differ modulo 4," in out) == warned


def test_weights_that_do_not_fit_or_are_not_there(trained, tmp_path):
    wide = BASE.replace("--model-size 8", "--model-size 14")
    result = run("train", *wide.split(), "--logs-path", tmp_path / "x", "--init-path", trained)
    assert result.code == 2
    assert "does not fit the network asked for: all/b1/1/1/conv/conv2d/kernel is missing" in result.err
    result = run("train", *BASE.split(), "--logs-path", tmp_path / "y", "--init-path", tmp_path / "nowhere")
    assert result.code == 2
    assert "--init-path" in result.err and "no checkpoint there" in result.err
    assert not (tmp_path / "y").exists()


def test_a_filter_that_matches_nothing():
    with pytest.raises(OptionError) as error:
        prepare(cli.parse(f"{BASE} --variable-filter fc1 dnese".split(), "train", environ={}).options, {})
    assert str(error.value).startswith("--variable-filter dnese: no trained variable's name contains it")
