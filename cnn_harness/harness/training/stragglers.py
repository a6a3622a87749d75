"""Warn about an instance (process) that is slower than the other instances, which then wait for it."""

from __future__ import annotations

import numpy as np

from cnn_harness.harness.run.cluster import Cluster

# An instance becomes slow if the others wait for it for more than the share MUCH of the time. It is no longer slow if they
# wait for less than the share LITTLE.
MUCH, LITTLE = 0.1, 0.05
_OFTEN = 0.75  # An instance is reported only if it is the slowest in this share of the updates.
_UPDATES, _SECONDS = 16, 5.0  # A decision needs this number of updates and this time.


class Stragglers:
    """Collects the time that each instance needs for its forward and backward passes. Reports when an instance becomes slow,
    and when it is no longer slow.

    The time does not include waiting, because instances exchange gradients after the passes.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rows: list[np.ndarray] = []  # Each array has shape [updates, instances].
        self._warm = False
        self._slow: int | None = None

    def add(self, seconds: np.ndarray) -> None:
        """Add times [updates, instances] in seconds. The first update is ignored, because it warms up caches."""
        if self._cluster.size > 1 and len(seconds):
            self._rows.append(seconds[not self._warm :])
            self._warm = True

    def notes(self) -> list[str]:
        """Return a log line if an instance has become slow or is no longer slow, otherwise []."""
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
