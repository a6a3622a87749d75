"""The report of a run shows the run's numbers, and no name can break the page."""

from __future__ import annotations

import io
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from commands import rows as csv_rows
from commands import run, succeed
from PIL import Image

from cnn_harness.base.storage import tables
from cnn_harness.harness.reports import validation_sections
from cnn_harness.tools import validation_results

pytestmark = pytest.mark.slow  # its run and its page
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
    lines += [f"{i},{i},{i / 10},0.1,{3 / i},{3 / i},{i},{i},0.01,100,{i},0.25,300" for i in range(1, count + 1)]
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


def test_options_are_folded(reported):
    assert re.search(r"Options that differ from the defaults</h2>\s*<details><summary>\d+ options</summary>", reported)


def test_numbers_match_rows(reported, trained):
    text = Page(reported).text
    validated, training = csv_rows(trained / "validation.csv"), csv_rows(trained / "training.csv")
    best = max(validated, key=lambda row: float(row["val_acc"]))
    title = f"EfficientNet-B0 on a folder of images: {float(best['val_acc']):.2f} % validation accuracy at {best['name']}"
    assert title in text
    assert f"{float(validated[-1]['loss']):.4g} last validation loss" in text
    assert f"{float(training[-1]['train_acc_avg']):.2f} % last training accuracy" in text
    assert f"{training[-1]['iteration']} of {training[-1]['iteration']} updates, " in text


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


def test_class_scores_follow_definitions():
    labels, answered = np.array([0, 0, 0, 1, 1, 3]), np.array([0, 0, 1, 1, 2, 3])  # no label is 2, no answer is 4
    rest = np.zeros(6, int), answered[:, None], np.ones((6, 1))
    scores, images = validation_results.Evaluation("ckpt-1", 5, (), labels, *rest).class_scores()
    assert images.tolist() == [3, 2, 0, 1, 0]
    np.testing.assert_allclose(scores, [[1, 2 / 3, 0.8], [0.5, 0.5, 0.5], [0, 0, 0], [1, 1, 1], [0, 0, 0]])


def test_wait_and_noise_scale_are_explained(plain):
    """With N = 300, a batch of 100 needs 1 + 3 times the fewest updates, and a batch of 200 needs 1 + 1.5 times."""
    (plain / "arguments.json").write_text('{"global_batch_size": 100}')
    page = Page(succeed("report", plain, "--no-evaluation").out and (plain / "report.html").read_text())
    assert "25 %" in page.text and "--dataset-benchmark" in page.text
    assert f"{2.5 / 4:.2f}" in page.texts and f"{(1 + 2 / 3) / (1 + 1 / 3):.2f}" in page.texts


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
