"""A schedule that is not part of the project."""

from __future__ import annotations

from cnn_harness.emulator.plan.schedules import Timeline, from_clocks


def all_forwards_first(stages: int, micro_batches: int) -> Timeline:
    """Return GPipe (Huang et al. 2019), with the backwards in the order of the forwards."""
    return from_clocks(
        stages,
        micro_batches,
        forward=lambda i, j: i + j,
        backward=lambda i, j: micro_batches + i + 2 * (stages - 1) - j,
    )
