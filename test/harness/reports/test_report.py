"""The report of a run shows the run's numbers, and no name can break the page."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from commands import rows as csv_rows
from commands import run, succeed
from PIL import Image

from cnn_harness.base import plugins
from cnn_harness.base.storage import tables
from cnn_harness.harness.reports import run_folder, run_page, validation_sections
from cnn_harness.tools import validation_results

CLASSES = ("<script>alert(1)<", 'b "quoted" & co', "c")
NETWORK = (
    "--model efficientnet --width-coefficient 0.25 --depth-coefficient 0.25 --top-width 32 --batch-norm --image-size 32"
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """Write images in folders whose class names look like markup."""
    top = tmp_path_factory.mktemp("tree")
    draw = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 5)):
        for k, name in enumerate(CLASSES):
            folder = top / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = np.clip(draw.normal(50 + 50 * k + 9 * i, 20, (40, 44, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"<b>{i}.png")
    return top


@pytest.fixture(scope="module")
def trained(tree, tmp_path_factory) -> Path:
    """Return a short run with validation; its folder's name looks like markup."""
    folder = tmp_path_factory.mktemp("runs") / 'a "b" \'<i>&amp;'
    words = f"{NETWORK} --batch-size 4 --epochs 2 --logs-per-epoch 3 --precision 32.32 --seed 3 --warmup-epochs 0".split()
    succeed("train", "--dataset", "imagefolder", "--data-dir", tree, *words, "--logs-path", folder)
    shutil.copy(folder / "report.html", folder / "at-the-end.html")
    return folder


