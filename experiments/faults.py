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
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from cnn_harness.base.process import command_line
from cnn_harness.base.storage import fingerprints
from cnn_harness.base.storage.fingerprints import GRADIENT, WEIGHT
from experiments import study
from experiments.study import COLOURS, Dots, Result

UPDATE, UPDATES = 78, 156
NONE = "none"
KINDS = (WEIGHT, GRADIENT, "activation")
LAYERS = ("b1/0/1", "fc1")
BITS = (31, 30, 29, 25, 22)  # the sign, three bits of the exponent, and the highest bit of the mantissa
FAULTS = (
    NONE,
    *(f"{kind}:{layer}:{UPDATE}:{bit}" for kind, layer, bit in itertools.product(KINDS, LAYERS, BITS)),
)
WORDS = (
    "--config", "quickstart", "--micro-batch-size", "16", "--gradient-accumulation-count", "4", "--fold", "1",
    "--iterations", UPDATES, "--batches-per-step", "1", "--log-freq", "1", "--fingerprints", "--keep-going", "--brief",
)  # fmt: skip
CHECKS = {"loss": 1.5, "norm of gradients": 2.0, "norm of weights": 1.1}  # the jump that is an alarm
_BEFORE = 20  # The number of updates before an update, with whose largest value it is compared.


def train(fault: str, seed: int, folder: Path, words: Sequence[str], core: int) -> Iterator[Result]:
    """Train with a fault, or resume the training, and yield the top-1 accuracy of the last checkpoint."""
    inject = [] if fault == NONE else ["--inject", fault]
    yield Result(fault, seed, study.accuracy(core, folder, [*WORDS, *inject, *words, "--seed", seed]))


def checked(folder: Path) -> dict[str, dict[int, float]]:
    """Return, for each check, its value in each update of a run. A norm is that of all tensors together."""
    values = {check: {} for check in CHECKS}
    for row in study.rows_of(folder / "training.csv"):
        values["loss"][int(row["iteration"])] = float(row["loss_batch"])
    for update, norms in fingerprints.updates(folder, "norm"):
        for kind in (GRADIENT, WEIGHT):
            of_kind = (float(norm) for place, norm in norms.items() if place.kind == kind)
            values[f"norm of {kind}s"][update] = math.hypot(*of_kind)
    return values


def alarms(values: Mapping[int, float], factor: float) -> list[int]:
    """Return the updates in which a check would raise an alarm: the value is not finite, or above the largest value of the
    updates before it, times a factor."""

    def largest(update: int) -> float:
        before = (values[k] for k in range(update - _BEFORE, update))
        return max(filter(math.isfinite, before), default=0.0)

    return [k for k, value in values.items() if k > _BEFORE and not value <= factor * largest(k)]


def located(fault: str, sound: Path, faulty: Path) -> bool:
    """Return whether the fingerprints of two runs first differ at the fault. An activation's fault is in all gradients."""
    kind, layer, update, _ = fault.split(":")
    _, found = fingerprints.compare_runs(sound, faulty)
    if found is None or (found.update, found.processes) != (int(update), (0,)):
        return False
    if kind not in (WEIGHT, GRADIENT):
        return found.kind == GRADIENT
    (tensor, *others) = found.tensors
    return found.kind == kind and not others and f"/{layer}/" in tensor and tensor.endswith("/kernel")


def table(folder: Path, results: Sequence[Result]) -> str:
    """Return a Markdown table with a row for each fault: the difference of the accuracy, and the number of seeds in which
    each check finds the fault. Fingerprints must name update and tensor. Other checks need an alarm at the fault, or up to
    two updates later, because a weight's fault shows in the update after it."""
    accuracies = study.by_seed(results)
    columns = ("fault", "difference of top-1", "fingerprints", *CHECKS)
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for fault in FAULTS:
        folders = [run_folder(folder, fault, seed) for seed in range(1, len(accuracies[fault]) + 1)]
        values = [checked(each) for each in folders]
        differences = [a - b for a, b in zip(accuracies[fault], accuracies[NONE])]
        cells = [study.summary(differences, " points") if fault != NONE else study.summary(accuracies[NONE])]
        right = [fault != NONE and located(fault, run_folder(folder, NONE, k), each) for k, each in enumerate(folders, 1)]
        cells.append(f"{sum(right)} of {len(right)}" if fault != NONE else "")
        for check, factor in CHECKS.items():
            found = [alarms(each[check], factor) for each in values]
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
