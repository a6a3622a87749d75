"""Compare the speed of this harness with Keras, and with the networks of timm in PyTorch.

Each library has a process for each of its settings, and the processes take turns. `make bench` installs PyTorch and runs
this program.

python -m bench.peers [WORD ...] [--rounds 7] [--short]     measure the tasks whose name contains all words
python -m bench.peers --table                               write the tables and the chart of docs/measured.md

Results are written to bench/results/, to one file for each machine and day. If all tasks are measured again on the same
day, another file is started. If some tasks are measured again, their results in the day's last file are replaced.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

os.environ.pop("OPENBLAS_CORETYPE", None)  # if it names an older CPU, numpy's matrix products take twice as long
import numpy as np

from bench import _paired, _tables
from cnn_harness.base.process import command_line
from cnn_harness.emulator.native import library

RESULTS = Path(__file__).with_name("results")
IMAGENET = "--dataset imagenet --synthetic-data"
EFFICIENTNET = f"--model efficientnet {IMAGENET}"
RESNET = f"--model resnet {IMAGENET}"
G16 = f"{EFFICIENTNET} --model-size B0 --group-norm --group-dim 16 --expand-ratio 4"
OURS, KERAS_XLA = "ours", "Keras, XLA"
_SLOW, _LEAST_ROUNDS = 5, 3  # after 3 rounds, stop measuring a way that is 5 times slower than ours


@dataclass(frozen=True)
class OtherWay:
    """Another way to run a task in this harness, with further options."""

    name: str
    options: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A task to compare: one training or inference in every library. `title` describes the task in tables, `name` identifies
    it in the files of results."""

    name: str
    title: str
    options: str  # options of train.py or inference_embedded.py
    torch: str  # the name of the network in timm or _torch_worker.py
    batch: int
    keras: str = ""
    side: int = 224
    updates: int = 1  # weight updates, or batches, in a round
    accumulation: int = 1
    precision: str = "32.32"  # of our first way; for another one, PyTorch has ways that multiply in BF16, too
    also: tuple[OtherWay, ...] = ()
    inference: bool = False
    short: bool = False  # whether --short measures the task, too

    def commands(self, torch_python: str) -> dict[str, list[str]]:
        """Return the command of a worker for each way to run the task. Ours comes first."""
        words = self._words.split()
        ways = {OURS: _paired.ours(words, self.updates, self.inference)}
        ways |= {way.name: _paired.ours([*words, *way.options.split()], self.updates) for way in self.also}
        more = ["--inference"] if self.inference else []
        if self.keras:
            numbers = [str(number) for number in (self.side, self.batch, self.updates)]
            own = [sys.executable, "-m", "bench._keras_worker", self.keras, *numbers]
            ways |= {"Keras": [*own, *more], KERAS_XLA: [*own, "--jit", *more]}
        numbers = [str(number) for number in (self.side, self.batch, self.updates, self.accumulation)]
        own = [torch_python, "-m", "bench._torch_worker", self.torch, *numbers]
        settings = {"": [], ", channels last": ["--last"], ", compiled": ["--last", "--compile"]}
        if self.precision != "32.32" and library.has_bf16():  # without BF16 units, autocast is 20 times slower than FP32
            settings |= {
                ", autocast": ["--last", "--autocast"],
                ", autocast, compiled": ["--last", "--autocast", "--compile"],
            }
        return ways | {f"PyTorch{name}": [*own, *flags, *more] for name, flags in settings.items()}

    @property
    def _words(self) -> str:
        words = f"{self.options} --precision {self.precision} --micro-batch-size {self.batch}"
        if self.inference:
            return f"{words} --iterations 1"
        accumulation = f" --gradient-accumulation-count {self.accumulation}" if self.accumulation > 1 else ""
        return f"{words} --optimiser momentum{accumulation}"


