"""Trains one network in several number formats, with the same seeds, and compares the accuracies: a table and a picture.

python tools/formats.py                      the quickstart, three seeds
python tools/formats.py --network efficientnet     a small EfficientNet-B0 with groups of 16, on the embedded photographs
python tools/formats.py --only FP32 16.16 8.16 --seeds 5 --output logs/five

Each run takes a core of its own; a broken-off call goes on. Everything after -- is added to every training.
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
from statistics import mean

from base import plugins
from base.errors import OptionError
from base.process import command_line
from harness.checkpoints import find
from harness.processes.folders import FolderError
from tools import trainings
from tools.trainings import COLOURS, Dots, Failed, call, clear, headline, rows_of, run_all, same_words, summary

NETWORKS: Mapping[str, tuple[str, ...]] = {
    "quickstart": ("--config", "quickstart"),
    "efficientnet": (
        "--config", "B0-G16-GN-Native_mini", "--depth-coefficient", "0.3", "--epochs", "2", "--shards", "1",
        "--no-pipeline-splits", "--no-enable-recomputation",
    ),
}  # fmt: skip
POLICIES: Mapping[str, str] = {
    "FP32": "--precision 32.32",
    "bf16.32": "--precision bf16.32",
    "16.16": "--precision 16.16",
    "16.16 to nearest": "--precision 16.16 --no-stochastic-rounding",
    "8.16": "--precision 8.16",
    "8.16, weights' bias 11": "--precision 8.16 --weight-bias 11",
    "8.16, activations' bias 4": "--precision 8.16 --activation-bias 4",
    "8.16, activations' bias 12": "--precision 8.16 --activation-bias 12",
    "8.16, gradients' bias 22": "--precision 8.16 --gradient-bias 22",
    "8.16, no loss scaling": "--precision 8.16 --loss-scaling 1",
    "8.16, automatic scaling": "--precision 8.16 --automatic-loss-scaling largest",
    "8.16 in all layers": "--precision 8.16 --format-for first=e4m3fnuz last=e4m3fnuz",
}
REFERENCE = "16.16"


@dataclass(frozen=True)
class Result:
    """A network at the end of its training."""

    policy: str
    seed: int
    accuracy: float  # top-1 of the last checkpoint, %; of chance if the training did not end

    def line(self) -> str:
        """The result in a line."""
        return f"{self.policy}, seed {self.seed}: {self.accuracy:.2f} %"


@dataclass(frozen=True)
class Job:
    """The training of a policy and a seed."""

    policy: str
    seed: int
    folder: Path
    words: tuple[str, ...]

    def run(self, core: int) -> Iterator[Result]:
        """Train, or go on."""
        if not self._accuracies():
            if find.numbered(self.folder):
                call(core, "restore.py", "--restore-path", self.folder, "--keep-going")
            else:
                clear(self.folder)
                call(core, "train.py", *self.words, "--seed", self.seed, "--keep-going", "--logs-path", self.folder)
        yield Result(self.policy, self.seed, self._accuracies()[-1])

    def _accuracies(self) -> list[float]:
        """The top-1 accuracies of a run that has ended, of its checkpoints in their order."""
        rows = rows_of(self.folder / "validation.csv")
        ended = (self.folder / "report.html").exists()
        return [float(row["val_acc"]) for row in rows if row["name"].startswith("ckpt-")] if ended else []


def grouped(results: Sequence[Result]) -> dict[str, list[float]]:
    """The accuracies of each policy, by seed."""
    ordered = sorted(results, key=lambda result: result.seed)
    names = [name for name in POLICIES if any(result.policy == name for result in results)]
    return {name: [result.accuracy for result in ordered if result.policy == name] for name in names}


def table(results: Sequence[Result]) -> str:
    """A row for each policy, with the difference from 16.16, seed by seed."""
    accuracies = grouped(results)
    reference = accuracies.get(REFERENCE)
    lines = [
        "| policy | options | top-1 | difference from 16.16 |",
        "| --- | --- | --- | --- |",
    ]
    for name, values in accuracies.items():
        differences = [a - b for a, b in zip(values, reference)] if reference and name != REFERENCE else []
        compared = summary(differences, " points") if differences else ""
        lines.append(f"| {name} | `{POLICIES[name]}` | {summary(values)} | {compared} |")
    return "\n".join(lines)


def picture(results: Sequence[Result], network: str) -> str:
    """A row for each policy; those far below the others are off the scale."""
    accuracies = grouped(results)
    best = max(mean(values) for values in accuracies.values())
    rows = [
        Dots(f"{name}: {headline(values)}", COLOURS[k % len(COLOURS)], values, scaled=mean(values) > best - 5)
        for k, (name, values) in enumerate(accuracies.items())
    ]
    seeds = max(len(values) for values in accuracies.values())
    return trainings.picture(f"Accuracy of the {network} in number formats, top-1, %", rows, seeds)


def _chosen(names: Sequence[str]) -> list[str]:
    """Return the policies asked for; OptionError for one that does not exist."""
    for name in names:
        if name not in POLICIES:
            near = plugins.did_you_mean(name, list(POLICIES))
            raise OptionError(f"--only {name}: there is no such policy{near}", f"There are: {', '.join(POLICIES)}")
    return [name for name in POLICIES if not names or name in names]


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=tuple(NETWORKS), default="quickstart", help="what is trained [quickstart]")
    parser.add_argument("--only", nargs="+", default=(), metavar="POLICY", help=f"some of: {', '.join(POLICIES)}")
    parser.add_argument(
        "--seeds", type=command_line.int_between(1), default=3, metavar="N", help="seeds 1 to N of every policy [3]"
    )
    parser.add_argument("--output", metavar="DIR", help="where runs, table and picture go [logs/formats-NETWORK]")
    training_words = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    parsed = parser.parse_args(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    folder = Path(parsed.output or f"logs/formats-{parsed.network}").resolve()
    trainings.end_by_signals("formats.py")
    jobs = [
        Job(name, seed, folder / f"{name.replace(' ', '-').replace(',', '')}-{seed}",
            (*NETWORKS[parsed.network], *POLICIES[name].split(), *training_words))
        for seed in range(1, parsed.seeds + 1)
        for name in _chosen(parsed.only)
    ]  # fmt: skip
    same_words(folder, [parsed.network, *training_words])
    results = run_all(jobs, sorted(os.sched_getaffinity(0)))
    text = table(results)
    (folder / "formats.md").write_text(text + "\n", encoding="utf-8")
    (folder / "formats.svg").write_text(picture(results, parsed.network), encoding="utf-8")
    print(f"\n{text}\n\nThe picture is {folder / 'formats.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run("formats.py", main, None, (OptionError,), (Failed, FolderError)))
