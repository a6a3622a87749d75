"""Cosine: half a period of a cosine from the peak down to 0 at the end of the run."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from base.fields import check_fields
from LR_Schedules._schedule import ScheduledRun, exactly, ramp, warmup_epochs, warmup_iterations

_PI = Decimal("3.14159265358979323846264338327950288419716939937510")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The warm-up alone: the curve follows from the run's length."""

    warmup_epochs: float = warmup_epochs()

    def __post_init__(self) -> None:
        check_fields(self)


def build(options: Options, run: ScheduledRun) -> Callable[[int], float]:
    """Learning rate of update i: peak × (1 + cos(π i / iterations)) / 2."""

    def rate(i: int) -> float:
        return exactly(lambda peak: peak * (1 + _cosine(i, run.iterations)) / 2, run.peak)

    return ramp(rate, warmup_iterations(run, options.warmup_epochs))


def _cosine(i: int, half_period: int) -> Decimal:
    """cos(π i / half_period), for i up to that, by its Taylor series in the precision of the context."""
    if 2 * i > half_period:
        return -_cosine(half_period - i, half_period)
    square, total, term, k = (_PI * i / half_period) ** 2, Decimal(1), Decimal(1), 0
    while total != (total := total + (term := -term * square / ((k + 1) * (k + 2)))):
        k += 2
    return total