FROZEN = "--model efficientnet --model-size B0 --batch-norm --dataset imagenet --generated-data"
OTHER_FORMATS = tuple(OtherWay(f"ours, {name}", f"--precision {name}") for name in ("16.16", "32.32"))
OTHER_FOLDS = OtherWay("ours, --fold auto", "--fold auto"), OtherWay("ours, not folded", "--fold 1")
ROWS = (
    Row(name="EfficientNet-B0, batch norm, 16", title="training EfficientNet-B0, batch norm, 224 px, batch 16",
        options=f"{EFFICIENTNET} --model-size B0 --batch-norm", batch=16, updates=2, keras="efficientnet_b0",
        torch="efficientnet_b0", short=True),
    Row(name="ResNet-50, batch norm, 16", title="training ResNet-50, batch norm, 224 px, batch 16",
        options=f"{RESNET} --model-size 50 --batch-norm", batch=16, keras="resnet50", torch="resnet50"),
    Row(name="EfficientNet-B0, batch norm, 16, bf16", options=f"{EFFICIENTNET} --model-size B0 --batch-norm", batch=16,
        updates=2, torch="efficientnet_b0", precision="bf16.32", also=OTHER_FORMATS,
        title="training EfficientNet-B0, batch norm, 224 px, batch 16, in bf16.32"),
    Row(name="ResNet-50, batch norm, 16, bf16", options=f"{RESNET} --model-size 50 --batch-norm", batch=16,
        torch="resnet50", precision="bf16.32", also=OTHER_FORMATS,
        title="training ResNet-50, batch norm, 224 px, batch 16, in bf16.32"),
    Row(name="EfficientNet-B0 G16, group norm, 4 x 8", options=f"{G16} --fold 8", batch=4, accumulation=8, also=OTHER_FOLDS,
        title="training EfficientNet-B0 with groups of 16, group norm, 224 px, 8 micro-batches of 4",
        torch="efficientnet_b0_g16_gn", short=True),
    Row(name="EfficientNet-B0 G1, group norm, 16", title="training EfficientNet-B0, group norm, 224 px, batch 16",
        options=f"{EFFICIENTNET} --model-size B0 --group-norm", batch=16, updates=2, torch="efficientnet_b0_gn"),
    Row(name="ResNet-14, batch norm, 32 px, 64", title="training ResNet-14, batch norm, 32 px, batch 64",
        batch=64, side=32, updates=20, keras="resnet14", torch="resnet14",
        options="--model resnet --model-size 14 --dataset cifar-10 --synthetic-data --batch-norm",
        short=True),
    Row(name="EfficientNet-B2, batch norm, 260 px, 8", title="training EfficientNet-B2, batch norm, 260 px, batch 8",
        batch=8, options=f"{EFFICIENTNET} --model-size B2 --batch-norm --image-size 260",
        side=260, keras="efficientnet_b2", torch="efficientnet_b2"),
    Row(name="ResNeXt-50 32x4d, batch norm, 8", title="training ResNeXt-50 32x4d, batch norm, 224 px, batch 8",
        options=f"--model resnext --model-size 50 {IMAGENET} --batch-norm", batch=8, torch="resnext50_32x4d"),
    Row(name="ResNet-50, batch norm, 128 px, 32", title="training ResNet-50, batch norm, 128 px, batch 32", batch=32,
        options=f"{RESNET} --model-size 50 --batch-norm --image-size 128", side=128, keras="resnet50", torch="resnet50"),
    Row(name="inference, EfficientNet-B0, 1", title="inference with EfficientNet-B0, 224 px, batch 1", options=FROZEN,
        batch=1, updates=100, inference=True, keras="efficientnet_b0", torch="efficientnet_b0", short=True),
    Row(name="inference, EfficientNet-B0, 16", title="inference with EfficientNet-B0, 224 px, batch 16", options=FROZEN,
        batch=16, updates=10, inference=True, keras="efficientnet_b0", torch="efficientnet_b0"),
)  # fmt: skip


