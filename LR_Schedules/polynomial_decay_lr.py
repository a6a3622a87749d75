"""Polynomial decay: a straight warm-up to the peak, then (1 - share of the rest behind)^power down to an end value.

In the first releases the curve had no warm-up, the power 1, and rates of its own. Their spellings still select that
curve; the options of today change it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from base.fields import above, at_least, check_fields, opt
from LR_Schedules._schedule import ScheduledRun, exactly, warmup_epochs, warmup_iterations


@dataclass(frozen=True, kw_only=True)
class Options:
    """The end of the curve and its power.

    The start is the run's own learning rate: `poly_lr_initial_lr` is an older spelling of `abs_learning_rate`,
    which is not an option of a schedule.
    """

    poly_lr_early: bool = opt(
        False,
        "the first releases' curve, as with --poly-lr-initial-lr, --poly-lr-end-lr and --poly-lr-decay-steps: without "
        "warm-up, power 1, from 0.0012 down to 0.0001, where nothing else is given; log rows tell the rate of their first "
        "update instead of their last",
    )
    poly_lr_decay_steps: int | None = opt(
        None, "weight updates after which the last learning rate is reached (default: the run's)", check=at_least(1)
    )

    warmup_epochs: float = warmup_epochs()
    poly_lr_decay_power: float = opt(2.0, "power of the decay; 1 is a straight line", check=above(0))
    poly_lr_end_ratio: float = opt(1e-5, "last learning rate as a fraction of the peak", check=at_least(0))
    abs_end_learning_rate: float | None = opt(
        None, "last learning rate itself, instead of poly_lr_end_ratio", aliases=("poly_lr_end_lr",), check=at_least(0)
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def logs_first_rate(self) -> bool:
        """True if log rows tell the learning rate of their first update."""
        return self.poly_lr_early


EARLY = ("poly_lr_initial_lr", "poly_lr_end_lr", "poly_lr_decay_steps", "poly_lr_early")
EARLY_RATES = {"abs_learning_rate": 0.0012, "abs_end_learning_rate": 1e-4}
OTHER_SPELLINGS = {"abs_learning_rate": "base_learning_rate_exponent", "abs_end_learning_rate": "poly_lr_end_ratio"}


def meant_with(spelled: Mapping[str, str], values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The older spelling in `spelled` (option: spelling), "" for none, and its values for options that were not given.

    `values`: of the options given.
    """
    early_spellings = [spelling for spelling in EARLY if spelling in spelled.values()]
    if not early_spellings or values.get("poly_lr_early") is False:
        return "", {}
    rates = {name: rate for name, rate in EARLY_RATES.items() if OTHER_SPELLINGS[name] not in values}
    return early_spellings[0], {"poly_lr_early": True, "poly_lr_decay_power": 1.0, "warmup_epochs": 0.0, **rates}


def build(options: Options, run: ScheduledRun) -> Callable[[int], float]:
    """Learning rate of update i: peak × i / warmup, then (peak - end) × (1 - (i - warmup) / rest)^power + end."""
    updates = options.poly_lr_decay_steps or run.iterations
    relative = options.abs_end_learning_rate is None
    last = options.poly_lr_end_ratio if relative else options.abs_end_learning_rate
    warmup = warmup_iterations(run, options.warmup_epochs)
    if options.poly_lr_decay_steps and warmup >= updates:
        raise ValueError(
            f"poly_lr_decay_steps is {updates}, which leaves none after a warm-up of {warmup} updates "
            f"({options.warmup_epochs:g} epochs): give more steps, or fewer warmup_epochs"
        )

    # Past the end the base would be negative. A warm-up as long as the run leaves no rest to divide by, but its clamped
    # index never leaves the first branch.
    def rate(i: int) -> float:
        i = min(i, updates)
        if i <= warmup and warmup:
            return exactly(lambda peak: peak * i / warmup, run.peak)
        left = Decimal(updates - i) / (updates - warmup)

        def formula(peak: Decimal, last: Decimal, power: Decimal) -> Decimal:
            end = peak * last if relative else last
            return (peak - end) * left**power + end

        return exactly(formula, run.peak, last, options.poly_lr_decay_power)

    return rate
