"""Fine-tuning on a folder of images: the survey, the training run, and the same call again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import Result, run
from PIL import Image

from cnn_harness.base.errors import DataError
from cnn_harness.harness.checkpoints import read
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.run import validations
from cnn_harness.tools import survey

SMALL = ("--image-size", 96, "--batch-size", 4, "--seed", 3)  # Lite0 takes them too
COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 60)}


def write_images(top: Path, per_class: int = 10, size: tuple[int, int] = (40, 36)) -> Path:
    """Write noise of one colour per class, the same bytes in every call."""
    random = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (top / name).mkdir(parents=True)
        for k in range(per_class):
            noise = random.normal(0, 20, (size[1], size[0], 3))
            Image.fromarray(np.uint8(np.clip(noise + colour, 0, 255))).save(top / name / f"{k}.png")
    return top


def finetuned(*words: object) -> Result:
    return run("finetune", *words)


# --- The survey --------------------------------------------------------------------------------------------------


def test_survey_describes_folder(tmp_path):
    top = write_images(tmp_path / "photos", 12)
    tags = Image.Exif()
    tags[0x0112] = 6
    Image.new("RGB", (300, 100)).save(top / "blue" / "wide.jpg", exif=tags)
    shutil.copy(top / "blue" / "3.png", top / "blue" / "again.png")
    shutil.copy(top / "blue" / "3.png", top / "green" / "other.png")
    (top / "blue" / "notes.txt").write_text("no image")
    Image.new("RGBA", (3, 3), (9, 9, 9, 0)).save(top / "green" / "clear.png")
    (top / "green" / "broken.png").write_bytes(b"")
    (top / "green" / "cut.png").write_bytes((top / "green" / "3.png").read_bytes()[:-40])
    found = survey.scan_folder(top)
    assert found.lines[:3] == [
        f"{top}: 28 images in 2 classes, 14 each, without 2 damaged files",
        "classes: blue, green",
        "image sizes: 3 x 3 to 300 x 100 pixels",
    ]
    assert found.lines[3].startswith("rotated") and found.lines[3].endswith(": 1 image")
    rest = "\n".join(found.lines[4:])
    assert (
        str(top / "blue" / "notes.txt") in rest and "2 images are copies of others" in rest and "blue/again.png of" in rest
    )
    assert "more than one class" in rest and "fewer than" not in rest
    assert "1 image with a side below 16 pixels, for example green/clear.png" in rest
    assert "1 image has transparent pixels, for example green/clear.png" in rest
    assert [bad.file.name for bad in found.bad] == ["broken.png", "cut.png"]
    few = "\n".join(survey.scan_folder(write_images(tmp_path / "few", 3)).lines)
    assert "fewer than 10 images: blue (3), green (3)" in few


def test_survey_rejects_unsuitable_folders(tmp_path):
    one = write_images(tmp_path / "one", 2)
    shutil.rmtree(one / "green")
    same = write_images(tmp_path / "same", 2)
    for file in same.rglob("*.png"):
        shutil.copyfile(same / "blue" / "1.png", file) if file != same / "blue" / "1.png" else None
    damaged = write_images(tmp_path / "damaged", 2)
    for file in (damaged / "green").iterdir():
        file.write_bytes(file.read_bytes()[:-40])
    unseen = write_images(tmp_path / "unseen" / "train", 2).parent
    (unseen / "val" / "blue").mkdir(parents=True)
    (unseen / "val" / "blue" / "bad.jpg").write_bytes(b"no image")
    for top, said in (
        (tmp_path / "nowhere", "is not a folder"), (one, "has only one class, blue"),
        (same, "all 4 images in .* are identical"), (damaged, "all 2 images of class green cannot be used"),
        (unseen, "the only image of the validation set cannot be used"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=said):
            survey.scan_folder(top)
        refused = finetuned(top)
        assert refused.code == 2 and refused.err.count("\n") == 1 and not refused.out


# --- The training ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("PHOTOS --restore-path x", "--restore-path"),
        ("PHOTOS --epoch-count 3", "--epoch-count"),
        ("PHOTOS --epochs many", "epochs is 'many'"),
        ("PHOTOS --distributed", "--distributed"),
        ("PHOTOS --no-validation", "--no-validation"),
        ("PHOTOS --init-path nowhere", "--init-path nowhere"),
        ("PHOTOS --ckpts-per-epoch 0 --image-size 96 --batch-size 4", "--ckpts-per-epoch 0"),
        ("", "cnn finetune photos"),
    ],
)
def test_wrong_options_fail_before_training(words, named, tmp_path):
    images = write_images(tmp_path / "p", 5)
    given = [images if word == "PHOTOS" else word for word in words.split()]
    refused = finetuned(*given, *["--logs-path", tmp_path / "logs"] * bool(given))
    assert refused.code == 2 and named in refused.err and not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--model squeezenet --dataset fashion-mnist", "relu"),
        ("--model-size 8 --dataset cifar-10 --generated-data", "random"),
    ],
)
def test_unfit_classifier_is_rejected(words, named, tmp_path):
    words = (*words.split(), "--no-validation", "--micro-batch-size", 2, "--iterations", 1)
    begun = run("train", *words, "--logs-path", tmp_path / "begun")
    assert begun.code == 0, begun.err
    refused = run("train", *words, "--logs-path", tmp_path / "l", "--init-path", tmp_path / "begun", "--fit-classifier")
    assert refused.code == 2 and "--fit-classifier" in refused.err and named in refused.err and not (tmp_path / "l").exists()


def test_fp32_copy_of_classifier_is_fitted(tmp_path):
    """Updates change the copy, not the narrower weight."""
    network = ("--model", "resnet", "--model-size", 10, "--precision", "16.16", "--offload-fp32-weight-copy")
    words = (write_images(tmp_path / "p", 4), *network, *SMALL, "--image-size", 32, "--no-validation", "--iterations", 1)
    assert run("train", *words, "--logs-path", tmp_path / "begun").code == 0
    fitted = run("train", *words, "--logs-path", tmp_path / "l", "--init-path", tmp_path / "begun", "--fit-classifier")
    assert fitted.code == 0, fitted.err
    values = read.tensors(Checkpoint(str(tmp_path / "l" / "ckpt-0")))
    copies = {name: value for name, value in values.items() if name.endswith(("dense/kernel/fp32", "dense/bias/fp32"))}
    assert copies and all(np.allclose(values[name[:-5]], value, rtol=1e-3, atol=1e-6) for name, value in copies.items())


def test_best_weights_count_and_same_call_resumes(tmp_path):
    top = write_images(tmp_path / "photos", 11)
    logs = top / "logs"  # as if called in the folder of images itself
    call = (top, *SMALL, "--epochs", 2, "--logs-path", logs)
    done = finetuned(*call)
    assert done.code == 0, done.err
    assert done.out.count("\n") <= 30
    lines = validations.of_run(logs)
    assert [float(row["epoch"]) for row in lines] == [0, 1, 2] and "\nepoch 2:" in done.out
    best = validations.ranked(lines, "loss")[0]
    assert [row["name"] for row in lines] == ["ckpt-0", "ckpt-5", "ckpt-10"] and float(lines[0]["val_acc"]) > 70
    assert f"{best['name']}, {float(best['val_acc']):.1f}%" in done.out
    checkpoint = read.load_network_in(logs)[0]
    assert checkpoint.name == best["name"]
    kept = {file.stem for file in logs.glob("ckpt-*.index")}
    assert {best["name"], "ckpt-10"} <= kept and len(kept) <= 3  # the best one before the last validation, too
    page = (logs / "report.html").read_text()
    assert best["name"] in page and "Confusion matrix" in page
    named = run("validation", "--restore-path", logs, "--predict", top / "green" / "3.png").out
    assert best["name"] in named and named.splitlines()[2].split()[-1] == "green"
    others = shutil.copytree(top, tmp_path / "others")
    (others / "blue" / "0.png").unlink()
    refused = finetuned(others, *call[1:])
    assert refused.code == 2 and "used other data (18 train images, now " in refused.err, refused.err
    before = {file: file.stat().st_mtime_ns for file in logs.rglob("*") if file.is_file() and file.suffix != ".html"}
    again = finetuned(*call)
    assert again.code == 0 and "are ignored: logs\n" in again.out
    for question in ("--dry-run", "--explain"):
        assert finetuned(*call, question).code == 0
    assert before == {file: file.stat().st_mtime_ns for file in before}
    longer = finetuned(*call, "--epochs", 3)
    assert longer.code == 0 and validations.of_run(logs)[-1]["name"] == "ckpt-15", longer.err


def test_damaged_best_checkpoint_falls_back_to_newest(tmp_path):
    images, logs = write_images(tmp_path / "photos"), tmp_path / "logs"
    done = finetuned(images, *SMALL, "--iterations", 2, "--lr", 1, "--best-by", "accuracy", "--logs-path", logs)
    assert done.code == 0, done.err
    assert read.load_network_in(logs)[0].name == "ckpt-0"  # such a rate spoils the network
    with (logs / "ckpt-0.data-00000-of-00001").open("r+b") as file:
        file.write(bytes(64))
    chosen, _, (warning,) = read.load_network_in(logs)
    assert chosen.name == "ckpt-2" and "ckpt-0 is damaged and skipped" in warning
