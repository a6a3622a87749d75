"""Train one network in several number formats, with the same seeds, and compare the accuracies in a table and a chart.

python -m experiments.formats                            configuration quickstart, three seeds
python -m experiments.formats --network efficientnet     small EfficientNet-B0
python -m experiments.formats --only FP32 16.16 8.16 --seeds 5 --output logs/five

Each run has its own core. To resume a study that was stopped, repeat the call. Options after -- apply to every training.
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("formats")

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import command_line
from experiments import study
from experiments.study import COLOURS, Dots, Result

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
    "MXFP8": "--precision 16.16 --format-for first=fp16 last=fp16 all=mxfp8_e4m3",
    "MXFP4": "--precision 16.16 --format-for first=fp16 last=fp16 all=mxfp4",
    "NVFP4": "--precision 16.16 --format-for first=fp16 last=fp16 all=nvfp4 --hadamard",
}
REFERENCE = "16.16"


def train(policy: str, seed: int, folder: Path, words: Sequence[str], core: int) -> Iterator[Result]:
    """Train in a number format, or resume the training, and yield the top-1 accuracy of the last checkpoint. Training
    continues after divergence (--keep-going), so that a diverged run has an accuracy, too."""
    yield Result(policy, seed, study.accuracy(core, folder, [*words, "--seed", seed], ["--keep-going"]))


def _by_policy(results: Sequence[Result]) -> dict[str, list[float]]:
    accuracies = study.by_seed(results)
    return {name: accuracies[name] for name in POLICIES if name in accuracies}


def table(results: Sequence[Result]) -> str:
    """Return a Markdown table with a row for each number format, and the difference from 16.16 for each seed."""
    accuracies = _by_policy(results)
    reference = accuracies.get(REFERENCE)
    lines = ["| policy | options | top-1 | difference from 16.16 |", "| --- | --- | --- | --- |"]
    for name, values in accuracies.items():
        differences = [a - b for a, b in zip(values, reference)] if reference and name != REFERENCE else []
        compared = study.summary(differences, " points") if differences else ""
        lines.append(f"| {name} | `{POLICIES[name]}` | {study.summary(values)} | {compared} |")
    return "\n".join(lines)


def chart(network: str, results: Sequence[Result]) -> str:
    """Return a chart with a row for each number format. The axis does not cover accuracies far below the best."""
    accuracies = _by_policy(results)
    best = max(mean(values) for values in accuracies.values())
    rows = [
        Dots(f"{name}: {study.average(values)}", COLOURS[k % len(COLOURS)], values, scaled=mean(values) > best - 5)
        for k, (name, values) in enumerate(accuracies.items())
    ]
    return study.dot_chart(f"Top-1 accuracy of {network} by number format (%)", rows)


def _chosen(names: Sequence[str]) -> list[str]:
    """Return the number formats to train; raise OptionError for an unknown name."""
    for name in names:
        if name not in POLICIES:
            near = plugins.did_you_mean(name, list(POLICIES))
            raise OptionError(f"--only {name}: unknown number format{near}", f"Number formats: {'; '.join(POLICIES)}")
    return [name for name in POLICIES if not names or name in names]


def main(argv: list[str]) -> int:
    """Train a network in every number format and compare the accuracies; return the exit code."""
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--network", choices=tuple(NETWORKS), default="quickstart", help="network to train (default: quickstart)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="FORMAT",
        help=f"train only these number formats; available: {'; '.join(POLICIES)}",
    )
    given, words = study.parse(parser, argv, "format")
    folder = Path(given.output or f"logs/formats-{given.network}").resolve()
    each = [(name, seed, (*NETWORKS[given.network], *POLICIES[name].split(), *words))
            for seed in range(1, given.seeds + 1) for name in _chosen(given.only)]  # fmt: skip
    study.plan(given, (options for _, _, options in each))
    jobs = [
        partial(train, name, seed, folder / f"{name.replace(' ', '-').replace(',', '')}-{seed}", options)
        for name, seed, options in each
    ]
    return study.run("formats", folder, [given.network, *words], jobs, table, partial(chart, given.network))


if __name__ == "__main__":
    sys.exit(study.script("formats", main))
