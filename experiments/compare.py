"""Train one network in several variants, with the same seeds, and compare the accuracies in a table and a chart.

The studies are number formats, master weights, local batches at one global batch, and larger batches or fewer epochs.

python -m experiments.compare formats
python -m experiments.compare formats --only 16.16 MXFP4 --seeds 5 --output logs/five

Each run has its own core. To resume a study that was stopped, repeat the call. Options after -- apply to every training.
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("compare")

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import command_line
from experiments import study
from experiments.study import COLOURS, Dots, Result


@dataclass(frozen=True)
class Study:
    """Variants of a training: their options by name, and the options of all. A variant is compared with the reference above
    it."""

    title: str
    always: str
    variants: Mapping[str, str]
    references: Sequence[str]

    def reference(self, name: str) -> str | None:
        """Return the reference of a variant, or None for a reference."""
        above = [each for each in self.variants if each in self.references or each == name]
        return None if name in self.references else above[above.index(name) - 1]


FORMATS = {
    "16.16": "--precision 16.16",
    "16.16 to nearest": "--precision 16.16 --no-stochastic-rounding",
    "FP32": "--precision 32.32",
    "bf16.32": "--precision bf16.32",
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
LOCAL_BATCHES, GLOBAL_BATCH = (6, 3, 2, 1), 48
STUDIES = {
    "formats": Study("of the quickstart by number format", "--config quickstart", FORMATS, ("16.16",)),
    "master-weights": Study(
        "of a small EfficientNet-B0 by format of the master weights",
        "--config B0-G16-GN-Native_mini --depth-coefficient 0.3 --epochs 2 --shards 1 --no-pipeline-splits "
        "--no-enable-recomputation",
        {
            "FP32": "--precision 16.32",
            "FP16 at random": "--precision 16.16 --stochastic-rounding update",
            "FP16 to nearest": "--precision 16.16 --no-stochastic-rounding",
        },
        ("FP32",),
    ),
    "local-batch": Study(
        f"of a ResNet-8 by norm and local batch, at a global batch of {GLOBAL_BATCH}",
        "--config quickstart --model-size 8 --image-size 16",
        {
            f"{norm} norm, {batch}": f"--{norm}-norm --micro-batch-size {batch} "
            f"--gradient-accumulation-count {GLOBAL_BATCH // batch}"
            for norm in ("group", "batch")
            for batch in LOCAL_BATCHES
        },
        tuple(f"{norm} norm, {LOCAL_BATCHES[0]}" for norm in ("group", "batch")),
    ),
    # The rate, warm-up and decay that experiments.large_batch chooses for momentum at batches of 256 and 512.
    "useful-batch": Study(
        "of a ResNet-8 by global batch and epochs",
        "--config quickstart --model-size 8 --image-size 16 --abs-learning-rate 0.134 --warmup-epochs 0.25",
        {f"64, {epochs} epoch{'s' * (epochs > 1)}": f"--epochs {epochs}" for epochs in (8, 4, 3, 2, 1)}
        | {f"{64 * n}, 8 epochs": f"--gradient-accumulation-count {n} --fold 1 --gradient-noise" for n in (2, 4, 8)},
        ("64, 8 epochs",),
    ),
}


def train(name: str, seed: int, folder: Path, words: Sequence[str], core: int) -> Iterator[Result]:
    """Train a variant, or resume the training, and yield the top-1 accuracy of the last checkpoint. Training continues
    after divergence (--keep-going), so that a diverged run has an accuracy, too."""
    yield Result(name, seed, study.accuracy(core, folder, [*words, "--seed", seed], ["--keep-going"]))


def table(compared: Study, results: Sequence[Result]) -> str:
    """Return a Markdown table with a row for each variant, and the difference from its reference for each seed."""
    accuracies = study.by_seed(results)
    lines = ["| variant | options | top-1 | difference | from |", "| --- | --- | --- | --- | --- |"]
    for name, values in accuracies.items():
        reference = compared.reference(name)
        difference = " | "
        if reference in accuracies:
            differences = [a - b for a, b in zip(values, accuracies[reference])]
            difference = f"{study.summary(differences, ' points')} | {reference}"
        lines.append(f"| {name} | `{compared.variants[name]}` | {study.summary(values)} | {difference} |")
    return "\n".join(lines)


def chart(compared: Study, results: Sequence[Result]) -> str:
    """Return a chart with a row for each variant. The axis does not cover accuracies 15 points below the best."""
    accuracies = study.by_seed(results)
    best = max(mean(values) for values in accuracies.values())
    rows = [
        Dots(f"{name}: {study.average(values)}", COLOURS[k % len(COLOURS)], values, mean(values) > best - 15)
        for k, (name, values) in enumerate(accuracies.items())
    ]
    return study.dot_chart(f"Top-1 accuracy {compared.title} (%)", rows)


def chosen(variants: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the variants to train; raise OptionError for an unknown name."""
    for name in names:
        if name not in variants:
            near = plugins.did_you_mean(name, list(variants))
            raise OptionError(f"--only {name}: unknown variant{near}", f"Variants: {'; '.join(variants)}")
    return [name for name in variants if not names or name in names]


def main(argv: list[str]) -> int:
    """Train all variants of a study and compare the accuracies; return the exit code."""
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=tuple(STUDIES), help="what to compare")
    parser.add_argument("--only", nargs="+", default=(), metavar="VARIANT", help="train only these variants of the study")
    given, words = study.parse(parser, argv, "variant")
    compared = STUDIES[given.study]
    folder = Path(given.output or f"logs/{given.study}").resolve()
    each = [(name, seed, [*compared.always.split(), *compared.variants[name].split(), *words])
            for name in chosen([*compared.variants], given.only) for seed in range(1, given.seeds + 1)]  # fmt: skip
    study.plan(given, (options for _, _, options in each))
    jobs = [
        partial(train, name, seed, folder / f"{name.replace(' ', '-').replace(',', '')}-{seed}", options)
        for name, seed, options in each
    ]
    draw, tabulate = partial(chart, compared), partial(table, compared)
    return study.run(given.study, folder, [given.study, *words], jobs, tabulate, draw)


if __name__ == "__main__":
    sys.exit(study.script("compare", main))
