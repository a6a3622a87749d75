"""Read, order and rank the rows of validation.csv, and apply --patience."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cnn_harness.base.storage.tables import run_table

Row = Mapping[str, Any]


def of_run(folder: Path) -> list[Row]:
    """Return the rows of a run directory, or [] if the run has not validated yet."""
    return run_table(folder, "validation.csv").read()


def by_update(rows: Iterable[Row], most: int | None = None) -> list[Row]:
    """Return the rows of checkpoints, without averages, in order of updates, up to update `most`.

    `most` is the update of the newest checkpoint. Later rows have no checkpoint, because the process was killed or the
    checkpoint is damaged.
    """
    own = [row for row in rows if 0 <= int(row["iteration"]) <= (math.inf if most is None else most)]
    return sorted(own, key=lambda row: int(row["iteration"]))


def _loss(row: Row) -> float:
    try:
        loss = float(row["loss"])
    except (KeyError, ValueError):
        return math.inf
    return math.inf if math.isnan(loss) else loss


COSTS: Mapping[str, Callable[[Row], float]] = {
    "accuracy": lambda row: -float(row["val_acc"]),
    "loss": _loss,
}  # for each value of --best-by, the lowest is best


def ranked(rows: Iterable[Row], by: str = "accuracy", cost: Callable[[Row], float] | None = None) -> list[Row]:
    """Return the rows ordered `by` accuracy or loss, or by `cost`; the best row is first.

    Equal rows are ordered by loss; rows with equal loss keep their order.
    """
    cost = cost or COSTS[by]
    return sorted(rows, key=lambda row: (cost(row), _loss(row)))


def ranked_for(recorded: Mapping[str, Any], rows: Iterable[Row]) -> list[Row]:
    """Return the rows of a run in the order of its recorded --best-by; the best row is first."""
    return ranked(rows, recorded.get("best_by", "accuracy"))


def best(ordered: Sequence[Row]) -> Row | None:
    """Return the first row with the best accuracy."""
    return max(ordered, key=lambda row: float(row["val_acc"]), default=None)


def without_gain(ordered: Sequence[Row]) -> int:
    """Return the number of rows after the best row."""
    top = best(ordered)
    return sum(int(row["iteration"]) > int(top["iteration"]) for row in ordered) if top else 0


def patience_is_over(ordered: Sequence[Row], patience: int) -> bool:
    """Return whether the last `patience` rows did not improve the accuracy, so the run must end; 0 is off."""
    return bool(patience) and without_gain(ordered) >= patience
