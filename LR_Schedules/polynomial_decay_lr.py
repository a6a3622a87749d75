"""Polynomial decay: a straight warm-up to the peak, then (1 - share of the rest)^power down to an end value."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from harness.fields import above, at_least, keep_rules, opt
from LR_Schedules._warmup import RateHorizon, exactly, warmup_epochs, warmup_iterations


@dataclass(frozen=True, kw_only=True)
class Options:
    """The end of the curve and its power.

    The start is the run's own learning rate: `poly_lr_initial_lr` is an older spelling of `abs_learning_rate`,
    which is not an option of a schedule.
    """

    warmup_epochs: float = warmup_epochs()
    poly_lr_decay_power: float = opt(2.0, "power of the decay; 1 is a straight line", check=above(0))
    poly_lr_end_ratio: float = opt(1e-5, "last learning rate as a fraction of the peak", check=at_least(0))
    abs_end_learning_rate: float | None = opt(
        None, "last learning rate itself, instead of poly_lr_end_ratio", aliases=("poly_lr_end_lr",), check=at_least(0)
    )

    def __post_init__(self) -> None:
        keep_rules(self)


def build(options: Options, horizon: RateHorizon) -> Callable[[int], float]:
    """Learning rate of update i: peak × i / warmup, then (peak - end) × (1 - (i - warmup) / rest)^power + end."""
    given = options.abs_end_learning_rate
    end = options.poly_lr_end_ratio * horizon.peak if given is None else given
    warmup = warmup_iterations(horizon, options.warmup_epochs)

    # Past the end the base would be negative. A warm-up as long as the run leaves no rest to divide by, but then
    # the clamped index never leaves the first branch.
    def rate(i: int) -> float:
        i = min(i, horizon.iterations)
        if i <= warmup and warmup:
            return exactly(lambda peak: peak * i / warmup, horizon.peak)
        left = horizon.iterations - i, horizon.iterations - warmup
        formula = lambda peak, end, power: (peak - end) * (Decimal(left[0]) / left[1]) ** power + end  # noqa: E731
        return exactly(formula, horizon.peak, end, options.poly_lr_decay_power)

    return rate
