"""Measure the time from the start of train.py to its first training line, without and with a cached program.

python -m bench.startup_time [WORD ...] [--rounds 3]     measure the rows whose name contains all words

The times are also divided by the time of `python -c "import tensorflow"`, because these ratios differ less between machines.
"""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import _paired
from bench._paired import ROOT

B0 = ("--model efficientnet --model-size B0 --dataset imagenet --generated-data --precision 32.32 --micro-batch-size 4 "
      "--gradient-accumulation-count 2 --iterations 2 --log-freq 1")  # fmt: skip
RESNET = ("--model resnet --model-size 14 --dataset fashion-mnist --precision 32.32 --micro-batch-size 8 --group-norm "
          "--gradient-accumulation-count 16 --fold 1 --iterations 2 --log-freq 1")  # fmt: skip
ROWS = (
    ("EfficientNet-B0, groups of 16, group norm", f"{B0} --group-dim 16 --expand-ratio 4 --group-norm"),
    ("EfficientNet-B0, batch norm", f"{B0} --batch-norm"),
    ("quickstart", "--config quickstart"),
    ("plain: ResNet-14, group norm", RESNET),
    ("the same, pipelined over four stages", f"{RESNET} --shards 4 --pipeline --pipeline-splits auto"),
)  # fmt: skip


def first_row(words: str, programs: Path) -> float:
    """Return the seconds from the start of the process to its first training line."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, ROOT / "train.py", *shlex.split(words), "--no-validation", "--seed", 1]
        command += ["--logs-path", Path(folder, "run"), "--executable-cache-path", programs]
        begun = time.perf_counter()
        with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            seconds = next((time.perf_counter() - begun for line in process.stdout if line.startswith("step:")), None)
            process.terminate()
        if seconds is None:
            raise SystemExit(f"train.py printed no training line: {words}")
        return seconds


def bare_import() -> float:
    """Return how many seconds a new process takes to import TensorFlow."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    return time.perf_counter() - begun


def main() -> None:
    """Measure the requested rows."""
    asked = _paired.arguments(__doc__, rounds=3, words=True)
    print(f"{'seconds to the first line':<44} {'first time':>22} {'with a cached program':>22} {'times the import':>18}")
    for name, words in ROWS:
        if not all(word in name for word in asked.words):
            continue
        bare, first, again = [], [], []
        for _ in range(asked.rounds):
            with tempfile.TemporaryDirectory() as programs:
                bare.append(bare_import())
                first.append(first_row(words, Path(programs)))
                again.append(first_row(words, Path(programs)))
        ratios = " ".join(f"{statistics.median(each) / statistics.median(bare):.1f}" for each in (first, again))
        print(f"{name:<44} {_all(first):>22} {_all(again):>22} {ratios:>18}", flush=True)


def _all(seconds: list[float]) -> str:
    return " ".join(f"{each:.1f}" for each in seconds)


if __name__ == "__main__":
    main()
