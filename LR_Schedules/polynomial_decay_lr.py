"""Polynomial schedule: a linear warm-up to the peak, then decay by (1 - completed share)^power to an end value.

In the first releases, the curve had no warm-up, the power 1, and other default rates. The option names of these releases,
and --release 1.3 or 1.4, still select the early curve; the current options change it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cnn_harness.base.fields import above, at_least, check_fields, opt
from cnn_harness.LR_Schedules._schedule import ScheduledRun, exactly, warmup_epochs, warmup_iterations


@dataclass(frozen=True, kw_only=True)
class Options:
    """The end and the power of the curve.

    The curve starts at the run's learning rate; `poly_lr_initial_lr` is an older name of `abs_learning_rate`.
    """

    poly_lr_early: bool = opt(
        False,
        "use the curve of the first releases of the original harness; its defaults are no warm-up, power 1, and rates"
        " from 0.0012 to 0.0001",
    )
    poly_lr_decay_steps: int | None = opt(
        None, "reach the final learning rate after N updates (default: at the end of the run)", check=at_least(1)
    )

    warmup_epochs: float = warmup_epochs()
    poly_lr_decay_power: float = opt(2.0, "set the power of the polynomial decay; 1 is linear", check=above(0))
    poly_lr_end_ratio: float = opt(1e-5, "set the final learning rate as a fraction of the peak", check=at_least(0))
    abs_end_learning_rate: float | None = opt(
        None,
        "set the final learning rate directly, instead of --poly-lr-end-ratio",
        aliases=("poly_lr_end_lr",),
        check=at_least(0),
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def logs_first_rate(self) -> bool:
        """Return whether a log row shows the learning rate of the row's first update."""
        return self.poly_lr_early


EARLY = ("poly_lr_initial_lr", "poly_lr_end_lr", "poly_lr_decay_steps", "poly_lr_early")
EARLY_RELEASES = ("1.3", "1.4")
EARLY_RATES = {"abs_learning_rate": 0.0012, "abs_end_learning_rate": 1e-4}
OTHER_SPELLINGS = {"abs_learning_rate": "base_learning_rate_exponent", "abs_end_learning_rate": "poly_lr_end_ratio"}


def meant_with(spelled: Mapping[str, str], values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the given option that selects the early curve, or "", and the values that it implies for other options.

    `spelled` maps each option to the name that the user gave. `values` are the given options.
    """
    early = [spelling for spelling in EARLY if spelling in spelled.values()]
    early += ["release"] * (values.get("release") in EARLY_RELEASES)
    if not early or values.get("poly_lr_early") is False:
        return "", {}
    rates = {name: rate for name, rate in EARLY_RATES.items() if OTHER_SPELLINGS[name] not in values}
    return early[0], {"poly_lr_early": True, "poly_lr_decay_power": 1.0, "warmup_epochs": 0.0, **rates}


def build(options: Options, run: ScheduledRun) -> Callable[[int], float]:
    """Return the learning rate of update i: peak × i / warmup, then (peak - end) × (1 - (i - warmup) / rest)^power + end."""
    updates = options.poly_lr_decay_steps or run.iterations
    relative = options.abs_end_learning_rate is None
    last = options.poly_lr_end_ratio if relative else options.abs_end_learning_rate
    warmup = warmup_iterations(run, options.warmup_epochs)
    if options.poly_lr_decay_steps and warmup >= updates:
        raise ValueError(
            f"poly_lr_decay_steps is {updates}, so there is no update after the warm-up of {warmup} updates "
            f"({options.warmup_epochs:g} epochs); increase it or reduce warmup_epochs"
        )

    # After the end, i is limited to `updates`, so that the base of the power is not negative. If the warm-up is as long as
    # the run, the first branch always returns, so there is no division by 0.
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
