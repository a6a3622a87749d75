"""The three findings of "Making EfficientNet More Efficient" in miniature: group convolutions of 16 channels against
depthwise ones, layer norm with proxy norm against group norm, half the pixels and a fine-tuning against all of them.

python tools/findings.py                     three seeds, 37 minutes on two slow cores; a broken-off call goes on
python tools/findings.py --seeds 5 --output logs/five

Trains the small twins of configs.yml (B0-..._mini) with fewer blocks, for three epochs and in single precision, each run on
a core of its own. As no result depends on them, the stages share one emulated IPU and nothing is recomputed. Everything
after -- is added to every training.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    import sys

    sys.path.insert(0, __file__.rpartition("/tools/")[0])
    from base.process import startup

    startup.begin("findings.py")

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from base.errors import OptionError
from base.plugins import ROOT
from base.process import command_line
from base.storage import locks
from harness.checkpoints import find
from harness.commands import cli
from harness.processes.folders import FolderError
from harness.reports import plot, svg
from harness.run.resolve import prepare

ONE_DEVICE = ("--shards", "1", "--no-pipeline-splits", "--no-enable-recomputation")
SHORTER = ("--depth-coefficient", "0.5", "--epochs", "3", "--precision", "32.32", *ONE_DEVICE)
AVERAGE = "weight_avg_exp_0.5"
NATIVE, HALF = "B0-G16-GN-Native_mini", "B0-G16-GN-Half_mini"
TUNING = (
    "--lr-schedule", "cosine", "--epochs", "2", "--train-with-valid-preprocessing", "--base-learning-rate", "-11",
    "--variable-filter", "Top",
)  # fmt: skip
HALVED, TUNED = "half, as it is", "half, fine-tuned"
RECIPES = {"G1, GN": "B0-G1-GN-Native_mini", "G16, GN": NATIVE, "G16, LN+PN": "B0-G16-LN_PN-Native_mini"}
EDGE, ROW = 18, 58  # pixels: a margin of the picture, the height of a row


RUNNING: dict[int, subprocess.Popen[str]] = {}  # the commands, by process


class Failed(Exception):
    """A command did not end well."""


@dataclass(frozen=True)
class Result:
    """A network at the end of its training."""

    label: str
    seed: int
    accuracy: float  # top-1 of the averaged weights, %
    minutes: float  # of training on one core, at the median speed


@dataclass(frozen=True)
class Job:
    """The trainings for one label and seed, one after another on one core."""

    label: str
    config: str
    seed: int
    folder: Path
    more: tuple[str, ...]

    def run(self, core: int) -> Iterator[Result]:
        """Trains, or goes on, and yields the results."""
        base = self.folder / f"{self.config}-{self.seed}"
        self._train(core, base, self.config, ())
        minutes = _minutes(base)
        if self.config != HALF:
            yield Result(self.label, self.seed, _accuracy(base), minutes)
            return
        averaged = str(base / "ckpt" / AVERAGE)
        before, after = (base.with_name(f"{base.name}-{what}") for what in ("as-it-is", "fine-tuned"))
        if not _finished(before):
            _clear(before)
            _call(core, "validation.py", "--config", NATIVE, *SHORTER, "--restore-path", averaged, "--logs-path", before)
        yield Result(HALVED, self.seed, _accuracy(before), minutes)
        self._train(core, after, NATIVE, (*TUNING, "--init-path", averaged))
        yield Result(TUNED, self.seed, _accuracy(after), minutes + _minutes(after))

    def _train(self, core: int, folder: Path, config: str, words: Sequence[str]) -> None:
        if _finished(folder):
            return
        if find.numbered(folder):
            _call(core, "restore.py", "--restore-path", folder)
            return
        _clear(folder)
        seed = ("--seed", str(self.seed))
        _call(core, "train.py", "--config", config, *SHORTER, *words, *seed, *self.more, "--logs-path", folder)


def _finished(folder: Path) -> bool:
    return any(row["name"] == AVERAGE for row in _rows(folder / "validation.csv"))


def _clear(folder: Path) -> None:
    """Takes the folder of a call that ended before its first result."""
    if folder.exists():
        with locks.held(folder):  # not that of a training that still runs
            pass
        shutil.rmtree(folder)


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


def _accuracy(folder: Path) -> float:
    for row in _rows(folder / "validation.csv"):
        if row["name"] == AVERAGE:
            return float(row["val_acc"])
    raise Failed(f"{folder} has no validated {AVERAGE}: the comparison is of averages, so leave averaging and validation on")


def _minutes(folder: Path) -> float:
    rows = _rows(folder / "training.csv")
    speed = median(float(row["img_per_sec"]) for row in rows)
    pictures = float(rows[-1]["epoch"]) * _pictures()
    return pictures / speed / 60


def _pictures() -> int:
    return _traced(NATIVE)[2]


def _traced(config: str) -> tuple[float, int, int]:
    """Millions of multiply-adds of a picture, parameters, training pictures."""
    run = prepare(cli.parse(["--config", config, *SHORTER], "train", environ={}).options, {})
    return run.trace.multiply_adds / 1e6, run.trace.trainable_parameters, run.data_source.spec.train_images


def _call(core: int, script: str, *words: object) -> None:
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


def _stop(number: int, frame: object) -> None:
    """A signal ends the trainings, which save; the next call goes on with them."""
    for process in list(RUNNING.values()):
        process.terminate()
    for process in list(RUNNING.values()):
        process.wait()
    print(f"\nfindings.py: stopped by signal {number}; the same call goes on", file=sys.stderr, flush=True)
    os._exit(128 + number)


def _same_words(folder: Path, more: Sequence[str]) -> None:
    """Runs of other options must not come into one table."""
    path, words = folder / "words.txt", shlex.join(more)
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(words + "\n", encoding="utf-8")
    elif (before := path.read_text(encoding="utf-8").strip()) != words:
        raise OptionError(f"{folder} has runs with '{before}' after --, not with '{words}'; give another --output")


def run_all(jobs: Sequence[Job], cores: Iterable[int]) -> list[Result]:
    """Every job, as many at once as there are cores."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    results: list[Result] = []
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
                    said = f"{result.label}, seed {result.seed}: {result.accuracy:.2f} %, {result.minutes:.1f} minutes"
                    print(said, flush=True)
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


