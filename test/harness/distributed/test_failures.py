"""The best checkpoint interval on failing machines agrees with a simulation."""

from __future__ import annotations

import math
import random

import pytest

from cnn_harness.harness.distributed.checkpoint_interval import best_interval


def lost_share(interval: float, saving: float, restarting: float, between_failures: float) -> float:
    """Return the share of time lost to saving, repeated updates and restarts, for exponentially distributed failures.

    All arguments are in seconds: `interval` is the training time between checkpoints, and `restarting` the time from a
    failure to the next update. Source: Daly (2006), equation 20: the total time is the pure training time multiplied by
    M e^(R/M) (e^((interval + saving)/M) - 1) / interval, with M = between_failures and R = restarting.
    """
    taken = math.expm1((interval + saving) / between_failures) * math.exp(restarting / between_failures)
    return 1 - interval / (between_failures * taken)


def simulated(interval: float, saving: float, restarting: float, between: float, failing: int = 20_000) -> float:
    """Return the share of time lost until a training run has failed that often."""
    rng = random.Random(1)
    time = trained = 0.0
    for _ in range(failing):
        lived = rng.expovariate(1 / between)
        trained += interval * (lived // (interval + saving))  # whole intervals that were saved
        time += lived
        while (lived := rng.expovariate(1 / between)) < restarting:  # fails during the restart
            time += lived
        time += restarting
    return 1 - trained / time


@pytest.mark.parametrize(("saving", "restarting", "between"), [(0.5, 20, 3600), (5, 60, 600), (60, 60, 300)])
def test_lost_share_matches_simulation(saving, restarting, between):
    for interval in (30, 300, 3000):
        assert (
            abs(lost_share(interval, saving, restarting, between) - simulated(interval, saving, restarting, between)) < 0.01
        )


@pytest.mark.parametrize(("saving", "between"), [(0.01, 86400), (0.5, 3600), (5, 600), (60, 300)])
def test_interval_minimises_lost_time(saving, between):
    best = best_interval(saving, between)
    lost = lost_share(best, saving, 30, between)
    assert all(
        lost <= lost_share(best * factor, saving, 30, between) + 1e-3 * lost for factor in (0.5, 0.8, 0.95, 1.05, 1.25, 2)
    )
    assert abs(best / math.sqrt(2 * saving * between) - 1) < 0.4  # Young's formula
