"""Early stopping: --patience ends a run when its validations bring no better accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reports.validated_rows import Row, best


def validations_without_gain(ordered: Sequence[Row]) -> int:
    """Return the number of rows since the best one."""
    top = best(ordered)
    return sum(int(row["iteration"]) > int(top["iteration"]) for row in ordered) if top else 0


def patience_is_over(ordered: Sequence[Row], patience: int) -> bool:
    """Return whether a run ends with these rows: the last `patience` brought no better accuracy. 0 ends none."""
    return bool(patience) and validations_without_gain(ordered) >= patience