def table(results: Sequence[Result]) -> str:
    """The networks' rows, and below them the three comparisons, seed by seed."""
    accuracies, minutes = grouped(results)
    configs = {**RECIPES, HALVED: HALF, TUNED: HALF}
    lines = [
        "| network | parameters | million multiply-adds of a training picture | minutes of one core "
        "| top-1 of the average |",
        "| --- | --- | --- | --- | --- |",
    ]
    for label, values in accuracies.items():
        adds, parameters, _ = _traced(configs[label])
        lines.append(f"| {label} | {parameters:,} | {adds:.1f} | {mean(minutes[label]):.1f} | {summary(values)} |")
    lines += ["", "| finding | difference in top-1 | time |", "| --- | --- | --- |"]
    for what, first, second in (
        ("groups of 16 with expansion 4 against depthwise with 6", "G16, GN", "G1, GN"),
        ("layer norm with proxy norm against group norm", "G16, LN+PN", "G16, GN"),
        ("half the pixels against all", HALVED, "G16, GN"),
        ("half the pixels and fine-tuning against all", TUNED, "G16, GN"),
    ):
        differences = [a - b for a, b in zip(accuracies[first], accuracies[second])]
        time = mean(minutes[first]) / mean(minutes[second])
        lines.append(f"| {what} | {summary(differences, ' points')} | {time:.2f} times |")
    return "\n".join(lines)


