"""The three findings of "Making EfficientNet More Efficient" in miniature: group convolutions of 16 channels against
depthwise ones, layer norm with proxy norm against group norm, half the pixels and a fine-tuning against all of them.

python tools/findings.py                     three seeds, 37 minutes on two slow cores; a broken-off call goes on
python tools/findings.py --seeds 5 --output logs/five

Trains the small twins of configs.yml (B0-..._mini) with fewer blocks, for three epochs and in single precision, each run on
a core of its own. As no result depends on them, the stages share one emulated IPU and nothing is recomputed. Everything
after -- is added to every training.
"""

from __future__ import annotations

if not __package__:  # called by its path
    import begin  # noqa: F401

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from base.errors import OptionError
from base.process import command_line
from harness.checkpoints import find
from harness.commands import cli
from harness.processes.folders import FolderError
from harness.run.resolve import prepare
from tools import trainings
from tools.trainings import COLOURS, Dots, Failed, call, clear, headline, rows_of, run_all, same_words, summary

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


@dataclass(frozen=True)
class Result:
    """A network at the end of its training."""

    label: str
    seed: int
    accuracy: float  # top-1 of the averaged weights, %
    minutes: float  # of training on one core, at the median speed

    def line(self) -> str:
        """The result in a line."""
        return f"{self.label}, seed {self.seed}: {self.accuracy:.2f} %, {self.minutes:.1f} minutes"


@dataclass(frozen=True)
class Job:
    """The trainings for one label and seed, one after another on one core."""

    label: str
    config: str
    seed: int
    folder: Path
    more: tuple[str, ...]

    def run(self, core: int) -> Iterator[Result]:
        """Train, or go on, and yield the results."""
        base = self.folder / f"{self.config}-{self.seed}"
        self._train(core, base, self.config, ())
        minutes = _minutes(base)
        if self.config != HALF:
            yield Result(self.label, self.seed, _accuracy(base), minutes)
            return
        averaged = str(base / "ckpt" / AVERAGE)
        before, after = (base.with_name(f"{base.name}-{what}") for what in ("as-it-is", "fine-tuned"))
        if not _finished(before):
            clear(before)
            call(core, "validation.py", "--config", NATIVE, *SHORTER, "--restore-path", averaged, "--logs-path", before)
        yield Result(HALVED, self.seed, _accuracy(before), minutes)
        self._train(core, after, NATIVE, (*TUNING, "--init-path", averaged))
        yield Result(TUNED, self.seed, _accuracy(after), minutes + _minutes(after))

    def _train(self, core: int, folder: Path, config: str, words: Sequence[str]) -> None:
        if _finished(folder):
            return
        if find.numbered(folder):
            call(core, "restore.py", "--restore-path", folder)
            return
        clear(folder)
        seed = ("--seed", str(self.seed))
        call(core, "train.py", "--config", config, *SHORTER, *words, *seed, *self.more, "--logs-path", folder)


def _finished(folder: Path) -> bool:
    return any(row["name"] == AVERAGE for row in rows_of(folder / "validation.csv"))


def _accuracy(folder: Path) -> float:
    for row in rows_of(folder / "validation.csv"):
        if row["name"] == AVERAGE:
            return float(row["val_acc"])
    raise Failed(f"{folder} has no validated {AVERAGE}: the comparison is of averages, so leave averaging and validation on")


def _minutes(folder: Path) -> float:
    rows = rows_of(folder / "training.csv")
    speed = median(float(row["img_per_sec"]) for row in rows)
    pictures = float(rows[-1]["epoch"]) * _pictures()
    return pictures / speed / 60


def _pictures() -> int:
    return _traced(NATIVE)[2]


def _traced(config: str) -> tuple[float, int, int]:
    """Millions of multiply-adds of a picture, parameters, training pictures."""
    run = prepare(cli.parse(["--config", config, *SHORTER], "train", environ={}).options, {})
    return run.trace.multiply_adds / 1e6, run.trace.trainable_parameters, run.data_source.spec.train_images


# Results


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
    """A row for each network."""
    accuracies, minutes = grouped(results)
    rows = [
        Dots(f"{label}: {headline(values)}, {mean(minutes[label]):.1f} minutes", colour, values, scaled=label != HALVED)
        for colour, (label, values) in zip(COLOURS, accuracies.items())
    ]
    title = "Accuracy of the averaged weights on the validation pictures, top-1, %"
    return trainings.picture(title, rows, len(accuracies[HALVED]))


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=command_line.int_between(1), default=3, metavar="N", help="seeds 1 to N of every network [3]"
    )
    parser.add_argument("--output", default="logs/findings", metavar="DIR", help="where runs, table and picture go")
    training_words = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    parsed = parser.parse_args(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    folder = Path(parsed.output).resolve()
    recipes = {**RECIPES, TUNED: HALF}  # the longest first, so that no core waits long for the last
    jobs = [
        Job(label, config, seed, folder, tuple(training_words))
        for label, config in recipes.items()
        for seed in range(1, parsed.seeds + 1)
    ]
    trainings.end_by_signals("findings.py")
    same_words(folder, training_words)
    results = run_all(jobs, sorted(os.sched_getaffinity(0)))
    text = table(results)
    (folder / "findings.md").write_text(text + "\n", encoding="utf-8")
    (folder / "findings.svg").write_text(picture(results), encoding="utf-8")
    print(f"\n{text}\n\nThe picture is {folder / 'findings.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run("findings.py", main, None, (OptionError,), (Failed, FolderError)))
