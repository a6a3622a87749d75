"""Photos of a folder classified by a network, and the file with the answers."""

from __future__ import annotations

import csv
import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import small_sets
from commands import run, succeed
from PIL import Image
from streams import joined, take

from cnn_harness.harness.evaluation import photo_predictions
from cnn_harness.harness.programs import build
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.resolve import prepare

CLASSES = 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return a run of one update."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    words = "--dataset fashion-mnist --model-size 8 --batch-size 8 --iterations 1 --no-validation --precision 32.32 --seed 1 --logs-path"
    succeed("train", *words.split(), folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Write a tree of four photos, one of which cannot be decoded, and files of other kinds."""
    top = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for name in ("b.png", "a, \"quoted\" 'ü'.png", "below/c.jpg", "below/.hidden.png", "cut.png"):
        (top / name).parent.mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (40, 50, 3), np.uint8)).save(top / name)
    whole = (top / "cut.png").read_bytes()
    (top / "cut.png").write_bytes(whole[: len(whole) // 2])
    (top / "below/empty.jpg").write_bytes(b"")
    (top / "readme.txt").write_text("no photo")
    return top


@pytest.fixture(scope="module")
def answered(trained, photos, tmp_path_factory):
    """Return the output of the command and its files by suffix."""
    folder = tmp_path_factory.mktemp("answers")
    results = {
        ending: succeed("validation", "--restore-path", trained, "--predict", photos, "--output", folder / f"o.{ending}")
        for ending in ("csv", "json")
    }
    return results, folder


def test_photos_are_answered_in_path_order(answered, photos):
    _, folder = answered
    with open(folder / "o.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = [str(photos / name) for name in ("a, \"quoted\" 'ü'.png", "b.png", "below/c.jpg")]
    assert [row["file"] for row in rows] == sorted(expected) == expected
    for row in rows:
        probabilities = [float(row[f"probability_{k}"]) for k in range(1, 6)]
        assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) <= 1
        assert len({row[f"class_{k}"] for k in range(1, 6)}) == 5
        assert all(int(row[f"class_{k}"]) in range(CLASSES) and row[f"name_{k}"] for k in range(1, 6))


def test_both_file_formats_agree(answered):
    _, folder = answered
    with open(folder / "o.csv", newline="", encoding="utf-8") as file:
        flat = [list(row.values()) for row in csv.DictReader(file)]
    objects = json.loads((folder / "o.json").read_text(encoding="utf-8"))
    assert [
        [each["file"], *(cell for top in each["top"] for cell in (top["class"], top["name"], top["probability"]))]
        for each in objects
    ] == [[row[0], *(cell(text) for cell, text in zip((int, str, float) * 5, row[1:]))] for row in flat]


def test_photo_names_cannot_control_terminal():
    assert photo_predictions.table("a\x1b[31m\nb\udce9.jpg", ()) == "a\\x1b[31m\\nb\\udce9.jpg"


def test_unreadable_photos_are_left_out_by_name(answered, photos):
    for result in answered[0].values():
        assert f"{photos / 'cut.png'} cannot be decoded" in result.out
        assert f"{photos / 'below/empty.jpg'}, which is empty" in result.out
        assert "for 3 photos: " in result.out
        assert "%" not in result.out  # the table is in the file


def test_damaged_named_photo_is_error(trained, photos, tmp_path):
    words = ("--restore-path", trained, "--predict", photos / "cut.png", "--output", tmp_path / "o.csv")
    result = run("validation", *words)
    assert result.code == 2 and result.err.count("\n") == 1 and "cannot be decoded" in result.err
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--predict {top}/empty", "{top}/empty"),
        ("--predict {photo} --output a.txt", "a.txt"),
        ("--predict {photo} --output {top}/folder.csv", "{top}/folder.csv"),
        ("--predict {photo} --output missing/a.csv", "missing"),
        ("--predict {photo} --output {run}/training.csv", "{run}"),
        ("--predict {photo} --output {top}/theirs.csv", "{top}/theirs.csv"),
        ("--output a.csv", "a.csv"),
    ],
)
def test_wrong_input_fails_before_building(words, named, trained, photos, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "theirs.csv").write_text("a,b\n1,2\n")
    places = {"top": tmp_path, "photo": photos / "b.png", "run": trained}
    given = [word.format(**places) for word in words.split()]
    result = run("validation", "--restore-path", trained, "--dry-run", *given)
    assert result.code == 2 and named.format(**places) in result.err and result.err.count("\n") == 1


def test_tta_averages_image_and_mirror_image(tmp_path):
    """In predictions and in every sum of a validation, compared with float64."""
    words = f"--dataset cifar-10 --data-dir {small_sets.cifar10(tmp_path, 10, 16)} --model-size 8 --batch-size 8 --seed 3"
    plain, mirrored = (
        prepare(cli.parse([*words.split(), *more], "validation", None, {}).options, {}, training=False).run
        for more in ((), ("--tta", "flip"))
    )
    execution = Execution(seed=3)
    request = plain.validation_request(execution)
    elements = joined(take(lambda: plain.data_source.validation(request)))
    images, labels = elements["image"], elements["label"]

    def probabilities(run, images) -> np.ndarray:
        with closing(build.prediction_program(run, execution.seed, request, images)) as program:
            program.rewind()
            return np.stack([program.step(k, k + 1)["probabilities"] for k in range(len(images))])

    one, other = probabilities(plain, images), probabilities(plain, images[:, :, ::-1])
    expected = (one + other) / 2
    assert np.abs(one - other).max() > 1e-3
    np.testing.assert_allclose(probabilities(mirrored, images), expected, atol=1e-6)
    with closing(build.validation_program(mirrored, execution)) as program:
        program.rewind()
        sums = program.step(0, 2)
    true = expected[np.arange(16), labels]
    rank = (expected > true[:, None]).sum(1)
    assert (sums["correct"], sums["top5"], sums["samples"]) == ((rank == 0).sum(), (rank < 5).sum(), 16)
    assert sums["loss"] == pytest.approx(-np.log(true).sum(), rel=1e-6)
