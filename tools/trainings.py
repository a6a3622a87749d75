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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Protocol, TypeVar

from base.errors import OptionError
from base.plugins import ROOT
from base.storage import locks
from harness.reports import plot, svg

COLOURS = ("#8a5a99", plot.BLUE, plot.GREEN, "#d9a37e", plot.ORANGE)
EDGE, ROW = 18, 58  # pixels: a margin of the picture, the height of a row
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
    """A row for each kind of training: a dot for each seed, a stroke for the mean, a bar of one standard error on both
    sides."""
    x0, x1 = svg.span([value for row in rows if row.scaled for value in row.values], slack=1)
    left, right = EDGE, svg.WIDTH - EDGE
    heading = svg.wrapped(title, right - left, 18, "bold")
    parts = svg.paragraph(left, 28, heading, size=18, weight="bold")
    legend_parts, y = svg.legend(_samples(seeds), left, 32.0 + 21 * len(heading), right)
    top, bottom = y - 4, y - 4 + ROW * len(rows)

    def across(value: float) -> float:
        return left + (value - x0) / (x1 - x0) * (right - left)

    for tick in svg.ticks(x0, x1, 6):
        parts += [
            svg.rule(across(tick), top, across(tick), bottom),
            svg.text(across(tick), bottom + 20, f"{tick:g}", anchor="middle"),
        ]
    for k, row in enumerate(rows):
        y = top + ROW * k
        parts.append(svg.text(left, y + 20, row.words, halo=True))
        if mean(row.values) < x0:
            words = f"◂ {min(row.values):.2f} to {max(row.values):.2f}, off this scale"
            parts.append(svg.text(left, y + 44, words, fill=svg.SOFT, halo=True))
            continue
        parts += _row(row.values, across, y + 38, row.colour)
    return svg.document(svg.WIDTH, bottom + 32, [*parts, *legend_parts], title)


def _samples(seeds: int) -> list[tuple[str, str]]:
    """The entries of the legend."""
    names = (f"a seed, of {seeds}", "mean", "one standard error") if seeds > 1 else ("the seed",)
    return [(f'<g transform="translate(12,0)">{sample}</g>', name) for sample, name in zip(_marks(svg.SOFT, 12), names)]


def _marks(colour: str, error: float) -> tuple[str, str, str]:
    """A seed's dot, the mean's stroke and the bar of a standard error of `error` pixels, around 0, 0."""
    return (
        f'<circle r="6" fill="{colour}" stroke="{svg.PAPER}" stroke-width="1.5"/>',
        f'<rect x="-2" y="-13" width="4" height="26" fill="{colour}"/>',
        f'<rect x="{-error:.1f}" y="-3" width="{2 * error:.1f}" height="6" fill="{colour}" opacity="0.55"/>',
    )


def _row(values: Sequence[float], across: Callable[[float], float], y: float, colour: str) -> Iterator[str]:
    """Error and mean, and the seeds in front of both."""
    average, error = mean(values), spread(values) if len(values) > 1 else 0.0
    dot, stroke, bar = _marks(colour, across(average + error) - across(average))
    apart = [7 * (k - (len(values) - 1) / 2) for k in range(len(values))]  # equal values are not one dot
    places = ((average, 0, bar), (average, 0, stroke), *((value, off, dot) for value, off in zip(values, apart)))
    yield from (f'<g transform="translate({across(x):.1f},{y + off:.1f})">{mark}</g>' for x, off, mark in places)
