"""Rows of validation.csv: those of checkpoints in their order, and the best ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def of_checkpoints(rows: Iterable[Row], most: int | None = None) -> list[Row]:
    """Return the rows of checkpoints in order of their updates, averages aside; with `most` those up to that
    update. Rows of more than a run has done have no checkpoint: a kill came before it, or it is damaged."""
    own = [row for row in rows if int(row["iteration"]) >= 0 and (most is None or int(row["iteration"]) <= most)]
    return sorted(own, key=lambda row: int(row["iteration"]))


def ranked(rows: Iterable[Row], cost: Callable[[Row], float] = lambda row: -float(row["val_acc"])) -> list[Row]:
    """Return the rows, the lowest cost (the best accuracy) first; of equal ones the lowest loss, and the earliest."""
    return sorted(rows, key=lambda row: (cost(row), _loss(row)))


def _loss(row: Row) -> float:
    """Return the loss, infinity where a row tells none."""
    try:
        loss = float(row.get("loss", math.inf))
    except (TypeError, ValueError):
        return math.inf
    return math.inf if math.isnan(loss) else loss


def best(ordered: Sequence[Row]) -> Row | None:
    """Return the row with the best accuracy, the first of equals: an equal one is no gain to be patient for."""
    return max(ordered, key=lambda row: float(row["val_acc"]), default=None)
