"""The walks of a new user, shortened: the scripts in test/walks, whose commands README and docs print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from commands import rows, succeed

from cnn_harness.base import plugins

ROOT = plugins.ROOT
LEFT = {  # what each walk leaves: files, and rows of validation.csv
    "quickstart": (("quickstart/ckpt-8.index", "quickstart/training.svg"), {"quickstart-validation": 2, "quickstart-inference": 1}),
    "mini": (("mini/ckpt-2.index", "mini/ckpt/mean_of_two.index"), {"mini-validation": 1}),
    "meme": (("half/ckpt/weight_avg_exp_0.5.index", "tuned/ckpt/weight_avg_exp_0.5.index", "half-two/ckpt-4.index"),
             {"tuned-validation": 3, "two-validation": 3}),
    "installed": (("run/ckpt-3.index", "two/ckpt-2.index", "exported/frozen.pb", "predicted.csv", "report.html", "compared.svg"),
                  {"validation": 2, "again": 1}),
    "photos": (("own/training.svg", "exported/model.tflite", "exported/labels.txt"), {"own": 3}),
}  # fmt: skip


def commands(text: str) -> list[str]:
    """Return the commands of a page or walk as typed, without the log folder of a validation."""
    text = re.sub(r"\\\n\s*", "", text).replace('"', "")
    text = re.sub(r" \$(quick|short)\b| \$\{\w+:\+[^}]*\}", "", text)  # only in shortened walks
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text).replace("$python poprun.py", "poprun").replace("$python", "python")
    lines = [" ".join(line.split()) for line in text.replace("$runs", "logs").splitlines()]
    return [re.sub(r"(validation.py .*) --logs-path \S+", r"\1", line) for line in lines if re.match("python|poprun", line)]


def test_walk_of_recipes_matches_docs():
    printed = commands((ROOT / "docs/paper.md").read_text().split("\nIn miniature")[1].split("\n## ")[0])
    walked = commands((ROOT / "test/walks/meme.sh").read_text())
    assert len(printed) == 5
    assert [command for command in printed if command not in [line.replace(" --stop-after 20", "") for line in walked]] == []


@pytest.mark.parametrize("walk", [walk for walk in LEFT if walk not in ("photos", "installed")])
def test_training_commands_of_walks_are_valid(walk, tmp_path):
    """All of them, including the walk that takes minutes; weights that do not exist yet are left out."""
    trainings = [line for line in commands((ROOT / f"test/walks/{walk}.sh").read_text()) if "train.py" in line]
    for line in trainings:
        words = shlex.split(re.sub(r"--init-path \S+", "", line.split("train.py")[1].replace("logs/", f"{tmp_path}/")))
        assert "Updates: " in succeed("train", *words, "--dry-run").out
    assert trainings


@pytest.mark.timeout(1800)  # a dozen commands, each of which builds its programs
@pytest.mark.parametrize(
    "walk",
    [
        "quickstart",
        "photos",
        "mini",
        pytest.param("meme", marks=pytest.mark.slow),
        pytest.param("installed", marks=pytest.mark.slow),
    ],
)
def test_walks_succeed(walk, tmp_path):
    environ = {**os.environ, "PYTHON": sys.executable, "RUNS": str(tmp_path), "SHORT": "1"}
    done = subprocess.run(
        ["sh", f"test/walks/{walk}.sh"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=1700
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    files, tables = LEFT[walk]
    assert [name for name in files if not (tmp_path / name).exists()] == []
    assert {name: len(rows(tmp_path / name / "validation.csv")) for name in tables} == tables
    assert sorted(path.stem for path in (ROOT / "test/walks").glob("*.sh")) == sorted(LEFT)
