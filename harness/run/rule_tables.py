"""Rules between options, and between options and the run that follows from them: tables of rules, each a function of a
frozen context that raises OptionError, or gives notes for the log's head. No TensorFlow, and before any graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from emulator.plan.trace import Trace
from harness.options import idle
from harness.options.sections import RunOptions
from harness.run import data_checks, device_checks, update_checks
from harness.run.run import Run


@dataclass(frozen=True, kw_only=True)
class TracedOptions:
    """A traced network, and the options of its run."""

    options: RunOptions
    trace: Trace


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A run with its options as requested, before poprun and the precision replace some, and the environment."""

    run: Run
    requested: RunOptions
    environ: Mapping[str, str]


Context = TypeVar("Context", RunOptions, TracedOptions, Resolved)
Rule = Callable[[Context], Iterable[str] | None]

BEFORE_DATA: tuple[Rule[RunOptions], ...] = (data_checks.classes, data_checks.percentage)
BEFORE_PLAN: tuple[Rule[TracedOptions], ...] = (
    update_checks.trained_variables,
    device_checks.forced_precision,
    device_checks.layer_formats,
)
EVERY_RUN: tuple[Rule[Resolved], ...] = (
    device_checks.name_suffix,
    device_checks.replaced_replicas,
    device_checks.rounding_everywhere,
    data_checks.model_notes,
    data_checks.mixed_bytes,
    data_checks.photographs_only,
    data_checks.validation_split,
    data_checks.shuffled,
    data_checks.normalised_on_device,
    device_checks.forced_statistics,
    update_checks.rmsprop_decays,
    update_checks.skip_lists,
    device_checks.fp32_copy,
    device_checks.saturation,
    device_checks.native_arithmetic,
    device_checks.pipeline_on_one_device,
    device_checks.memory_proportions,
)
TRAINING: tuple[Rule[Resolved], ...] = (
    update_checks.more_than_an_epoch,
    data_checks.mixing,
    data_checks.cutmix_version,
    update_checks.averages,
    update_checks.validations,
    data_checks.pictures_to_learn_from,
    data_checks.pictures_to_validate_on,
    update_checks.decays_of_one,
    update_checks.label_smoothing,
    update_checks.peak_rate,
    update_checks.final_rate,
    update_checks.weight_decay,
    update_checks.half_mean_squares,
    update_checks.averages_worth_having,
    update_checks.endless_warmup,
    update_checks.loss_scale,
    update_checks.automatic_loss_scale,
    update_checks.epsilons,
    device_checks.batch_statistics,
    device_checks.neighbours,
    update_checks.options_of_other_rules,
    device_checks.options_of_stages,
    device_checks.options_of_several,
    device_checks.options_of_other_norms,
    update_checks.beyond_the_end,
    data_checks.unread_folder,
    data_checks.options_of_photographs,
    device_checks.options_of_half_precision,
    device_checks.biases_out_of_range,
)
VALIDATION: tuple[Rule[Resolved], ...] = (data_checks.predicted_alone, data_checks.nothing_to_validate_on)


def check(rules: Sequence[Rule[Context]], context: Context) -> tuple[str, ...]:
    """The notes of a table's rules, in its order; OptionError of the first rule that refuses the options."""
    return tuple(note for rule in rules for note in rule(context) or ())


def check_run(resolved: Resolved) -> tuple[str, ...]:
    """The notes on a run that is to train, or to validate."""
    rules = TRAINING if resolved.run.trains else VALIDATION
    return (*check((*EVERY_RUN, *rules), resolved), *idle.notes(resolved.run.options, resolved.run.trains))
