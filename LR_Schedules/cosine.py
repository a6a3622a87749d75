"""Cosine schedule: half a period of a cosine, from the peak to 0 at the end of the run."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from cnn_harness.base.fields import check_fields
from cnn_harness.LR_Schedules._schedule import ScheduledRun, ramp, warmup_epochs, warmup_iterations


@dataclass(frozen=True, kw_only=True)
class Options:
    """The warm-up is the only option, because the curve depends only on the run's length."""

    warmup_epochs: float = warmup_epochs()

    def __post_init__(self) -> None:
        check_fields(self)


def build(options: Options, run: ScheduledRun) -> Callable[[int], float]:
    """Return the learning rate of update i: peak × (1 + cos(π i / iterations)) / 2."""

    def rate(i: int) -> float:
        return run.peak * (1 + math.cos(math.pi * i / run.iterations)) / 2

    return ramp(rate, warmup_iterations(run, options.warmup_epochs))
