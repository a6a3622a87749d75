"""The contract of a file of this folder, to be found as `--lr-schedule NAME`: the run that it is built for, the rate that it
builds, and the warm-up. A rate is a function of the update's index alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, Protocol

from base.fields import at_least, exact, opt

Rate = Callable[[int], float]

MAX_RATES = 4096  # updates that are looked at for the highest rate


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """The run that a schedule is stretched over. `peak` is 2^exponent × global batch, or the absolute learning rate. Epochs
    are exact, so that no floor falls on the wrong side of a whole number."""

    peak: float
    iterations: int
    epochs: Fraction
    iterations_per_epoch: int  # complete updates
    epochs_per_update: Fraction  # global batch ÷ images

    def __post_init__(self) -> None:
        for name in ("peak", "iterations", "epochs", "iterations_per_epoch", "epochs_per_update"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} of a learning-rate schedule is {value} but must be > 0 and finite")


class Schedule(Protocol):
    """A module."""

    # a frozen dataclass of `base.fields.opt`: the schedule's own options. With an attribute `logs_first_rate`, log rows have
    # the rate of their first update, not of their last one
    Options: type

    def build(self, options: Any, run: ScheduledRun) -> Rate:
        """The rate of every update of the run, by its index from 0 on."""

    # and, where older spellings of its options meant more than they say, `meant_with`
    # def meant_with(spelled: Mapping[str, str], values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]


def warmup_epochs() -> Any:
    """The option common to all schedules."""
    return opt(5.0, "epochs over which the rate rises from 0; 0 switches the warm-up off", check=at_least(0))


def warmup_iterations(run: ScheduledRun, warmup_epochs: float) -> int:
    """Updates of the warm-up, rounded down: `warmup_epochs` ÷ epochs of all updates; may exceed the run."""
    return int(run.iterations * exact(warmup_epochs) // run.epochs)


def ramp(rate: Rate, warmup: int) -> Rate:
    """Multiply `rate` by i / warmup over the first `warmup` updates: the curve below keeps its shape."""
    return lambda i: exactly(lambda full: full * i / warmup, rate(i)) if i < warmup else rate(i)


def highest(rate: Rate, iterations: int) -> tuple[float, int]:
    """Return the highest rate of MAX_RATES evenly spaced updates, and the first update that has it. NaN counts as 0."""
    sampled = (*range(0, iterations, -(-iterations // MAX_RATES)), iterations - 1)
    peak, at = max((value if (value := rate(i)) > 0 else 0.0, -i) for i in sampled)
    return peak, -at


def exactly(formula: Callable[..., Decimal], *numbers: float) -> float:
    """The formula's value for the numbers as people write them, rounded once: a rate of 0.5 is 0.0005 after three drops by
    0.1, and not 0.0005000000000000001, which is the product of doubles. Overflow is infinite, or NaN."""
    with localcontext(Context(prec=34, traps=[])):
        return float(formula(*(Decimal(repr(number)) for number in numbers)))
