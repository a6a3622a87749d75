"""Compare `cnn finetune` with PyTorch and Keras on small data sets: accuracy on validation images, and processor time.

python -m bench.data_sets SETS
python -m bench.finetuning SETS [NAME ...]     measure, and print a row of the table as each is finished

Each set has its own rows in docs/own-photos.md. Our result is the last checkpoint, or the fitted classifier if the trial
declined. No decision uses a validation image.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench._paired import ROOT
from cnn_harness.harness.run import validations

SIDE = 96  # pixels
TORCH_PYTHON = ".venv-bench/bin/python"


def timed(command: list[str]) -> tuple[str, str]:
    """Run a command; return its output and its processor time."""
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}  # else PyTorch's threads spend processor time while they wait
    before = os.times()
    done = subprocess.run(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, env=environment
    )
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout, f"{spent:.0f} s"


def peer(command: list[str]) -> tuple[str, str]:
    """Run a worker; return the accuracy that it prints last, and its processor time."""
    printed, spent = timed(command)
    right, count = map(int, re.findall(r"(\d+) of (\d+)", printed)[-1])
    return with_error(right / count, count), spent


def with_error(right: float, count: int) -> str:
    """Return an accuracy in per cent with its binomial standard error."""
    return f"{100 * right:.1f} ± {100 * math.sqrt(right * (1 - right) / count):.1f}"


def row(folder: Path, torch_python: str) -> str:
    """Measure a data set, and return a row of the table."""
    with tempfile.TemporaryDirectory() as scratch:
        words = ["--image-size", str(SIDE), "--seed", "1", "--logs-path", f"{scratch}/run"]
        printed, ours = timed([sys.executable, "-m", "cnn_harness.tools.finetune", str(folder), *words])
        rows = validations.by_update(validations.of_run(Path(scratch) / "run"))
    predicted = re.search(r"([\d.]+)% in cross-validation", printed)[1]
    trained, count = (sum(1 for _ in (folder / split).rglob("*.png")) for split in ("train", "val"))
    first, last = (with_error(float(each["val_acc"]) / 100, count) for each in (rows[0], rows[-1]))
    torch, torch_time = peer([torch_python, "-m", "bench._torch_finetuning", str(folder), str(SIDE), "10"])
    keras, keras_time = peer([sys.executable, "-m", "bench._keras_finetuning", str(folder), str(SIDE)])
    classes = sum(1 for _ in (folder / "train").iterdir())
    cells = (
        folder.name, f"{trained:,}, {count}", classes, predicted, first, last if len(rows) > 1 else "not trained",
        torch, keras, f"{ours}, {torch_time}, {keras_time}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="measure only these sets")
    parser.add_argument("--torch-python", default=TORCH_PYTHON, help="Python with PyTorch and timm (default: %(default)s)")
    asked = parser.parse_args()
    if not shutil.which(asked.torch_python):
        parser.error(f"--torch-python: {asked.torch_python} does not exist; to create it, run: make bench")
    for name in asked.names or sorted(each.name for each in asked.folder.iterdir()):
        print(row(asked.folder / name, asked.torch_python), flush=True)