@pytest.fixture(scope="module")
def reported(trained) -> str:
    """Return the page with the newest checkpoint's answers."""
    result = succeed("report", trained)
    assert result.out == f"{trained / 'report.html'}\n"
    return (trained / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def plain(tmp_path) -> Path:
    """Return a folder with the rows of a run and nothing else."""
    return with_rows(tmp_path / "run")


def with_rows(folder: Path, count: int = 20) -> Path:
    folder.mkdir()
    lines = [",".join(tables.TRAINING_COLUMNS)]
    lines += [f"{i},{i},{i / 10},0.1,{3 / i},{3 / i},{i},{i},0.01,100,{i}" for i in range(1, count + 1)]
    (folder / "training.csv").write_text("\n".join(lines) + "\n")
    lines = [",".join(tables.VALIDATION_COLUMNS)]
    lines += [f"ckpt-{10 * i},{10 * i},{i},{20 * i},{20 * i},0.5,100,200,1.5,95,{1 / i}" for i in (1, 2)]
    (folder / "validation.csv").write_text("\n".join(lines) + "\n")
    return folder


class Page(HTMLParser):
    """Parse a page like a browser: texts, and attributes by element; every element must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"
        self.text = " ".join(self.texts).replace("\xa0", " ")

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.open += [tag] if tag not in ("meta", "img", "br") else []

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts += [data] if "style" not in self.open else []


def test_page_loads_and_runs_nothing(reported):
    seen = Page(reported)
    assert {tag for tag, _ in seen.elements} & {"script", "link", "iframe", "object", "embed", "base", "form", "i"} == set()
    for tag, attributes in seen.elements:
        assert not {name for name in attributes if name.startswith("on") or name in ("href", "xlink:href", "srcset")}
        assert re.match(r"data:image/(png|jpeg);base64,", attributes.get("src", "data:image/png;base64,")), tag
    assert not re.search(r"url\(|@import", reported)
    assert set(re.findall(r"https?://[^\"< ]*", reported)) == {"http://www.w3.org/2000/svg"}  # a name that is not loaded
    assert "prefers-color-scheme:dark" in reported and "width=device-width" in reported


def test_names_are_always_text(reported, trained):
    seen = Page(reported)
    assert all(name in seen.text for name in (*CLASSES, trained.name))
    assert f"val/{CLASSES[0]}/<b>" in seen.text or f"val/{CLASSES[1]}/<b>" in seen.text


def test_numbers_match_rows(reported, trained):
    text = Page(reported).text
    validated, training = csv_rows(trained / "validation.csv"), csv_rows(trained / "training.csv")
    best = max(validated, key=lambda row: float(row["val_acc"]))
    title = f"EfficientNet-B0 on a folder of images: {float(best['val_acc']):.2f} % validation accuracy at {best['name']}"
    assert title in text
    assert f"{float(validated[-1]['loss']):.4g} last validation loss" in text
    assert f"{float(training[-1]['train_acc_avg']):.2f} % last training accuracy" in text
    assert f"{training[-1]['iteration']} of {training[-1]['iteration']} updates, " in text


@pytest.mark.parametrize("patience, state", [(0, "still running or stopped"), (2, "ended by --patience")])
def test_patience_is_not_called_stop(patience, state, plain):
    """Two validations without a gain end the run if --patience says so."""
    with (plain / "validation.csv").open("a") as file:
        file.writelines(f"ckpt-{i},{i},{i / 10},40,40,0.5,100,200,1.5,95,1\n" for i in (21, 22))
    (plain / "arguments.json").write_text(json.dumps({"total_iterations": 40, "patience": patience}))
    assert run_page._state(run_folder.read(plain)).endswith(f"; {state}")


def test_differing_options_are_shown(reported, trained):
    changed = {name: values for name, *values in run_folder.changed_options(run_folder.read(trained))}
    assert changed["--width-coefficient"] == ["0.25", "none"] and changed["--epochs"][0] == "2"
    assert changed["--seed"] == ["3", "none"] and changed["--model"] == ["efficientnet", "resnet"]
    assert not {"--momentum", "--logs-path", "--num-classes", "--global-batch-size", "--stop-after"} & set(changed)
    assert "--width-coefficient" in Page(reported).text


@pytest.fixture(scope="module")
def answers(trained) -> validation_results.Evaluation:
    return validation_results.evaluate(trained, lambda line: None)


def test_answers_agree_with_validation_of_run(reported, trained, answers):
    """The validation program counted the same images; 15 do not fill the last micro-batch of 4."""
    hits = int((answers.labels == answers.answers[:, 0]).sum())
    row = csv_rows(trained / "validation.csv")[-1]
    assert answers.checkpoint == row["name"] and len(answers.labels) == 15 == int(row["val_size"])
    assert 100 * hits / 15 == pytest.approx(float(row["val_acc"]))
    assert f"classifies {hits} of 15 images correctly: {100 * hits / 15:.1f} %" in Page(reported).text
    own = answers.probabilities[answers.answers == answers.labels[:, None]]
    assert np.mean(-np.log(own)) == pytest.approx(float(row["loss"]), rel=1e-4)


def test_files_and_images_belong_to_answers(reported, tree, answers):
    files = [answers.files[place] for place in range(15)]
    assert [Path(file).parts[:2] for file in files] == [("val", answers.names[label]) for label in answers.labels]
    wrong = [k for k in range(15) if answers.answers[k, 0] != answers.labels[k]]
    wrong.sort(key=lambda k: -answers.probabilities[k, 0])
    assert list(answers.images) == wrong[: validation_sections.WRONG] != []
    for place, content in answers.images.items():
        shown = np.asarray(Image.open(io.BytesIO(content)), float)
        whole = np.asarray(Image.open(tree / files[place]), float)
        means = np.abs(shown.mean((0, 1)) - whole.mean((0, 1)))
        assert shown.shape == (32, 32, 3) and means.max() < 4  # another file differs by 9 or more
    images = [attributes for tag, attributes in Page(reported).elements if tag == "img"]
    assert [each["alt"] for each in images] == [files[k] for k in wrong[: validation_sections.WRONG]]


def test_missing_data_leaves_rows_alone(reported, trained, tree, tmp_path):
    moved = tree.rename(tree.with_name("moved"))
    try:
        copy = tmp_path / "copy"
        shutil.copytree(trained, copy)
        result = succeed("report", copy)
    finally:
        moved.rename(tree)
    assert result.err.startswith(f"warning: the report of {copy} has no validation results: ")
    assert result.err.count("\n") == 1
    seen = Page((copy / "report.html").read_text())
    assert str(tree) in seen.text and "The validation results are missing" in seen.text
    assert "Validation results" not in seen.texts and {"Top-1 accuracy, %", "Loss", "Learning rate"} <= set(seen.texts)


def test_class_scores_follow_definitions():
    labels, answered = np.array([0, 0, 0, 1, 1, 3]), np.array([0, 0, 1, 1, 2, 3])  # no label is 2, no answer is 4
    rest = np.zeros(6, int), answered[:, None], np.ones((6, 1))
    scores, images = validation_results.Evaluation("ckpt-1", 5, (), labels, *rest).class_scores()
    assert images.tolist() == [3, 2, 0, 1, 0]
    np.testing.assert_allclose(scores, [[1, 2 / 3, 0.8], [0.5, 0.5, 0.5], [0, 0, 0], [1, 1, 1], [0, 0, 0]])


@pytest.mark.parametrize("classes", [1, 2, 10, 1000])
def test_any_class_count_makes_page(plain, classes):
    draw = np.random.default_rng(3)
    n, k = 400, min(5, classes)
    labels = draw.integers(0, classes, n)
    answers = (draw.integers(0, classes, n)[:, None] + np.arange(k)) % classes
    probabilities = np.tile(np.linspace(0.4, 0.1, k), (n, 1))
    made = validation_results.Evaluation("ckpt-20", classes, (), labels, np.arange(n), answers, probabilities)
    whole = run_page.render([run_page.Reported(run_folder.read(plain), made)])
    cells = whole.count('<td class="right') + whole.count('<td class="wrong') + whole.count("<td>·</td>")
    assert cells == (classes**2 if classes in (2, 10) else 0)  # with one class nothing can be confused
    assert ("<details>" in whole) == (classes == 1000)
    assert len(Page(whole).text) < 200_000


def test_several_runs_start_with_differences(trained, plain, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    recorded = json.loads((other / "arguments.json").read_text())
    (other / "arguments.json").write_text(json.dumps({**recorded, "momentum": 0.5}))
    for file in other.glob("ckpt-*"):  # their states contain the options too
        file.unlink()
    succeed("report", trained, other, plain, "--no-evaluation", "--html", tmp_path / "both.html")
    seen = Page((tmp_path / "both.html").read_text())
    headings = ["Options that differ", "Results", "Training curves"]
    assert [text for text in seen.texts if text in headings] == headings
    rows = run_folder.different_options([run_folder.read(each) for each in (trained, other)])
    assert rows == [("--momentum", ["0.9", "0.5"])]
    assert seen.text.count("other (last: ") == 5 and seen.text.count("run (last: ") == 5


def test_training_ends_with_its_page(trained):
    seen = Page((trained / "at-the-end.html").read_text(encoding="utf-8"))
    assert "run cnn report" in seen.text and "Validation results" not in seen.texts
    assert {"Top-1 accuracy, %", "Loss", "Learning rate"} <= set(seen.texts)


HEAD = ",".join(tables.TRAINING_COLUMNS) + "\n"
BAD = {
    "missing": (shutil.rmtree, "does not exist"),
    "empty": (lambda folder: [file.unlink() for file in folder.iterdir()], "is not a run directory"),
    "no rows": (lambda f: [(f / "training.csv").write_text(HEAD), (f / "validation.csv").unlink()], "has no results yet"),
    "arguments": (lambda folder: (folder / "arguments.json").write_text("{"), "arguments.json"),
}


@pytest.mark.parametrize("kind", BAD)
def test_no_run_is_one_line(kind, plain):
    break_it, said = BAD[kind]
    break_it(plain)
    result = run("report", plain)
    assert result.code == 2 and result.err.startswith("cnn report: error: ") and said in result.err
    assert result.err.count("\n") == 1 and not (plain / "report.html").exists()


def test_help_and_rows_need_no_tensorflow(plain):
    code = (
        "import sys; from cnn_harness.harness.commands import answers; from cnn_harness.tools import report\n"
        "assert answers.run_command('report', report.main, [sys.argv[1], '--no-evaluation']) == 0\n"
        "assert 'tensorflow' not in sys.modules\n"
        "answers.run_command('report', report.main, ['--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code, plain], cwd=plugins.ROOT, capture_output=True, text=True, check=True)
    assert "--no-evaluation" in done.stdout and done.stderr == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("{run} --html {run}/training.csv", "choose another name"),
        ("{run} {other}", "give --html FILE"),
        ("{run} --htlm x", "--htlm"),
    ],
)
def test_wrong_arguments_give_one_line(words, expected, plain, tmp_path):
    other = with_rows(tmp_path / "other")
    (plain / "arguments.json").write_text("{}")
    result = run("report", *words.format(run=plain, other=other).split())
    assert result.code == 2 and expected in result.err and result.err.count("\n") == 1


def test_undecodable_names_are_escaped(plain, tmp_path):
    """A folder with a name in Latin-1 ended in a traceback."""
    (plain / "arguments.json").write_text(json.dumps({"model": "resnet", "data_dir": "/home/jos\udce9"}))
    folder = plain.rename(tmp_path / os.fsdecode(b"lat\xe9"))
    succeed("report", folder, "--no-evaluation")
    assert "jos\\udce9" in (folder / "report.html").read_text() and "lat\\udce9" in (folder / "report.html").read_text()
