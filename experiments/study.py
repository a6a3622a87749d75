"""Studies: run many trainings in parallel, one on each core, and show their results in a table and a chart.

A repeated call resumes a study that was stopped.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from cnn_harness.base.errors import OptionError
from cnn_harness.base.plugins import ROOT
from cnn_harness.base.process import command_line
from cnn_harness.base.storage import locks
from cnn_harness.harness.checkpoints import find
from cnn_harness.harness.distributed.folders import FolderError
from cnn_harness.harness.reports import chart
from cnn_harness.harness.reports.chart import Box, Dot, Rows

COLOURS = (chart.PURPLE, chart.BLUE, chart.GREEN, chart.SAND, chart.ORANGE)
RUNNING: dict[int, subprocess.Popen[str]] = {}  # running commands by process ID
ENDING = threading.Event()  # set after a signal: no further command may start


class Failed(Exception):
    """A command failed."""


@dataclass(frozen=True)
class Result:
    """The result of a training. `accuracy` is the top-1 accuracy in %, `minutes` the training time on one core."""

    label: str
    seed: int
    accuracy: float
    minutes: float = math.nan

    def __str__(self) -> str:
        minutes = f", {self.minutes:.1f} minutes" if math.isfinite(self.minutes) else ""
        return f"{self.label}, seed {self.seed}: {self.accuracy:.2f} %{minutes}"


Job = Callable[[int], Iterable[Result]]  # trains on the given core and yields results


def parse(parser: argparse.ArgumentParser, argv: list[str], what: str) -> tuple[argparse.Namespace, list[str]]:
    """Return the study's options, and the options after --, which apply to every training. The help of --seeds names what is
    trained: `what`."""
    add = parser.add_argument
    add("--seeds", type=command_line.int_between(1), default=3, metavar="N",
        help=f"train every {what} with seeds 1 to N (default: 3)")  # fmt: skip
    add("--output", metavar="DIR", help="folder for runs, table and chart (default: logs/<name of the study>)")
    end = argv.index("--") if "--" in argv else len(argv)
    return parser.parse_args(argv[:end]), argv[end + 1 :]


def run(
    name: str,
    folder: Path,
    words: Sequence[str],
    jobs: Sequence[Job],
    table: Callable[[Sequence[Result]], str],
    draw: Callable[[Sequence[Result]], str],
) -> int:
    """Run all jobs of a study, then write its table and its chart into a folder. `words` are the options of every
    training."""
    end_by_signals()
    check_unchanged(folder, words)
    results = run_all(jobs, sorted(os.sched_getaffinity(0)))
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


def call(core: int, script: str, *words: object) -> None:
    """Run a command on one core. Raise Failed if its exit code is not 0."""
    if ENDING.is_set():
        raise Failed("stopped")
    command = [sys.executable, str(ROOT / script), *map(str, words)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    RUNNING[process.pid] = process
    os.sched_setaffinity(process.pid, {core})  # Python is still starting, so TensorFlow has no threads yet
    _, output = process.communicate()
    del RUNNING[process.pid]
    if process.returncode:
        lines = output.strip().splitlines() or [""]
        error = [line for line in lines if f"{script}: error: " in line] or lines
        raise Failed(f"{error[-1]} (exit code {process.returncode} of {' '.join(command[1:])})")


def end_by_signals() -> None:
    """After a signal, let the trainings save a checkpoint and end, then exit."""

    def stop(number: int, frame: object) -> None:
        ENDING.set()
        for process in list(RUNNING.values()):
            process.terminate()
        for process in list(RUNNING.values()):
            process.wait()
        stopped = f"{Path(sys.argv[0]).name}: stopped by {signal.Signals(number).name}"
        print(f"{stopped}; repeat the call to resume", file=sys.stderr, flush=True)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def check_unchanged(folder: Path, words: Sequence[str]) -> None:
    """Raise OptionError if the trainings in the folder were started with other options after --."""
    path, given = folder / "words.txt", shlex.join(words)
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(given + "\n", encoding="utf-8")
    elif (before := path.read_text(encoding="utf-8").strip()) != given:
        raise OptionError(f"{folder} has runs with other options after --: '{before}', not '{given}'; give another --output")


def run_all(jobs: Sequence[Job], cores: Sequence[int]) -> list[Result]:
    """Run every job, one at a time on each core, and return all results. After a failure, start no further job."""
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in cores:
        free.put(core)

    def work(job: Job) -> list[Result]:
        core, results = free.get(), []
        try:
            for result in job(core):
                results.append(result)
                print(result, flush=True)
        finally:
            free.put(core)
        return results

    with ThreadPoolExecutor(len(cores)) as pool:
        futures = [pool.submit(work, job) for job in jobs]
        done, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
        for future in done:
            future.result()
    return [result for future in futures for result in future.result()]


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
    for place, value in enumerate(row.values):  # dots are shifted vertically, so that equal values do not overlap
        yield Dot(value, row.colour, k, label, lift=7 * (place - (count - 1) / 2))
