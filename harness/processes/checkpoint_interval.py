"""Compute the optimal time between checkpoints on hosts that may fail."""

from __future__ import annotations

import math

from harness.options.sections import AUTO, CheckpointOptions

_UNTIL_KNOWN = 600.0  # seconds, until the time to save is known
_MIN_SAVING = 1e-3  # seconds; a time near 0 would make the optimal interval 0


def best_interval(saving: float, between_failures: float) -> float:
    """Return the seconds of training between two checkpoints that lose the least time to saving and to repeated updates.

    `saving`: seconds that a checkpoint blocks training. `between_failures`: mean time between failures, in seconds.
    Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006),
    equation 37, with the first term by J. W. Young, CACM 17 (1974).
    """
    saving = max(saving, _MIN_SAVING)
    part = saving / (2 * between_failures)
    if part >= 1:
        return between_failures
    return math.sqrt(2 * saving * between_failures) * (1 + math.sqrt(part) / 3 + part / 9) - saving


def lost_share(interval: float, saving: float, restarting: float, between_failures: float) -> float:
    """Return the share of time lost to saving, repeated updates and restarts, for exponentially distributed failures.

    `interval`: seconds of training between checkpoints. `restarting`: seconds from a failure to the next update.
    Source: Daly (2006), equation 20: the total time is M e^(R/M) (e^((interval + saving)/M) - 1) / interval times the pure
    training time.
    """
    taken = math.expm1((interval + saving) / between_failures) * math.exp(restarting / between_failures)
    return 1 - interval / (between_failures * taken)


def safety_interval(options: CheckpointOptions, hosts: int, saving: float | None) -> float:
    """Return the seconds until the next safety checkpoint, 0 for never.

    `saving`: seconds that the last checkpoint blocked training, None if there is none yet. `hosts`: number of hosts, which
    fail independently.
    """
    if options.safety_ckpt_minutes != AUTO:
        return 60 * float(options.safety_ckpt_minutes)
    if saving is None:
        return _UNTIL_KNOWN
    return best_interval(saving, 3600 * options.mtbf_hours / hosts)