def measure(row: Row, torch_python: str, rounds: int, short: bool) -> dict[str, Any]:
    """Measure all ways to run a task in `rounds` rounds, after a first round that does not count. Return their speeds and
    peak memory, and the state of the machine."""
    commands = row.commands(torch_python)
    workers = {name: _paired.Worker(command) for name, command in commands.items() if not (short and name == KERAS_XLA)}
    try:
        about = {name: worker.about for name, worker in workers.items()}
        rates = machine_rates()
        speeds: dict[str, list[float]] = {name: [] for name in workers}
        for k in range(rounds + 1):
            for name in list(workers)[:: 1 if k % 2 else -1]:
                if k > _LEAST_ROUNDS and _SLOW * max(speeds[name]) < min(speeds[OURS]):
                    continue  # it cannot be the fastest way of its library, and would take most of the time
                speed = workers[name].round()
                speeds[name] += [speed] * (k > 0)
        peaks = {name: worker.peak() for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.end()
    return {
        "name": row.name,
        "speeds": speeds,
        "peak_MB": peaks,
        "versions": {name: each["version"] for name, each in about.items()},
        "multiply_adds": about[OURS].get("multiply_adds"),
        **rates,
        "load": os.getloadavg()[0],
        "at": time.strftime("%Y-%m-%d %H:%M"),
    }


def machine_rates() -> dict[str, float]:
    """Measure numpy on all cores: the FP32 operations per second of a matrix product, and the bytes per second of a copy."""
    a = np.random.default_rng(0).random((2048, 2048), np.float32)
    whole = np.ones(1 << 26, np.float32)
    other = np.empty_like(whole)
    products, copies = [], []
    for _ in range(3):
        started = time.perf_counter()
        a @ a
        products.append(2 * 2048**3 / (time.perf_counter() - started))
        started = time.perf_counter()
        np.copyto(other, whole)
        copies.append(2 * whole.nbytes / (time.perf_counter() - started))
    return {"matrix_flops": max(products), "copy_bytes": max(copies)}


def lines(result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of text that report a result."""
    yield f"{result['name']}  (load {result['load']:.1f})"
    own = result["speeds"][OURS]
    for name, speeds in result["speeds"].items():
        ratio = [a / b for a, b in zip(own, speeds)]
        compared = "" if name == OURS else f"   our speed-up: {_paired.spread(ratio)}"
        yield f"  {name:<24} {statistics.median(speeds):8.1f} img/s {result['peak_MB'][name]:7.0f} MB{compared}"
    if result["multiply_adds"]:
        rate = 6 * result["multiply_adds"] * statistics.median(own)
        yield (
            f"  {rate / 1e9:.0f} GFLOP/s, {100 * rate / result['matrix_flops']:.0f} % of numpy's matrix product "
            f"({result['matrix_flops'] / 1e9:.0f} GFLOP/s); numpy copies {result['copy_bytes'] / 1e9:.0f} GB/s"
        )


def results_file(machine: str, day: date, whole: bool, folder: Path = RESULTS) -> Path:
    """Return the file for today's results on a machine: a new file if all tasks are measured (`whole`), else the last
    one."""
    model = re.sub(r"[^A-Za-z0-9]+", "-", machine.split(",")[0]).strip("-")

    def numbered(number: int) -> Path:
        return folder / f"{day.isoformat()}-{model}{f'-{number}' * (number > 1)}.json"

    there = next(number for number in itertools.count() if not numbered(number + 1).exists())
    return numbered(there + 1 if whole else max(there, 1))


def keep(path: Path, machine: str, results: Sequence[dict[str, Any]]) -> None:
    """Write results to a file. They replace earlier results of the same tasks."""
    path.parent.mkdir(exist_ok=True)
    earlier = json.loads(path.read_text())["rows"] if path.exists() else []
    new = {result["name"]: result for result in results}
    rows = [new.pop(row["name"], row) for row in earlier] + list(new.values())
    path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


def main() -> None:
    """Measure the requested tasks, or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="measure only tasks whose name contains all these words")
    parser.add_argument("--rounds", type=command_line.int_between(1), default=7)
    parser.add_argument("--short", action="store_true", help="measure a few tasks in three rounds, and omit Keras with XLA")
    parser.add_argument("--table", action="store_true", help="write the tables and the chart of docs/measured.md")
    parser.add_argument(
        "--torch-python",
        default=".venv-bench/bin/python",
        help="Python interpreter that has PyTorch and timm (default: %(default)s)",
    )
    asked = parser.parse_args()
    if asked.table:
        _tables.write(sorted(RESULTS.glob("*.json"), key=lambda path: path.stem), ROWS)
        return
    chosen = [row for row in ROWS if all(word in row.name for word in asked.words) and (row.short or not asked.short)]
    if not chosen:
        parser.error(f"no task has a name with all these words: {' '.join(asked.words)}")
    if not shutil.which(asked.torch_python):
        parser.error(f"--torch-python: {asked.torch_python} does not exist; to create it, run: make bench")
    machine = _paired.machine()
    kept = results_file(machine, date.today(), len(chosen) == len(ROWS))
    print(machine, flush=True)
    for row in chosen:
        result = measure(row, asked.torch_python, min(asked.rounds, 3) if asked.short else asked.rounds, asked.short)
        print("\n".join(lines(result)), flush=True)
        keep(kept, machine, [result])


if __name__ == "__main__":
    main()
