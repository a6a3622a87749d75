"""Stepped schedule: the rate is multiplied by a constant after given fractions of the run."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from cnn_harness.base.fields import above, check_fields, decimal_number, exact, opt
from cnn_harness.LR_Schedules._schedule import ScheduledRun, exactly, ramp, warmup_epochs, warmup_iterations

_RULE = "must be comma-separated numbers between 0 and 1 in increasing order, for example 0.5,0.75"


def _broken(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        fractions = parse_fractions(text)
    except ValueError:
        return _RULE
    inside = all(0 < f <= 1 for f in fractions)
    return None if inside and all(a < b for a, b in pairwise(fractions)) else _RULE


@dataclass(frozen=True, kw_only=True)
class Options:
    """The factor, and the fractions of the run after which the rate is multiplied by the factor."""

    learning_rate_decay: float = opt(0.1, "multiply the learning rate by this factor at each drop", check=above(0))
    learning_rate_schedule: str | None = opt(
        None,
        "drop the learning rate at these comma-separated fractions of the run; 0.5 is the middle (default: depends on"
        " the model)",
        check=_broken,
    )
    warmup_epochs: float = warmup_epochs()

    def __post_init__(self) -> None:
        check_fields(self)


def build(options: Options, run: ScheduledRun) -> Callable[[int], float]:
    """Return the learning rate of update i: peak × decay ^ (drops before update i)."""
    if options.learning_rate_schedule is None:
        raise ValueError("learning_rate_schedule is not given, and the model has no default; it " + _RULE)
    drops = [int(exact(f) * run.iterations) for f in parse_fractions(options.learning_rate_schedule)]

    # This counts the drops before update i and keeps no state, so that a resumed run has the same rates.
    def rate(i: int) -> float:
        behind = sum(i > drop for drop in drops)
        return exactly(lambda peak, decay: peak * decay**behind, run.peak, options.learning_rate_decay)

    return ramp(rate, warmup_iterations(run, options.warmup_epochs))


def parse_fractions(text: str) -> tuple[float, ...]:
    """Return the fractions in a text: "0.5,0.75" → (0.5, 0.75)."""
    return tuple(decimal_number(part.strip(" ")) for part in text.split(","))
