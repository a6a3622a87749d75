"""Compute the optimal time between checkpoints on hosts that may fail."""

from __future__ import annotations

import math

from cnn_harness.harness.options.sections import AUTO, CheckpointOptions

_UNTIL_KNOWN = 600.0  # The interval in seconds before the first checkpoint has shown how long saving takes.
_MIN_SAVING = 1e-3  # Assume that saving takes at least this many seconds. A time near 0 would make the optimal interval 0.


def best_interval(saving: float, between_failures: float) -> float:
    """Return the optimal time between two checkpoints, in seconds: it loses the least time to saving and repeated updates.

    `saving` is the number of seconds for which a checkpoint blocks training. `between_failures` is the mean time between
    failures, in seconds. Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
    FGCS 22 (2006), equation 37. J. W. Young, CACM 17 (1974), gave the first term.
    """
    saving = max(saving, _MIN_SAVING)
    part = saving / (2 * between_failures)
    if part >= 1:
        return between_failures
    return math.sqrt(2 * saving * between_failures) * (1 + math.sqrt(part) / 3 + part / 9) - saving


def safety_interval(options: CheckpointOptions, hosts: int, saving: float | None) -> float:
    """Return the number of seconds between safety checkpoints, or 0 if none are saved.

    `hosts` is the number of hosts, which are assumed to fail independently. `saving` is the number of seconds for which the
    last checkpoint blocked training, or None before the first checkpoint.
    """
    if options.safety_ckpt_minutes != AUTO:
        return 60 * float(options.safety_ckpt_minutes)
    if saving is None:
        return _UNTIL_KNOWN
    return best_interval(saving, 3600 * options.mtbf_hours / hosts)
