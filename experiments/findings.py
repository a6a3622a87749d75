"""Repeat the experiments of the paper "Making EfficientNet More Efficient" with small networks.

The paper makes three changes: group convolutions instead of depthwise ones, layer norm and proxy norm instead of group norm,
and training with half as many pixels before fine-tuning with all of them.

python -m experiments.findings                     three seeds: 37 minutes on two slow cores
python -m experiments.findings --seeds 5 --output logs/five

The networks are the small configurations of configs.yml (..._mini) with fewer blocks, trained for three epochs in FP32. Each
run has its own core. The runs use neither pipelining nor recomputation, because both change no result. To resume a study
that was stopped, repeat the call. Options after -- apply to every training.
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("findings")

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from cnn_harness.base.process import command_line
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare
from experiments import study
from experiments.study import COLOURS, Dots, Failed, Result

ONE_DEVICE = ("--shards", "1", "--no-pipeline-splits", "--no-enable-recomputation")
SHORTER = ("--depth-coefficient", "0.5", "--epochs", "3", "--precision", "32.32", *ONE_DEVICE)
AVERAGE = "weight_avg_exp_0.5"
NATIVE, HALF = "B0-G16-GN-Native_mini", "B0-G16-GN-Half_mini"
TUNING = (
    "--lr-schedule", "cosine", "--epochs", "2", "--train-with-valid-preprocessing", "--base-learning-rate", "-11",
    "--variable-filter", "Top",
)  # fmt: skip
HALVED, TUNED = "half, not fine-tuned", "half, fine-tuned"
RECIPES = {"G1, GN": "B0-G1-GN-Native_mini", "G16, GN": NATIVE, "G16, LN+PN": "B0-G16-LN_PN-Native_mini"}


def train(label: str, config: str, seed: int, folder: Path, more: Sequence[str], core: int) -> Iterator[Result]:
    """Train a network, or resume its training, and yield its result. A network trained at half resolution has two results:
    before and after fine-tuning."""
    base = folder / f"{config}-{seed}"
    words = [*SHORTER, "--seed", seed, *more]
    train_averaged(core, base, ["--config", config, *words])
    minutes = _minutes(base)
    if config != HALF:
        yield Result(label, seed, averaged_accuracy(base), minutes)
        return
    averaged = base / "ckpt" / AVERAGE
    before, after = (base.with_name(f"{base.name}-{name}") for name in ("as-it-is", "fine-tuned"))
    if not _finished(before):
        study.clear(before)
        study.call(core, "validation.py", "--config", NATIVE, *SHORTER, "--restore-path", averaged, "--logs-path", before)
    yield Result(HALVED, seed, averaged_accuracy(before), minutes)
    train_averaged(core, after, ["--config", NATIVE, *SHORTER, *TUNING, "--init-path", averaged, "--seed", seed, *more])
    yield Result(TUNED, seed, averaged_accuracy(after), minutes + _minutes(after))


def train_averaged(core: int, folder: Path, words: Sequence[object]) -> None:
    """Train a network, or resume the training, unless its averaged weights are validated."""
    if not _finished(folder):
        study.train(core, folder, words)


def _finished(folder: Path) -> bool:
    return any(row["name"] == AVERAGE for row in study.rows_of(folder / "validation.csv"))


def averaged_accuracy(folder: Path) -> float:
    """Return the top-1 accuracy of the averaged weights of a training in %."""
    for row in study.rows_of(folder / "validation.csv"):
        if row["name"] == AVERAGE:
            return float(row["val_acc"])
    raise Failed(f"{folder} has no validation of {AVERAGE}. Do not switch off averaging or validation for this study")


def _minutes(folder: Path) -> float:
    """Return the training time in minutes, from the median rate."""
    epochs = float(study.rows_of(folder / "training.csv")[-1]["epoch"])
    return epochs * _traced(NATIVE)[2] / study.rate(folder) / 60


def _traced(config: str) -> tuple[float, int, int]:
    """Return the multiply-adds per image in millions, the number of parameters, and the number of training images."""
    run = prepare(cli.parse(["--config", config, *SHORTER], "train", environ={}).options, {}).run
    return run.network.multiply_adds / 1e6, run.network.trainable_parameters, run.data_source.spec.train_images


def _by_network(results: Sequence[Result], value: str) -> dict[str, list[float]]:
    values = study.by_seed(results, value)
    return {label: values[label] for label in (*RECIPES, HALVED, TUNED)}


def table(results: Sequence[Result]) -> str:
    """Return a table of the networks and a table of the comparisons. Both list the value of every seed."""
    accuracies, minutes = _by_network(results, "accuracy"), _by_network(results, "minutes")
    configs = {**RECIPES, HALVED: HALF, TUNED: HALF}
    lines = [
        "| network | parameters | multiply-adds per training image (million) | minutes on one core "
        "| top-1 of the averaged weights |",
        "| --- | --- | --- | --- | --- |",
    ]
    for label, values in accuracies.items():
        adds, parameters, _ = _traced(configs[label])
        lines.append(f"| {label} | {parameters:,} | {adds:.1f} | {mean(minutes[label]):.1f} | {study.summary(values)} |")
    lines += ["", "| comparison | difference in top-1 | training time |", "| --- | --- | --- |"]
    for what, first, second in (
        ("groups of 16 with expansion 4, instead of depthwise with 6", "G16, GN", "G1, GN"),
        ("layer norm with proxy norm, instead of group norm", "G16, LN+PN", "G16, GN"),
        ("half as many pixels, not fine-tuned", HALVED, "G16, GN"),
        ("half as many pixels, then fine-tuning", TUNED, "G16, GN"),
    ):
        differences = [a - b for a, b in zip(accuracies[first], accuracies[second])]
        time = mean(minutes[first]) / mean(minutes[second])
        lines.append(f"| {what} | {study.summary(differences, ' points')} | {time:.2f} times |")
    return "\n".join(lines)


def svg(results: Sequence[Result]) -> str:
    """Draw the accuracies, with a row for each network."""
    accuracies, minutes = _by_network(results, "accuracy"), _by_network(results, "minutes")
    rows = [
        Dots(f"{label}: {study.average(values)}, {mean(minutes[label]):.1f} minutes", colour, values, label != HALVED)
        for colour, (label, values) in zip(COLOURS, accuracies.items())
    ]
    return study.dot_chart("Top-1 accuracy of the averaged weights (%)", rows)


def main(argv: list[str]) -> int:
    """Train all networks and compare their accuracies."""
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given, words = study.parse(parser, argv, "network")
    seeds = range(1, given.seeds + 1)
    folder = Path(given.output or "logs/findings").resolve()
    recipes = {**RECIPES, TUNED: HALF}  # start the longest first, so that no core waits long for the last one
    tuned = [("--config", NATIVE, *SHORTER, *TUNING, *words)] * given.seeds
    study.plan(given, [("--config", config, *SHORTER, *words) for config in recipes.values() for _ in seeds] + tuned)
    jobs = [partial(train, label, config, seed, folder, words) for label, config in recipes.items() for seed in seeds]
    return study.run("findings", folder, words, jobs, table, svg)


if __name__ == "__main__":
    sys.exit(study.script("findings", main))
