"""Repeat the experiments of the paper "Making EfficientNet More Efficient" and of the article "Scaling EfficientNet to large
IPU-Pod systems" with small networks.

The paper makes three changes: group convolutions instead of depthwise ones, layer norm and proxy norm instead of group norm,
and training with half as many pixels before fine-tuning with all of them. The article compares RMSProp and LARS at
a large global batch.

python -m experiments.findings                     the paper, three seeds: 37 minutes on two slow cores
python -m experiments.findings batch               the article, batches of 32 and 256: ten minutes on two slow cores
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
from statistics import mean, median

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
PASS = 32  # images in a micro-batch
BATCHES = {32: "-6", 256: "-7.5"}  # LARS: the learning rate is 2^exponent * batch, so it grows with the root of the batch
RMSPROP = (
    "--optimiser", "RMSprop", "--lr-schedule", "exponential", "--base-learning-rate-exponent", "-13",
    "--rmsprop-base-decay-exp", "-11", "--weight-decay", "1e-5",
)  # fmt: skip
OPTIMISERS = ("RMSProp", "LARS")
SMALL = (
    "--config", "efficientnet_b4_g16_mini", *SHORTER, "--depth-coefficient", "0.3", "--image-size", "16",
    "--ckpts-per-epoch", "1", "--replicas", "1", "--micro-batch-size", str(PASS),
)  # fmt: skip
RECIPES = {"G1, GN": "B0-G1-GN-Native_mini", "G16, GN": NATIVE, "G16, LN+PN": "B0-G16-LN_PN-Native_mini"}


def train(label: str, config: str, seed: int, folder: Path, more: Sequence[str], core: int) -> Iterator[Result]:
    """Train a network, or resume its training, and yield its result. A network trained at half resolution has two results:
    before and after fine-tuning."""
    base = folder / f"{config}-{seed}"
    words = [*SHORTER, "--seed", seed, *more]
    _train(core, base, ["--config", config, *words])
    minutes = _minutes(base)
    if config != HALF:
        yield Result(label, seed, _accuracy(base), minutes)
        return
    averaged = base / "ckpt" / AVERAGE
    before, after = (base.with_name(f"{base.name}-{name}") for name in ("as-it-is", "fine-tuned"))
    if not _finished(before):
        study.clear(before)
        study.call(core, "validation.py", "--config", NATIVE, *SHORTER, "--restore-path", averaged, "--logs-path", before)
    yield Result(HALVED, seed, _accuracy(before), minutes)
    _train(core, after, ["--config", NATIVE, *SHORTER, *TUNING, "--init-path", averaged, "--seed", seed, *more])
    yield Result(TUNED, seed, _accuracy(after), minutes + _minutes(after))


def _train(core: int, folder: Path, words: Sequence[object]) -> None:
    if not _finished(folder):
        study.train(core, folder, words)


def _finished(folder: Path) -> bool:
    return any(row["name"] == AVERAGE for row in study.rows_of(folder / "validation.csv"))


def _accuracy(folder: Path) -> float:
    for row in study.rows_of(folder / "validation.csv"):
        if row["name"] == AVERAGE:
            return float(row["val_acc"])
    raise Failed(f"{folder} has no validation of {AVERAGE}. Do not switch off averaging or validation for this study")


def _minutes(folder: Path) -> float:
    """Return the training time in minutes, from the median speed."""
    rows = study.rows_of(folder / "training.csv")
    speed = median(float(row["img_per_sec"]) for row in rows)
    return float(rows[-1]["epoch"]) * _traced(NATIVE)[2] / speed / 60


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


def train_batch(optimiser: str, batch: int, seed: int, folder: Path, more: Sequence[str], core: int) -> Iterator[Result]:
    """Train with this global batch, or resume the training, and yield the result."""
    place = folder / f"{optimiser}-{batch}-{seed}"
    _train(core, place, [*_batch_words(optimiser, batch), "--seed", seed, *more])
    yield Result(_batch(optimiser, batch), seed, _accuracy(place))


def _batch_words(optimiser: str, batch: int) -> tuple[object, ...]:
    rule = RMSPROP if optimiser == "RMSProp" else ("--base-learning-rate-exponent", BATCHES[batch])
    return (*SMALL, *rule, "--gradient-accumulation-count", batch // PASS)


def _batch(optimiser: str, batch: int) -> str:
    return f"{optimiser}, global batch {batch}"


def batch_table(results: Sequence[Result]) -> str:
    """Return a table with a row for each optimiser and batch, and the difference from the same optimiser at the smallest
    batch."""
    accuracies = study.by_seed(results)
    lines = ["| optimiser, batch | top-1 of the averaged weights | difference from batch 32 |", "| --- | --- | --- |"]
    for optimiser in OPTIMISERS:
        first = accuracies[_batch(optimiser, PASS)]
        for batch in BATCHES:
            values = accuracies[_batch(optimiser, batch)]
            compared = study.summary([a - b for a, b in zip(values, first)], " points") if batch > PASS else ""
            lines.append(f"| {optimiser}, {batch} | {study.summary(values)} | {compared} |")
    return "\n".join(lines)


def batch_svg(results: Sequence[Result]) -> str:
    """Draw the accuracies, with a row for each optimiser and batch."""
    accuracies, colours = study.by_seed(results), dict(zip(OPTIMISERS, COLOURS[1:]))
    rows = [
        Dots(f"{name}: {study.average(values)}", colours[optimiser], values)
        for optimiser in OPTIMISERS
        for name, values in ((_batch(optimiser, batch), accuracies[_batch(optimiser, batch)]) for batch in BATCHES)
    ]
    return study.dot_chart("Top-1 accuracy by optimiser and global batch (%)", rows)


def main(argv: list[str]) -> int:
    """Train all networks and compare their accuracies."""
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what",
        nargs="?",
        choices=("networks", "batch"),
        default="networks",
        help="networks: the paper; batch: the article (default: networks)",
    )
    given, words = study.parse(parser, argv, "network")
    seeds = range(1, given.seeds + 1)
    if given.what == "batch":
        folder = Path(given.output or "logs/batch").resolve()
        each = [(batch, seed, optimiser) for seed in seeds for batch in BATCHES for optimiser in OPTIMISERS]
        study.plan(given, ((*_batch_words(optimiser, batch), *words) for batch, _, optimiser in each))
        jobs = [partial(train_batch, optimiser, batch, seed, folder, words) for batch, seed, optimiser in each]
        return study.run("batch", folder, words, jobs, batch_table, batch_svg)
    folder = Path(given.output or "logs/findings").resolve()
    recipes = {**RECIPES, TUNED: HALF}  # start the longest first, so that no core waits long for the last one
    tuned = [("--config", NATIVE, *SHORTER, *TUNING, *words)] * given.seeds
    study.plan(given, [("--config", config, *SHORTER, *words) for config in recipes.values() for _ in seeds] + tuned)
    jobs = [partial(train, label, config, seed, folder, words) for label, config in recipes.items() for seed in seeds]
    return study.run("findings", folder, words, jobs, table, svg)


if __name__ == "__main__":
    sys.exit(study.script("findings", main))
