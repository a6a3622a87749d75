"""Exponential schedule: the rate is multiplied by a constant, a given number of times at equal intervals."""

from collections.abc import Callable
from dataclasses import dataclass

from cnn_harness.base.fields import above, at_least, check_fields, exact, opt
from cnn_harness.LR_Schedules._schedule import ScheduledRun, exactly, ramp, warmup_epochs


@dataclass(frozen=True, kw_only=True)
class Options:
    """The factor and the number of drops. EfficientNet uses the factor 0.97, 146 times in 350 epochs."""

    lr_decay_rate: float | None = opt(
        None, "multiply the learning rate by this factor at each drop (default: depends on the model)", check=above(0)
    )
    lr_drops: int | None = opt(
        None, "drop the learning rate N times in the run (default: depends on the model)", check=at_least(0)
    )
    warmup_epochs: float = warmup_epochs()

    def __post_init__(self) -> None:
        check_fields(self)


def build(options: Options, run: ScheduledRun) -> Callable[[int], float]:
    """Return the learning rate of update i: peak × lr_decay_rate ^ floor(epoch of i ÷ (epochs ÷ lr_drops))."""
    missing = [name for name in ("lr_decay_rate", "lr_drops") if getattr(options, name) is None]
    if missing:
        raise ValueError(
            f"{' and '.join(missing)} not given, and the model has no default; the exponential schedule needs both, "
            "for example lr_decay_rate 0.97 and lr_drops 146 for EfficientNet in 350 epochs"
        )

    # The drops follow from the epochs, not from `iterations`, which leaves out incomplete batches.
    drops = run.epochs_per_update * options.lr_drops / run.epochs

    def rate(i: int) -> float:
        behind = i * drops.numerator // drops.denominator
        return exactly(lambda peak, decay: peak * decay**behind, run.peak, options.lr_decay_rate)

    return ramp(rate, int(run.iterations_per_epoch * exact(options.warmup_epochs)))
