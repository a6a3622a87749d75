"""Trainings for a study: many commands, each on a core of its own, as many at once as there are cores; a broken-off call
goes on. The results of a study: means with their standard errors, and a row of dots for each kind of training."""

from __future__ import annotations

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Protocol, TypeVar

from base.errors import OptionError
from base.plugins import ROOT
from base.storage import locks
from harness.reports import chart
from harness.reports.chart import Box, Dot, Rows

COLOURS = (chart.PURPLE, chart.BLUE, chart.GREEN, chart.SAND, chart.ORANGE)
RUNNING: dict[int, subprocess.Popen[str]] = {}  # the commands, by process


class Failed(Exception):
    """A command did not end well."""


class Result(Protocol):
    """The outcome of a training."""

    def line(self) -> str:
        """The outcome in a line."""
        ...


Given = TypeVar("Given", bound=Result, covariant=True)


class Job(Protocol[Given]):
    """Trainings that run one after another on one core."""

    def run(self, core: int) -> Iterator[Given]:
        """Train, or go on, and yield the results."""
        ...


def clear(folder: Path) -> None:
    """Take the folder of a call that ended before its first result."""
    if folder.exists():
        with locks.lock_folder(folder):  # not that of a training that still runs
            pass
        shutil.rmtree(folder)


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, none if it is not there."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


def call(core: int, script: str, *words: object) -> None:
    """Run one command, held to one core."""
    command = [sys.executable, str(ROOT / script), *map(str, words)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    RUNNING[process.pid] = process
    os.sched_setaffinity(process.pid, {core})  # Python has only begun to start: no thread of TensorFlow exists
    _, said = process.communicate()
    del RUNNING[process.pid]
    if process.returncode:
        lines = (
            [line for line in said.splitlines() if f"{script}: error: " in line] or said.strip().splitlines()[-1:] or [""]
        )
        raise Failed(f"{lines[-1]} (exit code {process.returncode}, of {' '.join(command[1:])})")


def end_by_signals(name: str) -> None:
    """Let signals end the trainings, which save; the next call of the program `name` goes on with them."""

    def stop(number: int, frame: object) -> None:
        for process in list(RUNNING.values()):
            process.terminate()
        for process in list(RUNNING.values()):
            process.wait()
        print(f"{name}: stopped by {signal.Signals(number).name}; the same call goes on", file=sys.stderr, flush=True)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def same_words(folder: Path, more: Sequence[str]) -> None:
    """Runs of other options must not come into one table."""
    path, words = folder / "words.txt", shlex.join(more)
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(words + "\n", encoding="utf-8")
    elif (before := path.read_text(encoding="utf-8").strip()) != words:
        raise OptionError(f"{folder} has runs with '{before}' after --, not with '{words}'; give another --output")


def run_all(jobs: Sequence[Job[Given]], cores: Iterable[int]) -> list[Given]:
    """Every job, as many at once as there are cores."""
    waiting: queue.SimpleQueue[Job[Given]] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    results: list[Given] = []
    failures: list[Exception] = []

    def work(core: int) -> None:
        while not failures:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                for result in job.run(core):
                    results.append(result)
                    print(result.line(), flush=True)
            except Exception as failure:  # to be raised where it is seen
                failures.append(failure)

    workers = [threading.Thread(target=work, args=(core,)) for core in cores]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return results


# Results


def spread(values: Sequence[float]) -> float:
    """The standard error of the mean."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def summary(values: Sequence[float], unit: str = " %") -> str:
    """mean ± standard error (each value)."""
    error = f" ± {spread(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{error}{unit} ({', '.join(f'{value:.2f}' for value in values)})"


def headline(values: Sequence[float]) -> str:
    """mean ± standard error."""
    return f"{mean(values):.2f}{f' ± {spread(values):.2f}' if len(values) > 1 else ''} %"


@dataclass(frozen=True)
class Dots:
    """A row of a picture: its words, its colour, a value for each seed, and whether the scale is made for them."""

    words: str
    colour: str
    values: Sequence[float]
    scaled: bool = True


def picture(title: str, rows: Sequence[Dots], seeds: int) -> str:
    """Return a row for each kind of training: a dot for each seed, a stroke for the mean, a bar of one standard error on
    both sides."""
    axis = chart.span([value for row in rows if row.scaled for value in row.values], slack=1)
    names: list[str] = []
    marks: list[Box | Dot] = []
    for k, row in enumerate(rows):
        off = mean(row.values) < axis[0]
        names.append(row.words + f"; {min(row.values):.2f} to {max(row.values):.2f}, off this scale" * off)
        marks += [] if off else _row(row, k, seeds)
    return chart.figure([Rows("", names, marks, height=34, x_axis=axis)], title)


def _row(row: Dots, k: int, seeds: int) -> Iterator[Box | Dot]:
    """Yield error and mean, and the seeds in front of both."""
    average, count = mean(row.values), len(row.values)
    if count > 1:
        error = spread(row.values)
        yield Box(average - error, average + error, row.colour, k, "one standard error", opacity=0.55, thick=0.18)
        yield Box(average, average, row.colour, k, "mean", thick=0.8, least=4)
    for place, value in enumerate(row.values):  # equal values are not one dot
        label = f"a seed, of {seeds}" if seeds > 1 else "the seed"
        yield Dot(value, row.colour, k, label, lift=7 * (place - (count - 1) / 2))
