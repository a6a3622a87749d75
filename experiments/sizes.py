"""Train small versions of EfficientNet-B0, B2 and B4 with depthwise convolutions (G1) and groups of 16 (G16). Draw their
accuracies next to those of the paper "Making EfficientNet More Efficient".

python -m experiments.sizes                        three seeds
python -m experiments.sizes --seeds 5 --output logs/five

Each network is the small configuration of B0 in configs.yml (..._mini) with the width and depth factors of its size. Images
have 16, 20 or 28 pixels, which is the ratio of 224, 260 and 380. Each trains for three epochs in FP32, on its own core. To
resume a study that was stopped, repeat the call. Options after -- apply to every training.
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("sizes")

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from cnn_harness.base.process import command_line
from cnn_harness.harness.reports import chart
from cnn_harness.harness.reports.chart import BLUE, ORANGE, Curves, Line
from experiments import findings, paper, study
from experiments.study import Result

SIZES = {"B4": (1.4, 1.8, 28), "B2": (1.1, 1.2, 20), "B0": (1, 1, 16)}  # factors of width and depth, pixels
KINDS = {"G1": ORANGE, "G16": BLUE}


def words(size: str, kind: str) -> list[object]:
    """Return the options of train.py."""
    width, depth, pixels = SIZES[size]
    return [
        "--config", f"B0-{kind}-GN-Native_mini", *findings.SHORTER, "--width-coefficient", f"{0.5 * width:g}",
        "--depth-coefficient", f"{0.5 * depth:g}", "--image-size", pixels,
    ]  # fmt: skip


def train(size: str, kind: str, seed: int, folder: Path, more: Sequence[str], core: int) -> Iterator[Result]:
    """Train, or resume the training, and yield the top-1 accuracy of the averaged weights, and the rate."""
    place = folder / f"{size}-{kind}-{seed}"
    findings.train_averaged(core, place, [*words(size, kind), "--seed", seed, *more])
    yield Result(f"{size} {kind}", seed, findings.averaged_accuracy(place), rate=study.rate(place))


def table(results: Sequence[Result]) -> str:
    """Return a Markdown table with a row for each network. The difference of G16 is from G1 with the same seed."""
    accuracies, rates = study.by_seed(results), study.by_seed(results, "rate")
    lines = ["| network | images/s on one core | top-1 of the averaged weights | difference from G1 |"]
    lines.append("| --- | --- | --- | --- |")
    for size, kind in itertools.product(reversed(SIZES), KINDS):
        values, depthwise = (accuracies[f"{size} {each}"] for each in (kind, "G1"))
        compared = study.average([a - b for a, b in zip(values, depthwise)], " points") if kind != "G1" else ""
        rate = f"{mean(rates[f'{size} {kind}']):,.0f}"
        lines.append(f"| {size} {kind} | {rate} | {study.summary(values)} | {compared} |")
    return "\n".join(lines)


def draw(results: Sequence[Result]) -> str:
    """Return the chart: the paper's accuracies, and those of the small networks."""
    accuracies, rates = study.by_seed(results), study.by_seed(results, "rate")
    places = {name: math.log2(mean(values)) for name, values in rates.items()}
    low, high = chart.span([*places.values()])
    lines = []
    for kind, colour in KINDS.items():
        names = [f"{size} {kind}" for size in reversed(SIZES)]
        points = [(places[name], mean(accuracies[name])) for name in names]
        lines.append(Line(f"{kind}: {', '.join(reversed(SIZES))}", points, colour, dots=1.4, last=False))
    title = "Top-1 accuracy (%) of small versions on Fashion-MNIST by rate on one core, mean of the seeds"
    own = Curves(title, lines, (math.floor(low), math.ceil(high)), None, "images/s", lambda k: f"{2**k:g}")
    return chart.figure([paper.panel(paper.predictions()), own])


def main(argv: list[str]) -> int:
    """Train all sizes and compare them; return the exit code."""
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given, more = study.parse(parser, argv, "network")
    folder = Path(given.output or "logs/sizes").resolve()
    each = [*itertools.product(SIZES, KINDS, range(1, given.seeds + 1))]  # the longest first, so that no core waits long
    study.plan(given, ([*words(size, kind), *more] for size, kind, _ in each))
    jobs = [partial(train, size, kind, seed, folder, more) for size, kind, seed in each]
    return study.run("sizes", folder, more, jobs, table, draw)


if __name__ == "__main__":
    sys.exit(study.script("sizes", main))
