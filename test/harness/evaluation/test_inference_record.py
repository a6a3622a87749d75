"""A run classifies photos without its data set, with the class names recorded with its weights."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import run, succeed
from PIL import Image

from cnn_harness.harness.evaluation import inference_record

NAMES = ["ant", "bee", "größe"]


def write_tree(top: Path, names: list[str]) -> Path:
    """Write four images of every class."""
    draw = np.random.default_rng(1)
    for name in names:
        (top / name).mkdir(parents=True)
        for k in range(4):
            Image.fromarray(draw.integers(0, 256, (32, 32, 3), np.uint8)).save(top / name / f"{k}.png")
    return top


@pytest.fixture(scope="module")
def moved(tmp_path_factory) -> Path:
    """Return a folder with a run and a photo; the data set was moved away."""
    top = tmp_path_factory.mktemp("record")
    data = write_tree(top / "data", NAMES)
    words = "--dataset imagefolder --model resnet --model-size 10 --image-size 32 --precision 32.32 --batch-norm"
    rest = "--iterations 1 --micro-batch-size 4 --seed 3 --abs-learning-rate 0.01 --no-validation"
    succeed("train", *words.split(), *rest.split(), "--data-dir", data, "--logs-path", top / "run")
    shutil.move(data / "ant" / "0.png", top / "photo.png")
    shutil.rmtree(data)
    return top


def shown(out: str) -> list[str]:
    """Return the sorted names in a table of predictions."""
    return sorted(re.findall(r"%  (.+)", out))


@pytest.mark.slow
def test_class_names_survive_loss_of_data(moved):
    out = succeed("validation", "--restore-path", moved / "run", "--predict", moved / "photo.png").out
    assert shown(out) == NAMES
    without = shutil.copytree(moved / "run", moved / "without")
    (without / "inference.json").unlink()
    out = succeed("validation", "--restore-path", without, "--predict", moved / "photo.png").out
    assert shown(out) == ["class 0", "class 1", "class 2"]


def test_other_data_never_rename_classes(moved, tmp_path):
    other = write_tree(tmp_path / "other", ["ant", "bee", "zebra"])
    out = succeed("validation", "--restore-path", moved / "run", "--data-dir", other, "--predict", moved / "photo.png").out
    assert shown(out) == NAMES and "predictions use the names of the training" in out


def test_run_resumes_only_with_same_class_names(moved, tmp_path):
    """With another set of as many classes it resumed with shifted labels, and validation counted them as wrong."""
    folder = shutil.copytree(moved / "run", tmp_path / "run")
    other = write_tree(tmp_path / "other", ["ant", "bee", "zebra"])
    before = (folder / "inference.json").read_bytes()
    for words in (("restore", "--iterations", 2), ("validation", "--validation-split", 0.5)):
        refused = run(*words, "--restore-path", folder, "--data-dir", other)
        assert refused.code == 2 and "zebra for größe" in refused.err and refused.err.count("\n") == 1
    assert (folder / "inference.json").read_bytes() == before


@pytest.mark.parametrize(
    "content", ['{"classes": ["ant", "bee", "wasp"]}', '{"classes": ["ant", "bee"]}', '{"classes": "ant"}', "[" * 100, ""]
)
def test_damaged_record_is_named(moved, tmp_path, content):
    folder = shutil.copytree(moved / "run", tmp_path / "run")
    (folder / inference_record.FILE).write_text(content)
    result = run("validation", "--restore-path", folder, "--predict", moved / "photo.png")
    assert result.code == 2 and f"{folder}/inference.json" in result.err and len(result.err.splitlines()) == 1
