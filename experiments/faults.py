"""Flip one bit in the middle of a training, and compare the accuracies at the end and the checks that notice the flip.

python -m experiments.faults                      configuration quickstart, one epoch, three seeds
python -m experiments.faults --seeds 1 --output logs/one

Each run has its own core. To resume a study that was stopped, repeat the call. Options after -- apply to every training.
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("faults")

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from cnn_harness.base.process import command_line
from experiments import study
from experiments.study import COLOURS, Dots, Result

UPDATE, UPDATES = 78, 156
NONE = "none"
LAYERS = ("b1/0/1", "fc1")
BITS = (31, 30, 29, 25, 22)  # the sign, three bits of the exponent, and the highest bit of the mantissa
FAULTS = (
    NONE,
    *(f"{kind}:{layer}:{UPDATE}:{bit}" for kind, layer, bit in itertools.product(("weight", "gradient"), LAYERS, BITS)),
)
WORDS = (
    "--config", "quickstart", "--micro-batch-size", "16", "--gradient-accumulation-count", "4", "--fold", "1",
    "--iterations", UPDATES, "--batches-per-step", "1", "--log-freq", "1", "--gradient-noise", "--keep-going", "--brief",
)  # fmt: skip
CHECKS = {"loss": ("loss_batch", 1.5), "gradient noise": ("noise_scale", 2.0)}  # a column, and the jump that is an alarm
_BEFORE = 20  # The number of updates before an update, with whose largest value it is compared.


def train(fault: str, seed: int, folder: Path, words: Sequence[str], core: int) -> Iterator[Result]:
    """Train with a fault, or resume the training, and yield the top-1 accuracy of the last checkpoint."""
    inject = [] if fault == NONE else ["--inject", fault]
    yield Result(fault, seed, study.accuracy(core, folder, [*WORDS, *inject, *words, "--seed", seed]))


def alarms(folder: Path, check: str) -> list[int]:
    """Return the updates in which a check of a run would raise an alarm: the value is not finite, or above the largest value
    of the updates before it, times a factor."""
    column, factor = CHECKS[check]
    values = {int(row["iteration"]): float(row[column]) for row in study.rows_of(folder / "training.csv")}

    def largest(update: int) -> float:
        before = (values[k] for k in range(update - _BEFORE, update))
        return max(filter(math.isfinite, before), default=0.0)

    return [k for k, value in values.items() if k > _BEFORE and not value <= factor * largest(k)]


def table(folder: Path, results: Sequence[Result]) -> str:
    """Return a Markdown table with a row for each fault: the difference of the accuracy, and the seeds of each check whose
    first alarm is at the fault or up to two updates later. A weight's fault shows in the update after it."""
    accuracies = study.by_seed(results)
    lines = [f"| fault | difference of top-1 | {' | '.join(CHECKS)} |", f"| --- {'| --- ' * (1 + len(CHECKS))}|"]
    for fault in FAULTS:
        differences = [a - b for a, b in zip(accuracies[fault], accuracies[NONE])]
        cells = [study.summary(differences, " points") if fault != NONE else study.summary(accuracies[NONE])]
        for check in CHECKS:
            found = [alarms(run_folder(folder, fault, seed), check) for seed in range(1, len(differences) + 1)]
            seen = sum(any(UPDATE <= k <= UPDATE + 2 for k in each) for each in found)
            cells.append(f"{seen} of {len(found)}" if fault != NONE else f"{sum(map(len, found))} false alarms")
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    return "\n".join(lines)


def run_folder(folder: Path, fault: str, seed: int) -> Path:
    """Return the run directory of a training."""
    return folder / f"{fault.replace('/', '-').replace(':', '_')}-{seed}"


def chart(results: Sequence[Result]) -> str:
    """Return a chart with a row for each fault."""
    accuracies = study.by_seed(results)
    best = max(map(mean, accuracies.values()))
    rows = [
        Dots(f"{fault}: {study.average(accuracies[fault])}", COLOURS[k % len(COLOURS)], accuracies[fault],
             scaled=mean(accuracies[fault]) > best - 5)
        for k, fault in enumerate(FAULTS)
    ]  # fmt: skip
    return study.dot_chart("Top-1 accuracy of the quickstart after one epoch, by fault (%)", rows)


def main(argv: list[str]) -> int:
    """Train with every fault and compare the results; return the exit code."""
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given, words = study.parse(parser, argv, "fault")
    study.plan(given, [[*WORDS, *words]] * (len(FAULTS) * given.seeds))
    folder = Path(given.output or "logs/faults").resolve()
    jobs = [
        partial(train, fault, seed, run_folder(folder, fault, seed), words)
        for seed in range(1, given.seeds + 1)
        for fault in FAULTS
    ]
    return study.run("faults", folder, words, jobs, partial(table, folder), chart)


if __name__ == "__main__":
    sys.exit(study.script("faults", main))
