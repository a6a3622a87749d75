"""Report the slow instance for which the others wait."""

from __future__ import annotations

import numpy as np

from harness.cluster.cluster import Cluster

# an instance becomes slow above the first share of waiting time, and is no longer slow below the second
MUCH, LITTLE = 0.1, 0.05
_OFTEN = 0.75  # share of updates; an instance that is slow only occasionally is not reported
_UPDATES, _SECONDS = 16, 5.0  # minimum of updates and time for a decision


class Stragglers:
    """Collects the seconds that each instance needs for its passes. Reports when an instance becomes slow, or no longer is.

    The time does not include waiting for others, because gradients are exchanged after the passes.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rows: list[np.ndarray] = []  # [updates, instances] each
        self._warm = False
        self._slow: int | None = None

    def add(self, seconds: np.ndarray) -> None:
        """Add rows [updates, instances]. Exclude the first update of a call, because it warms up caches."""
        if self._cluster.size > 1 and len(seconds):
            self._rows.append(seconds[not self._warm :])
            self._warm = True

    def notes(self) -> list[str]:
        """Return at most one log line, about the updates since the last decision."""
        if sum(map(len, self._rows)) < _UPDATES:
            return []
        seconds = np.concatenate(self._rows).astype(np.float64)
        if seconds.max(1).sum() < _SECONDS:
            return []
        self._rows = []
        means = seconds.mean(0)
        slowest = int(means.argmax())
        usual = float(np.median(np.delete(means, slowest)))
        share = 1 - usual / max(means[slowest], 1e-9)
        often = (seconds.argmax(1) == slowest).mean() >= _OFTEN
        before = self._slow
        if share > MUCH and often:
            self._slow = slowest
        elif share < LITTLE or slowest != before:
            self._slow = None
        if self._slow == before:
            return []
        if self._slow is None:
            return [f"{self._cluster.name_of(before)} is no longer slow"]
        others = "the other" if self._cluster.size == 2 else "the others"
        return [
            f"{self._cluster.name_of(slowest)} is slow: {others} waited for it {100 * share:.0f} % of the time "
            f"({means[slowest]:.3g} s for the passes of an update; {others}: {usual:.3g} s)"
        ]
