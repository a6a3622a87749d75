"""The interface of schedule plug-ins, and the warm-up. A file NAME.py is used by `--lr-schedule NAME`.

A learning rate depends only on the update's index.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, Protocol

from cnn_harness.base.fields import at_least, exact, opt

Rate = Callable[[int], float]

MAX_RATES = 4096  # number of updates sampled to find the highest rate


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """The run for which a schedule is built. `peak` is 2^exponent × global batch, or the absolute learning rate.

    Epochs are exact fractions, so that rounding down gives the right number of updates.
    """

    peak: float
    iterations: int
    epochs: Fraction
    iterations_per_epoch: int  # number of updates with a complete batch
    epochs_per_update: Fraction  # global batch ÷ images

    def __post_init__(self) -> None:
        for name in ("peak", "iterations", "epochs", "iterations_per_epoch", "epochs_per_update"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} of a learning-rate schedule is {value} but must be > 0 and finite")


class Schedule(Protocol):
    """The module of a schedule."""

    # A frozen dataclass; each field is one of the schedule's options, declared by `base.fields.opt`. If the attribute
    # `logs_first_rate` is true, a log row shows the rate of the row's first update, not of the last update.
    Options: type

    def build(self, options: Any, run: ScheduledRun) -> Rate:
        """Return the function from an update's index, from 0, to its learning rate."""

    # A schedule may also define this function, if older names of its options also imply values of other options:
    # def meant_with(spelled: Mapping[str, str], values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]


def warmup_epochs() -> Any:
    """Return the option --warmup-epochs, which all schedules have."""
    return opt(5.0, "raise the learning rate from 0 during this many epochs; 0 means no warm-up", check=at_least(0))


def warmup_iterations(run: ScheduledRun, warmup_epochs: float) -> int:
    """Return the number of updates in the warm-up, rounded down. The warm-up may be longer than the run."""
    return int(run.iterations * exact(warmup_epochs) // run.epochs)


def ramp(rate: Rate, warmup: int) -> Rate:
    """Multiply `rate` by i / warmup in the first `warmup` updates."""
    return lambda i: exactly(lambda full: full * i / warmup, rate(i)) if i < warmup else rate(i)


def highest(rate: Rate, iterations: int) -> tuple[float, int]:
    """Return the highest rate among MAX_RATES evenly spaced updates, and the first update with it. NaN counts as 0."""
    sampled = (*range(0, iterations, -(-iterations // MAX_RATES)), iterations - 1)
    peak, at = max((value if (value := rate(i)) > 0 else 0.0, -i) for i in sampled)
    return peak, -at


def exactly(formula: Callable[..., Decimal], *numbers: float) -> float:
    """Evaluate a formula in decimal arithmetic, and round only the result. Overflow gives infinity or NaN.

    After three drops by 0.1, a rate of 0.5 is therefore 0.0005, while the product of doubles is 0.0005000000000000001.
    """
    with localcontext(Context(prec=34, traps=[])):
        return float(formula(*(Decimal(repr(number)) for number in numbers)))
