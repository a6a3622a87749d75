"""Reports the instance of a worker group that the others wait for."""

from __future__ import annotations

import numpy as np

from harness.cluster.cluster import Cluster

MUCH, LITTLE = (
    0.1,
    0.05,
)  # of the time of the passes: an instance is slow above the first, and no longer slow below the second
_OFTEN = 0.75  # of the updates: one that is slow only now and then has bad luck, or all have neighbours
_UPDATES, _SECONDS = 16, 5.0  # that are looked at together, at least


class Stragglers:
    """Collects the seconds that every instance needs for its passes, and reports each change of the slow one. An instance's
    waiting does not count, as the others' sums arrive after the passes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rows: list[np.ndarray] = []  # [updates, instances] each
        self._warm = False
        self._slow: int | None = None

    def add(self, seconds: np.ndarray) -> None:
        """Add rows [updates, instances]. The first update of a call does not count: it warms caches up, of which some
        instances found more than others."""
        if self._cluster.size > 1 and len(seconds):
            self._rows.append(seconds[not self._warm :])
            self._warm = True

    def notes(self) -> list[str]:
        """At most one line for the log; the next one is of the updates to come."""
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
            f"({means[slowest]:.3g} s for the passes of an update, where {others} took {usual:.3g} s)"
        ]
