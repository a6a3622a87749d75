"""The best time between two checkpoints on machines that fail."""

from __future__ import annotations

import math

from harness.options.sections import AUTO, CheckpointOptions

_UNTIL_KNOWN = 600.0  # seconds
_MIN_SAVING = 1e-3  # seconds that saving holds training, or next to no time between two checkpoints would be best


def best_interval(saving: float, between_failures: float) -> float:
    """The seconds of training between two checkpoints with which least time is lost, to saving and to updates that a failure
    has done again. `saving`: seconds that training waits for a checkpoint; `between_failures`: seconds, on average.

    J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006), equation 37;
    its first term is J. W. Young's, CACM 17 (1974).
    """
    saving = max(saving, _MIN_SAVING)
    part = saving / (2 * between_failures)
    if part >= 1:
        return between_failures
    return math.sqrt(2 * saving * between_failures) * (1 + math.sqrt(part) / 3 + part / 9) - saving


def lost_share(interval: float, saving: float, restarting: float, between_failures: float) -> float:
    """The share of the time that a training loses to saving, to updates that are done again and to restarts, with failures
    that come at random (exponentially distributed). `interval`: seconds of training between checkpoints; `restarting`:
    seconds from a failure to the next update.

    Daly (2006), equation 20: the time a training takes is M e^(R/M) (e^((interval + saving)/M) - 1) / interval times its
    own.
    """
    taken = math.expm1((interval + saving) / between_failures) * math.exp(restarting / between_failures)
    return 1 - interval / (between_failures * taken)


def safety_interval(options: CheckpointOptions, hosts: int, saving: float | None) -> float:
    """The seconds after which a safety checkpoint is due; 0: never. `saving`: seconds that the last one held training, None
    before there is one; the run lives on `hosts`, each of which fails by itself."""
    if options.safety_ckpt_minutes != AUTO:
        return 60 * float(options.safety_ckpt_minutes)
    if saving is None:
        return _UNTIL_KNOWN
    return best_interval(saving, 3600 * options.mtbf_hours / hosts)