def grouped(results: Sequence[Result]) -> tuple[Mapping[str, list[float]], Mapping[str, list[float]]]:
    """Accuracies and minutes of each network, by seed."""
    ordered = sorted(results, key=lambda result: result.seed)
    labels = (*RECIPES, HALVED, TUNED)
    return (
        {label: [r.accuracy for r in ordered if r.label == label] for label in labels},
        {label: [r.minutes for r in ordered if r.label == label] for label in labels},
    )


def picture(results: Sequence[Result]) -> str:
    """A row for each network: a dot for each seed, a stroke for the mean, a bar of one standard error on both sides."""
    accuracies, minutes = grouped(results)
    x0, x1 = svg.span([value for label, values in accuracies.items() if label != HALVED for value in values], slack=1)
    left, right, seeds = EDGE, svg.WIDTH - EDGE, len(accuracies[HALVED])
    title = "Accuracy of the averaged weights on the validation pictures, top-1, %"
    heading = svg.wrapped(title, right - left, 18, "bold")
    parts = svg.paragraph(left, 28, heading, size=18, weight="bold")
    legend_parts, y = svg.legend(_samples(seeds), left, 32.0 + 21 * len(heading), right)
    top, bottom = y - 4, y - 4 + ROW * len(accuracies)

    def across(value: float) -> float:
        return left + (value - x0) / (x1 - x0) * (right - left)

    for tick in svg.ticks(x0, x1, 6):
        parts += [
            svg.rule(across(tick), top, across(tick), bottom),
            svg.text(across(tick), bottom + 20, f"{tick:g}", anchor="middle"),
        ]
    colours = ("#8a5a99", plot.BLUE, plot.GREEN, "#d9a37e", plot.ORANGE)
    for k, (colour, (label, values)) in enumerate(zip(colours, accuracies.items())):
        y = top + ROW * k
        error = f" ± {spread(values):.2f}" if seeds > 1 else ""
        words = f"{label}: {mean(values):.2f}{error} %, {mean(minutes[label]):.1f} minutes"
        parts.append(svg.text(left, y + 20, words, halo=True))
        if mean(values) < x0:
            words = f"◂ {min(values):.2f} to {max(values):.2f}, off this scale"
            parts.append(svg.text(left, y + 44, words, fill=svg.SOFT, halo=True))
            continue
        parts += _row(values, across, y + 38, colour)
    return svg.document(svg.WIDTH, bottom + 32, [*parts, *legend_parts], title)


def _samples(seeds: int) -> list[tuple[str, str]]:
    """The entries of the legend."""
    names = (f"a seed, of {seeds}", "mean", "one standard error") if seeds > 1 else ("the seed",)
    return [(f'<g transform="translate(12,0)">{sample}</g>', name) for sample, name in zip(_marks(svg.SOFT, 12), names)]


def _marks(colour: str, error: float) -> tuple[str, str, str]:
    """A seed's dot, the mean's stroke and the bar of a standard error of so many pixels, around 0, 0."""
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


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=command_line.whole(1), default=3, metavar="N", help="seeds 1 to N of every network [3]"
    )
    parser.add_argument("--output", default="logs/findings", metavar="DIR", help="where runs, table and picture go")
    arguments = sys.argv[1:]
    training_words = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    parsed = parser.parse_args(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    folder = Path(parsed.output).resolve()
    recipes = {**RECIPES, TUNED: HALF}  # the longest first, so that no core waits long for the last
    jobs = [
        Job(label, config, seed, folder, tuple(training_words))
        for label, config in recipes.items()
        for seed in range(1, parsed.seeds + 1)
    ]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        _same_words(folder, training_words)
        results = run_all(jobs, sorted(os.sched_getaffinity(0)))
    except (Failed, FolderError, OptionError, OSError) as failure:
        print(f"findings.py: error: {failure}", file=sys.stderr)
        return 2 if isinstance(failure, OptionError) else 1
    text = table(results)
    (folder / "findings.md").write_text(text + "\n", encoding="utf-8")
    (folder / "findings.svg").write_text(picture(results), encoding="utf-8")
    print(f"\n{text}\n\nThe picture is {folder / 'findings.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
