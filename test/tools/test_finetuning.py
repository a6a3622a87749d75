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
from cnn_harness.harness.run import validations
from cnn_harness.harness.training import fitting
from cnn_harness.tools import survey

SMALL = ("--image-size", 96, "--batch-size", 4, "--seed", 3)  # Lite0 takes them too
TINY = ("--image-size", 32, "--batch-size", 10, "--seed", 3)
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
        ("PHOTOS --epochs many", "epochs is 'many'"),
        ("PHOTOS --init-path nowhere", "--init-path nowhere"),
        ("", "cnn finetune photos"),
    ],
)
def test_wrong_options_fail_before_training(words, named, tmp_path):
    images = write_images(tmp_path / "p", 5)
    given = [images if word == "PHOTOS" else word for word in words.split()]
    refused = finetuned(*given, *["--logs-path", tmp_path / "logs"] * bool(given))
    assert refused.code == 2 and named in refused.err and not (tmp_path / "logs").exists()


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


# --- The trial -------------------------------------------------------------------------------------------------


def test_decision_against_training_is_kept(tmp_path, monkeypatch):
    """A call that was killed in the trial decides again; later calls keep the decision, unless they give --epochs."""
    top, logs = write_images(tmp_path / "photos"), tmp_path / "logs"
    call = (top, *TINY, "--lr", 1, "--warmup-epochs", 0, "--logs-path", logs)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fitting, "_trial", killed)
        with pytest.raises(KeyboardInterrupt):
            finetuned(*call)
    assert not list(logs.glob("ckpt-*"))
    trials = []
    tried = fitting._trial
    monkeypatch.setattr(fitting, "_trial", lambda *given: trials.append(tried(*given)) or trials[-1])
    done = finetuned(*call)
    assert done.code == 0 and len(trials) == 1, done.err
    assert "So only the classifier is fitted (--epochs N trains all layers)" in done.out
    (row,) = validations.of_run(logs)
    assert row["name"] == "ckpt-0" and ", with only the classifier fitted\n" in done.out
    before = (logs / "ckpt-0.data-00000-of-00001").read_bytes()
    again = finetuned(*call)
    assert again.code == 0 and "In its trial, training did not help. To train nevertheless, give --epochs " in again.out
    assert run("restore", "--restore-path", logs).code == 0
    assert run("runs", tmp_path).out.count("complete") == 1
    rows = (logs / "validation.csv").read_text()
    (logs / "validation.csv").write_text(rows.splitlines(keepends=True)[0])  # as if it was killed before the validation
    assert run("runs", tmp_path).out.count("stopped") == 1
    (logs / "validation.csv").write_text(rows)
    assert [row["name"] for row in validations.of_run(logs)] == ["ckpt-0"] and len(trials) == 1
    assert (logs / "ckpt-0.data-00000-of-00001").read_bytes() == before
    trained = finetuned(*call, "--epochs", 2)
    assert trained.code == 0 and len(trials) == 1, trained.err
    assert [float(row["epoch"]) for row in validations.of_run(logs)] == [0, 1, 2]


def test_run_without_updates_needs_no_averages_and_no_rows(tmp_path, monkeypatch):
    top, logs = write_images(tmp_path / "photos"), tmp_path / "logs"
    call = (top, *TINY, "--no-validation", "--no-keep-best-ckpt", "--weight-avg-N", 2, "--logs-path", logs)
    monkeypatch.setattr(fitting, "_trial", lambda *_: [fitting.Score(60.0, 0.6), fitting.Score(50.0, 0.7)])
    done = finetuned(*call)
    assert done.code == 0 and "warning" not in done.out, done.out + done.err
    assert "in the trial, training did not help" in (logs / "report.html").read_text()
    assert run("runs", tmp_path).out.count("complete") == 1
    again = finetuned(*call)
    assert again.code == 0 and "In its trial, training did not help." in again.out, again.err


def test_decision_for_training_is_kept(tmp_path, monkeypatch):
    """A call that is killed after the trial, before the first update, trains when it is repeated."""
    top, logs = write_images(tmp_path / "photos"), tmp_path / "logs"
    call = (top, *TINY, "--logs-path", logs)
    scores = [fitting.Score(50.0, 0.7), fitting.Score(60.0, 0.6)]
    monkeypatch.setattr(fitting, "_trial", lambda *_: scores)
    stopped = finetuned(*call, "--stop-after", 1)
    assert stopped.code == 0 and "So all layers are trained" in stopped.out, stopped.err
    scores.reverse()  # another trial would decide otherwise
    for file in logs.glob("ckpt-1.*"):
        file.unlink()
    assert finetuned(*call, "--stop-after", 2).code == 0
    assert (logs / "ckpt-2.index").exists()
