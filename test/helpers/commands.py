"""Run small commands in this process, for tests."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import cnn_harness.train as train
from cnn_harness import inference_embedded, restore, validation, weight_avg
from cnn_harness.emulator.program.training_program import TrainingProgram
from cnn_harness.harness.commands import answers
from cnn_harness.harness.programs import build, program_cache
from cnn_harness.harness.run.cluster import Execution, seed_of
from cnn_harness.harness.run.run import Run
from cnn_harness.tools import compare_runs, export, finetune, plan, report, runs, sweep, systems

Row = Mapping[str, str]  # of a grid: a value for each axis
SCRIPTS = {
    "train": train.main, "validation": validation.main, "restore": restore.main, "weight_avg": weight_avg.main,
    "finetune": finetune.main, "inference_embedded": inference_embedded.main, "plan": plan.main, "report": report.main,
    "runs": runs.main, "sweep": sweep.main, "export": export.main, "systems": systems.main,
    "compare": compare_runs.main,
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The result of a command. `err` lacks the lines that a slow machine adds."""

    code: int
    out: str
    err: str

    @property
    def folder(self) -> Path:
        """Return the run directory that the command announced."""
        line = next(line for line in self.out.splitlines() if line.startswith(" Saving to "))
        return Path(line[11:])


def run(script: str, *words: object) -> Result:
    """Run a command as the shell would start it."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = answers.run_command(script, SCRIPTS[script], [str(word) for word in words])
    return Result(code, out.getvalue(), without_waits(err.getvalue()))


def without_waits(text: str) -> str:
    """Return the text without the lines that say what a command has waited for, for ten seconds."""
    return re.sub(r"(?m)^([A-Z].* \.\.\.|\d+ of \d+ .* per second.*)\n", "", text)


def succeed(script: str, *words: object) -> Result:
    """Run a command that must succeed."""
    result = run(script, *words)
    assert result.code == 0, result.err + result.out
    return result


def program(prepared: Run) -> TrainingProgram:
    """Return the run's training program with its initial weights; tests and commands share the built programs."""
    execution = Execution.of(prepared.options)
    entry = program_cache.cache_entry(prepared, execution, "training", recording=False)
    return build.training_program(prepared, execution.seed, 0, cache_entry=entry)


def training_program(prepared: Run, first_update: int = 0, **more: Any) -> TrainingProgram:
    """Return the run's training program from its graph. `more` are arguments of `build.training_program`."""
    return build.training_program(prepared, seed_of(prepared.options), first_update, **more)


def variables(folder: Path, iteration: int) -> dict[str, np.ndarray]:
    """Return a checkpoint's tensors by name, without scalars, so that callers can iterate over values."""
    reader = tf.train.NewCheckpointReader(str(folder / f"ckpt-{iteration}"))
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    assert all(value.ndim for value in tensors.values())
    return tensors


def assert_same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """Check that every tensor is equal to the last bit."""
    assert one.keys() == other.keys()
    different = [name for name in one if one[name].tobytes() != other[name].tobytes()]
    assert not different, f"{len(different)} of {len(one)} differ: {different[:5]}"


def moved(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> float:
    """Return how far the kernels moved, relative to their size."""
    kernels = [name for name in before if name.endswith("kernel")]
    distance = sum(float(np.square(after[name] - before[name]).sum()) for name in kernels)
    return (distance / sum(float(np.square(before[name]).sum()) for name in kernels)) ** 0.5


def rows(path: Path) -> list[dict[str, str]]:
    """Return a CSV file's rows."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def timeless(path: Path) -> list[dict[str, str]]:
    """Return a CSV file's rows without times."""
    clocks = {"it_time", "img_per_sec", "total_time", "input_share", "val_time", "latency"}
    return [{name: value for name, value in row.items() if name not in clocks} for row in rows(path)]


def covering(axes: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yield few rows in which every two values of different axes meet."""
    rows = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
    pairs = {id(row): set(itertools.combinations(row.items(), 2)) for row in rows}
    missing = set().union(*pairs.values())
    while missing:
        best = max(rows, key=lambda row: len(pairs[id(row)] & missing))
        missing -= pairs[id(best)]
        yield best


def arguments(folder: Path) -> dict[str, object]:
    """Return the run's arguments.json."""
    return json.loads((folder / "arguments.json").read_text())
