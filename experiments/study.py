"""Studies: run many trainings in parallel, one on each core, and show their results in a table and a chart.

A repeated call resumes a study that was stopped.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean, median, stdev

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import check_fields
from cnn_harness.base.plugins import ROOT
from cnn_harness.base.process import command_line, jobs
from cnn_harness.base.process.signals import Signals
from cnn_harness.base.storage import locks
from cnn_harness.harness.checkpoints import find
from cnn_harness.harness.distributed.folders import FolderError
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.reports import chart
from cnn_harness.harness.reports.chart import Box, Dot, Rows
from cnn_harness.tools.planning.costs import PlannedOptions
from cnn_harness.tools.planning.plan_options import run_of

COLOURS = (chart.PURPLE, chart.BLUE, chart.GREEN, chart.SAND, chart.ORANGE)
RUNNING = jobs.Children()


class Failed(Exception):
    """A command failed."""


@dataclass(frozen=True)
class Result:
    """The result of a training. `accuracy` is the top-1 accuracy in %, `minutes` the training time and `rate` the images per
    second on one core."""

    label: str
    seed: int
    accuracy: float
    minutes: float = math.nan
    rate: float = math.nan

    def __str__(self) -> str:
        minutes = f", {self.minutes:.1f} minutes" if math.isfinite(self.minutes) else ""
        return f"{self.label}, seed {self.seed}: {self.accuracy:.2f} %{minutes}"


Job = Callable[[int], Iterable[Result]]  # trains on the given core and yields results
COSTS = tuple(each for each in fields(PlannedOptions) if each.name not in ("help", "version"))


def parse(
    parser: argparse.ArgumentParser, argv: list[str], what: str, seeds: int = 3
) -> tuple[argparse.Namespace, list[str]]:
    """Return the study's options, and the options after --, which apply to every training. The help of --seeds names what is
    trained: `what`."""
    add = parser.add_argument
    add("--seeds", type=command_line.int_between(1), default=seeds, metavar="N",
        help=f"train every {what} with N seeds (default: %(default)s)")  # fmt: skip
    add("--output", metavar="DIR", help="folder for runs, table and chart (default: logs/<name of the study>)")
    for each in COSTS:
        add(f"--{each.name}", type=str if "str" in each.type else float, help=each.metadata["help"])
    end = argv.index("--") if "--" in argv else len(argv)
    return parser.parse_args(argv[:end]), argv[end + 1 :]


def plan(given: argparse.Namespace, trainings: Iterable[Sequence[object]]) -> None:
    """Print the predicted costs of a study if they are asked for. `trainings` has the options of train.py of each training.
    Raise OptionError if the budget does not allow all of them, because a study compares all."""
    try:
        check_fields(costs := PlannedOptions(**{each.name: getattr(given, each.name) for each in COSTS}))
    except ValueError as error:
        raise OptionError(f"--{error}") from None
    calls = [Call.of_words(list(map(str, words)), "train") for words in trainings]
    lines, allowed = costs.planned([run_of(call).run.workload() for call in calls] if costs.system else [])
    print(*(f"{line}\n" for line in lines), sep="", end="", flush=True)
    if not all(allowed):
        raise OptionError(f"--budget {given.budget} does not allow all trainings; give fewer --seeds or a larger budget")


def run(
    name: str,
    folder: Path,
    words: Sequence[str],
    trainings: Sequence[Job],
    table: Callable[[Sequence[Result]], str],
    draw: Callable[[Sequence[Result]], str],
) -> int:
    """Run all trainings of a study, then write its table and its chart into a folder. `words` are the options of every
    training."""
    check_unchanged(folder, words)
    results = run_all(trainings)
    text, drawing = table(results), folder / f"{name}.svg"
    (folder / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    drawing.write_text(draw(results), encoding="utf-8")
    print(f"\n{text}\n\nChart: {drawing}")
    return 0


def script(name: str, main: Callable[[list[str]], int]) -> int:
    """Run a study's command; return its exit code."""
    return command_line.run(f"{name}.py", main, None, (OptionError,), (Failed, FolderError))


# --- Trainings ---------------------------------------------------------------------------------------------------


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file; an empty list if the file does not exist."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


def clear(folder: Path) -> None:
    """Remove the directory of a training that ended before its first checkpoint."""
    if folder.exists():
        with locks.lock_folder(folder):  # raises FolderError if a training is running in the folder
            pass
        shutil.rmtree(folder)


def train(core: int, folder: Path, words: Sequence[object], always: Sequence[str] = ()) -> None:
    """Start or resume a training. `words` are options for a start only, `always` options for both."""
    if find.numbered(folder):
        call(core, "restore.py", "--restore-path", folder, *always)
    else:
        clear(folder)
        call(core, "train.py", *words, *always, "--logs-path", folder)


