"""Compare optimisers at four global batches, each at the best learning rate, warm-up and decay of an equal random search.

An article on IPU-PODs says that RMSProp loses accuracy at large batches of EfficientNet, and that LARS with a polynomial
decay holds. Wongpanich et al. (arXiv 2011.00071) use LARS too. LARS is from arXiv 1708.03888, and LAMB from 1904.00962.

python -m experiments.large_batch                             eight draws with seed 1, then the best with seeds 2 to 11
python -m experiments.large_batch --draws 2 --seeds 2 --output logs/short

Chosen before any result was seen: a ResNet-8 on 10,000 images of clothing, 16 pixels wide, for 8 epochs; batches of 64 to
512 images; the spans of the rates; three warm-ups and three decays. All optimisers and batches get the same draws: the same
warm-up, decay and place of the rate in its span. Each run has its own core. To resume a study that was stopped, repeat the
call. Options after -- apply to every training.
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("large_batch")

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

from cnn_harness.base.process import command_line
from cnn_harness.harness.reports import chart
from cnn_harness.harness.reports.chart import Curves, Line
from experiments import study
from experiments.study import COLOURS, Result

MICRO_BATCH, BATCHES = 64, (64, 128, 256, 512)
SPANS = {"momentum": (3e-3, 3.0), "RMSprop": (1e-4, 0.1), "LARS": (0.03, 30.0), "LAMB": (3e-4, 0.3)}  # of peak rates
WARMUPS = (0.25, 1, 2)  # epochs
DECAYS: Mapping[str, Sequence[str]] = {
    "cosine": ("--lr-schedule", "cosine"),
    "linear": ("--lr-schedule", "polynomial_decay_lr", "--poly-lr-decay-power", "1"),
    "quadratic": ("--lr-schedule", "polynomial_decay_lr", "--poly-lr-decay-power", "2"),
}
WORDS = (
    "--config", "quickstart", "--model-size", "8", "--image-size", "16", "--micro-batch-size", str(MICRO_BATCH),
    "--keep-going", "--brief",
)  # fmt: skip
SEARCHED = 1  # the seed of the search; the best draws are trained again with other seeds


class Draw(NamedTuple):
    """Options of a training. `place` is that of the peak rate in its logarithmic span, from 0 to 1."""

    place: float
    warmup: float
    decay: str

    def rate(self, optimiser: str) -> float:
        """Return the peak learning rate."""
        least, most = SPANS[optimiser]
        return float(f"{least * (most / least) ** self.place:.3g}")

    def words(self, optimiser: str, batch: int) -> list[object]:
        """Return the options of train.py."""
        return [
            *WORDS, "--optimiser", optimiser, "--gradient-accumulation-count", batch // MICRO_BATCH,
            "--abs-learning-rate", self.rate(optimiser), "--warmup-epochs", self.warmup, *DECAYS[self.decay],
        ]  # fmt: skip

    def text(self, optimiser: str) -> str:
        """Return the draw for people."""
        return f"{self.rate(optimiser):g}, {self.decay}, {self.warmup:g}"


def draws(count: int) -> list[Draw]:
    """Return the first `count` random draws. A larger count keeps the draws of a smaller one."""
    random = np.random.default_rng(1)
    return [Draw(random.random(), *(options[random.integers(3)] for options in (WARMUPS, [*DECAYS]))) for _ in range(count)]


def label(optimiser: str, batch: int) -> str:
    """Return the label of a result."""
    return f"{optimiser}, {batch}"


def train(
    optimiser: str, batch: int, draw: Draw, seed: int, folder: Path, more: Sequence[str], core: int
) -> Iterator[Result]:
    """Train, or resume the training, and yield the top-1 accuracy of the last checkpoint."""
    place = folder / f"{optimiser}-{batch}-{draw.place:.4f}-{seed}"
    words = [*draw.words(optimiser, batch), *more, "--seed", seed]
    yield Result(label(optimiser, batch), seed, study.accuracy(core, place, words))


def table(chosen: Mapping[str, str], results: Sequence[Result]) -> str:
    """Return a table with a row for each optimiser and batch. The difference is from the same optimiser and seed at the
    smallest batch."""
    accuracies = study.by_seed(results)
    lines = ["| optimiser, batch | peak rate, decay, warm-up epochs | top-1 | difference from the smallest batch |"]
    lines.append("| --- | --- | --- | --- |")
    for optimiser, batch in itertools.product(SPANS, BATCHES):
        values, first = (accuracies[label(optimiser, each)] for each in (batch, BATCHES[0]))
        compared = study.average([a - b for a, b in zip(values, first)], " points") if batch > BATCHES[0] else ""
        lines.append(
            f"| {label(optimiser, batch)} | {chosen[label(optimiser, batch)]} | {study.average(values)} | {compared} |"
        )
    return "\n".join(lines)


def curves(results: Sequence[Result]) -> str:
    """Return a chart of the accuracies by batch: a curve of the means of each optimiser, and a small dot for each seed."""
    accuracies, lines = study.by_seed(results), []
    for k, (optimiser, colour) in enumerate(zip(SPANS, COLOURS)):
        values = {math.log2(batch): accuracies[label(optimiser, batch)] for batch in BATCHES}
        lines.append(Line(optimiser, [(x, mean(each)) for x, each in values.items()], colour, last=False))
        # The dots of one optimiser are not on those of another.
        dots = [(x + 0.08 * (k - 1.5), y) for x, each in values.items() for y in each]
        lines.append(Line("", dots, colour, width=0, dots=0.7))
    axis = (math.log2(BATCHES[0]) - 0.5, math.log2(BATCHES[-1]) + 0.5)
    panel = Curves("", lines, axis, x="global batch", tick=lambda k: f"{2**k:g}", height=300)
    return chart.figure([panel], "Top-1 accuracy (%) by global batch: mean, and each seed")


def main(argv: list[str]) -> int:
    """Search, then train the best draws with other seeds, and compare; return the exit code."""
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--draws", type=command_line.int_between(1), default=8, metavar="N", help="number of random draws (default: 8)"
    )
    given, words = study.parse(parser, argv, "best draw", seeds=10)
    folder = Path(given.output or "logs/large-batch").resolve()
    tried, cases = draws(given.draws), [*itertools.product(SPANS, BATCHES)]
    each = [draw.words(*case) + words for case in cases for draw in [*tried, *tried[:1] * given.seeds]]
    study.plan(given, each)
    study.check_unchanged(folder, words)
    searched = study.run_all([partial(train, *case, draw, SEARCHED, folder, words) for case in cases for draw in tried])
    best = {}
    for k, case in enumerate(cases):
        found = searched[k * len(tried) : (k + 1) * len(tried)]
        best[case] = tried[max(range(len(tried)), key=lambda i: found[i].accuracy)]
    chosen = {label(*case): draw.text(case[0]) for case, draw in best.items()}
    jobs = [
        partial(train, *case, draw, SEARCHED + seed, folder, words)
        for case, draw in best.items()
        for seed in range(1, given.seeds + 1)
    ]
    return study.run("large_batch", folder, words, jobs, partial(table, chosen), curves)


if __name__ == "__main__":
    sys.exit(study.script("large_batch", main))
