"""Fine-tuning on a folder of pictures: the look before it, its stages, and the same call again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import Result, rows, run
from PIL import Image

from base.errors import DataError
from harness.checkpoints.checkpoint import Checkpoint
from harness.finetuning import stages, survey

SMALL = ("--image-size", 96, "--batch-size", 4, "--seed", 3)  # Lite0 all the same
COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 60)}


def write_pictures(top: Path, per_class: int = 10, size: tuple[int, int] = (40, 36)) -> Path:
    """Noise of one colour a class; the same bytes in every call."""
    random = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (top / name).mkdir(parents=True)
        for k in range(per_class):
            noise = random.normal(0, 20, (size[1], size[0], 3))
            Image.fromarray(np.uint8(np.clip(noise + colour, 0, 255))).save(top / name / f"{k}.png")
    return top


def finetuned(*words: object) -> Result:
    return run("finetune", *words)


# --- The look --------------------------------------------------------------------------------------------------


def test_a_look_names_what_lies_in_the_folder(tmp_path):
    top = write_pictures(tmp_path / "pictures", 12)
    tags = Image.Exif()
    tags[0x0112] = 6
    Image.new("RGB", (300, 100)).save(top / "blue" / "wide.jpg", exif=tags)
    shutil.copy(top / "blue" / "3.png", top / "blue" / "again.png")
    shutil.copy(top / "blue" / "3.png", top / "green" / "other.png")
    (top / "blue" / "notes.txt").write_text("no picture")
    (top / "green" / "broken.png").write_bytes(b"")
    (top / "green" / "cut.png").write_bytes((top / "green" / "3.png").read_bytes()[:-40])
    found = survey.scan_folder(top)
    assert found.lines[:3] == [
        f"{top}: 29 pictures in 2 classes, 14 to 15 each",
        "classes: blue, green",
        "pixels: 40 x 36 to 300 x 100",
    ]
    assert found.lines[3] == "turned upright, as EXIF says: 1 picture"
    rest = "\n".join(found.lines[4:])
    assert str(top / "blue" / "notes.txt") in rest and "2 pictures are copies of others, as blue/again.png of" in rest
    assert "several classes" in rest and "fewer than" not in rest
    assert [bad.file.name for bad in found.bad] == ["broken.png", "cut.png"]
    few = "\n".join(survey.scan_folder(write_pictures(tmp_path / "few", 3)).lines)
    assert "warning: classes of fewer than 10 pictures: blue (3), green (3)" in few


def test_folders_that_nothing_can_be_learnt_from(tmp_path):
    one = write_pictures(tmp_path / "one", 2)
    shutil.rmtree(one / "green")
    same = write_pictures(tmp_path / "same", 2)
    for file in same.rglob("*.png"):
        shutil.copyfile(same / "blue" / "1.png", file) if file != same / "blue" / "1.png" else None
    damaged = write_pictures(tmp_path / "damaged", 2)
    for file in (damaged / "green").iterdir():
        file.write_bytes(file.read_bytes()[:-40])
    unseen = write_pictures(tmp_path / "unseen" / "train", 2).parent
    (unseen / "val" / "blue").mkdir(parents=True)
    (unseen / "val" / "blue" / "bad.jpg").write_bytes(b"no picture")
    for top, said in (
        (tmp_path / "nowhere", "is not a folder"), (one, "has one class, blue: there is nothing to learn"),
        (same, "all 4 pictures in .* have the same bytes"), (damaged, "all 2 pictures of class green cannot be used, as "),
        (unseen, "the only picture of validation cannot be used, as .*: put others there"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=said):
            survey.scan_folder(top)
        refused = finetuned(top)
        assert refused.code == 2 and refused.err.count("\n") == 1 and not refused.out


# --- The stages ------------------------------------------------------------------------------------------------


def test_options_of_length_and_rate_are_the_networks():
    given = ["--epochs", "3", "--image-size", "64", "--seed", "5"]
    first = stages.words(stages.CLASSIFIER, given, Path("p"), Path("l"), None)
    assert first[-4:] == ["--image-size", "64", "--seed", "5"] and "--epochs" not in first
    assert stages.words(stages.NETWORK, given, Path("p"), Path("l"), None)[-6:] == given


def test_the_network_goes_on_with_the_classifier_s_weights(tmp_path):
    """Whatever weights the call gives the first stage."""
    given, best = ["--init-path", "mine.npz", "--seed", "5"], Checkpoint(str(tmp_path / "ckpt-3"))
    words = stages.words(stages.NETWORK, given, Path("p"), Path("l"), best)
    assert [words[k + 1] for k, word in enumerate(words) if word == "--init-path"] == [best.prefix]
    for stage in (stages.CLASSIFIER, stages.NETWORK):
        assert stages.words(stage, given, Path("p"), Path("l"), None)[-4:] == given


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("PICTURES --config quickstart", "--config"),
        ("PICTURES --restore-path x", "--restore-path"),
        ("PICTURES --epoch-count 3", "--epoch-count"),
        ("PICTURES --epochs many", "epochs is 'many'"),
        ("PICTURES --distributed", "--distributed"),
        ("PICTURES --data-dir elsewhere", "--data-dir"),
        ("PICTURES --no-validation", "--no-validation"),
        ("PICTURES --init-path nowhere", "--init-path nowhere"),
        ("PICTURES --ckpts-per-epoch 0 --image-size 96 --batch-size 4", "--ckpts-per-epoch 0"),
        ("", "cnn finetune pictures"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_trained(words, named, tmp_path):
    pictures = write_pictures(tmp_path / "p", 5)
    given = [pictures if word == "PICTURES" else word for word in words.split()]
    refused = finetuned(*given, *["--logs-path", tmp_path / "logs"] * bool(given))
    assert refused.code == 2 and named in refused.err and not (tmp_path / "logs").exists()


def test_another_programs_page_stays(tmp_path):
    (tmp_path / "mine/network").mkdir(parents=True)
    (tmp_path / "mine/report.html").write_text("mine")
    kept = finetuned(write_pictures(tmp_path / "p"), "--logs-path", tmp_path / "mine")
    assert kept.code == 2 and "report.html" in kept.err and (tmp_path / "mine/report.html").read_text() == "mine"


def test_a_folder_is_learnt_and_the_same_call_goes_on(tmp_path, capsys):
    top = write_pictures(tmp_path / "pictures")
    logs = top / "logs"  # as of a call in the folder of pictures itself
    call = (top, *SMALL, "--epochs", 2, "--logs-path", logs)
    done = finetuned(*call)
    assert done.code == 0, done.err
    assert "are left out: logs\n" in done.out
    best = stages.best(logs / "network")
    assert best.accuracy > 50 and best.pictures == 4
    assert f"The best weights: {best.checkpoint.prefix}, {best.accuracy:.2f}% of 4 validation pictures" in done.out
    page = (logs / "report.html").read_text()
    assert best.checkpoint.name in page and "Confusion matrix" in page and f"\n{logs / 'report.html'}\n" in done.out
    assert len(rows(logs / "classifier" / "training.csv")) and (logs / "network" / "ckpt").is_dir()
    others = shutil.copytree(top, tmp_path / "others")
    (others / "blue" / "0.png").unlink()
    refused = finetuned(others, *call[1:])
    assert refused.code == 2 and "is of other data than these (16 train images, now " in refused.err, refused.err
    shutil.rmtree(logs / "network")  # as if it had been killed between the stages
    again = finetuned(*call)
    assert f"The run in {logs / 'classifier'} is complete" in again.out
    longer = re.search(r"restore\.py --restore-path \S+/classifier --(epochs|patience) NUMBER extends it", again.out)
    assert longer, again.out  # as --epochs and --patience of the call are the network's
    assert stages.best(logs / "network") == best
    before = {file: file.stat().st_mtime_ns for file in logs.rglob("*") if file.is_file()}
    for question in ("--dry-run", "--explain"):
        asked = finetuned(*call, question)
        assert asked.code == 0 and "The best weights" not in asked.out and "The report" not in asked.out
    assert before == {file: file.stat().st_mtime_ns for file in logs.rglob("*") if file.is_file()}
    named = run("validation", "--restore-path", best.checkpoint.prefix, "--predict", top / "green" / "3.png").out
    assert named.splitlines()[2].split()[-1] in COLOURS  # by name; eight updates on sixteen pictures promise no more
    with Path(f"{best.checkpoint.prefix}.data-00000-of-00001").open("r+b") as file:
        file.write(bytes(64))
    other = stages.best(logs / "network")
    assert other.checkpoint != best.checkpoint and other.accuracy <= best.accuracy
    assert f"warning: checkpoint {best.checkpoint.name} is damaged and left out" in capsys.readouterr().out