def accuracy(core: int, folder: Path, words: Sequence[object], always: Sequence[str] = ()) -> float:
    """Train, unless the training is complete. Return the top-1 accuracy of the last checkpoint in %."""
    if not (folder / "report.html").exists():
        train(core, folder, words, always)
    return [float(row["val_acc"]) for row in rows_of(folder / "validation.csv") if row["name"].startswith("ckpt-")][-1]


def rate(folder: Path) -> float:
    """Return the median rate of a training in images per second."""
    return median(float(row["img_per_sec"]) for row in rows_of(folder / "training.csv"))


def call(core: int, script: str, *words: object) -> None:
    """Run a command on one core. Raise Failed if its exit code is not 0."""
    command = [sys.executable, str(ROOT / script), *map(str, words)]
    process = RUNNING.start(
        script, command, os.environ, {core}, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if process is None:
        raise Failed("stopped")
    _, output = process.communicate()
    if process.returncode:
        lines = output.strip().splitlines() or [""]
        error = [line for line in lines if f"{script}: error: " in line] or lines
        raise Failed(f"{error[-1]} (exit code {process.returncode} of {' '.join(command[1:])})")


def check_unchanged(folder: Path, words: Sequence[str]) -> None:
    """Raise OptionError if the trainings in the folder were started with other options after --."""
    path, given = folder / "words.txt", shlex.join(words)
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(given + "\n", encoding="utf-8")
    elif (before := path.read_text(encoding="utf-8").strip()) != given:
        raise OptionError(f"{folder} has runs with other options after --: '{before}', not '{given}'; give another --output")


def run_all(trainings: Sequence[Job]) -> list[Result]:
    """Run all trainings, one at a time on each core; return their results.

    After a failure or a signal, let the running trainings save and end, then raise the error or StopRequest.
    """

    def work(k: int, cores: Sequence[int]) -> tuple[int, list[Result]]:
        results = []
        for result in trainings[k](cores[0]):
            results.append(result)
            print(result, flush=True)
        return k, results

    shares = [[core] for core in sorted(os.sched_getaffinity(0))]
    with Signals() as signals:
        try:
            with signals.deferred(RUNNING.stop, "saving; repeat the call to resume"):
                done = dict(RUNNING.run_on_cores(work, range(len(trainings)), shares))
        except Failed:
            signals.raise_if_received()
            raise
    return [result for k in range(len(trainings)) for result in done[k]]


# --- Results -----------------------------------------------------------------------------------------------------


def by_seed(results: Iterable[Result], value: str = "accuracy") -> dict[str, list[float]]:
    """Return the values of each label, ordered by seed."""
    grouped: dict[str, list[float]] = {}
    for result in sorted(results, key=lambda result: result.seed):
        grouped.setdefault(result.label, []).append(getattr(result, value))
    return grouped


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    return stdev(values) / math.sqrt(len(values))


def average(values: Sequence[float], unit: str = " %") -> str:
    """Return mean ± standard error."""
    return f"{mean(values):.2f}{f' ± {standard_error(values):.2f}' if len(values) > 1 else ''}{unit}"


def summary(values: Sequence[float], unit: str = " %") -> str:
    """Return mean ± standard error, and each value in brackets."""
    return f"{average(values, unit)} ({', '.join(f'{value:.2f}' for value in values)})"


@dataclass(frozen=True)
class Dots:
    """A row of a chart. `values` has one value for each seed. If `scaled` is true, the axis covers all of them."""

    name: str
    colour: str
    values: Sequence[float]
    scaled: bool = True


def dot_chart(title: str, rows: Sequence[Dots]) -> str:
    """Return a chart. Each row has a dot for each seed, a line at the mean, and a bar of ± one standard error."""
    axis = chart.span([value for row in rows if row.scaled for value in row.values], slack=1)
    names: list[str] = []
    marks: list[Box | Dot] = []
    for k, row in enumerate(rows):
        off = mean(row.values) < axis[0]
        names.append(row.name + f"; {min(row.values):.2f} to {max(row.values):.2f}, off this scale" * off)
        marks += [] if off else _row(row, k)
    return chart.figure([Rows("", names, marks, height=34, x_axis=axis)], title)


def _row(row: Dots, k: int) -> Iterator[Box | Dot]:
    """Yield the marks of a row. The dots of the seeds come last, so that they are drawn on top."""
    middle, count = mean(row.values), len(row.values)
    if count > 1:
        error = standard_error(row.values)
        yield Box(middle - error, middle + error, row.colour, k, "one standard error", opacity=0.55, thick=0.18)
        yield Box(middle, middle, row.colour, k, "mean", thick=0.8, least=4)
    label = f"one of {count} seeds" if count > 1 else "the only seed"
    apart = min(7, 28 / count)  # pixels, so that equal values do not overlap
    for place, value in enumerate(row.values):
        yield Dot(value, row.colour, k, label, lift=apart * (place - (count - 1) / 2))
