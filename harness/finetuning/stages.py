"""The trainings of a fine-tuning, one after the other: which options each has, and the best weights of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from base.errors import OptionError
from base.fields import LENGTH
from base.process.command_line import as_value
from base.storage.tables import run_table
from harness.checkpoints import find, read
from harness.checkpoints.checkpoint import Checkpoint
from harness.options import catalogue, sources
from harness.options.sections import with_trait
from harness.reports import validations

# options of the call that are the network's training alone: its length, its rates, and what moves
_LAST_ONLY = frozenset((
    "variable_filter", "abs_learning_rate", "base_learning_rate_exponent", "lr_schedule", "stop_after", "patience", "epochs",
    "iterations", "label_smoothing", "weight_avg_N", "weight_avg_exp",
))  # fmt: skip
_OWN: Mapping[str, str] = {  # options that have a meaning of their own here, and the way to do the same
    "config": "the stages have configurations of their own; give single options, which win",
    "config_path": "the stages have configurations of their own; give single options, which win",
    "release": "the stages have configurations of their own; give single options, which win",
    "restore_path": "the same call resumes a fine-tuning that was stopped",
    "autoresume": "the same call resumes anyway",
    "distributed": "it trains in one process; train.py trains in several",
    "logs": "the stages hand their weights on in their folders",
    "validation": "the best weights are those of its validation; it validates anyway",
    **dict.fromkeys(("dataset", "data_dir", "generated_data", "synthetic_data"), "the pictures are those of the folder"),
}


@dataclass(frozen=True)
class TrainingStage:
    """A training: its folder's name, its configuration, and its title for people."""

    name: str
    config: str
    title: str


CLASSIFIER = TrainingStage("classifier", "finetune_classifier", "The classifier alone, on frozen features")
NETWORK = TrainingStage("network", "finetune_network", "The whole network, with a smaller learning rate")


@dataclass(frozen=True)
class Best:
    """The validated weights of a stage with the best accuracy, in per cent of `pictures`."""

    checkpoint: Checkpoint
    accuracy: float
    pictures: int


def words(stage: TrainingStage, given: Sequence[str], folder: Path, place: Path, begin_with: Checkpoint | None) -> list[str]:
    """Return the words of train.py for a stage in the folder `place`. `given`: options of the call, which win;
    `begin_with`: weights of the stage before, which go before an --init-path of the call: that is where the first stage
    begins. OptionError for options that a fine-tuning decides itself."""
    own = ["--config", stage.config, "--data-dir", as_value(folder), "--logs-path", as_value(place), "--autoresume"]
    begun = ["--init-path", as_value(Path(begin_with.prefix))] if begin_with else []
    return own + begun + _of_stage(stage, given, {"init_path"} if begun else set())


def _of_stage(stage: TrainingStage, given: Sequence[str], decided: Collection[str]) -> list[str]:
    """The words of the call that count for a stage, in which the options `decided` have other values."""
    everything = catalogue.all_options("train").flags()
    words, last_only = [], _LAST_ONLY | set(with_trait(LENGTH)) | _of_schedules()
    for flag, values in sources.tokens(list(given), everything):
        name = everything[flag].option.name
        if name in _OWN:
            raise OptionError(f"command line: {flag} is not for cnn finetune: {_OWN[name]}")
        if name not in decided and (stage is NETWORK or name not in last_only):
            words += [flag, *values]
    return words


def _of_schedules() -> set[str]:
    """The options of every learning-rate schedule."""
    return {option.name for option in catalogue.every_option("train") if option.section == "schedule"}


def best(place: Path) -> Best | None:
    """Return the best of a stage's validated checkpoints and averages that are whole, by accuracy and then by loss; a line
    is printed on each better one that is damaged. None if the stage has not been trained."""
    if not find.numbered(place):
        return None
    there = {checkpoint.name: checkpoint for checkpoint in find.select(place)}
    rows = [row for row in run_table(place, "validation.csv").read() if row["name"] in there]
    for row in validations.ranked(rows):
        whole, damaged = read.usable_checkpoints([there[row["name"]]])
        print(*damaged, sep="\n", end="\n" * bool(damaged))
        if whole:
            return Best(whole[0], float(row["val_acc"]), int(row["val_size"]))
    return None
