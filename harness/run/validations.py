"""Read, order and rank the rows of validation.csv, and apply --patience."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from base.storage.tables import run_table

Row = Mapping[str, Any]


def of_run(folder: Path) -> list[Row]:
    """Return the rows of a run directory; [] before the first validation."""
    return run_table(folder, "validation.csv").read()


def by_update(rows: Iterable[Row], most: int | None = None) -> list[Row]:
    """Return the rows of checkpoints, without averages, in order of their updates and up to update `most`.

    `most` is the newest checkpoint: a later row has none, because the process was killed or the file is damaged.
    """
    own = [row for row in rows if 0 <= int(row["iteration"]) <= (math.inf if most is None else most)]
    return sorted(own, key=lambda row: int(row["iteration"]))


def _loss(row: Row) -> float:
    """Return the loss; infinity if the row has none."""
    try:
        loss = float(row["loss"])
    except (KeyError, ValueError):
        return math.inf
    return math.inf if math.isnan(loss) else loss


COSTS: Mapping[str, Callable[[Row], float]] = {"accuracy": lambda row: -float(row["val_acc"]), "loss": _loss}  # by --best-by


def ranked(rows: Iterable[Row], by: str = "accuracy", cost: Callable[[Row], float] | None = None) -> list[Row]:
    """Return the rows, best first: `by` accuracy or loss, or the lowest `cost`.

    Among equal rows the lowest loss is first, then the earliest.
    """
    cost = cost or COSTS[by]
    return sorted(rows, key=lambda row: (cost(row), _loss(row)))


def ranked_for(recorded: Mapping[str, Any], rows: Iterable[Row]) -> list[Row]:
    """Return the rows of a run, best first by its recorded --best-by."""
    return ranked(rows, recorded.get("best_by", "accuracy"))


def best(ordered: Sequence[Row]) -> Row | None:
    """Return the row with the best accuracy; among equals the first, because --patience needs a gain."""
    return max(ordered, key=lambda row: float(row["val_acc"]), default=None)


def without_gain(ordered: Sequence[Row]) -> int:
    """Return the number of rows since the best one."""
    top = best(ordered)
    return sum(int(row["iteration"]) > int(top["iteration"]) for row in ordered) if top else 0


def patience_is_over(ordered: Sequence[Row], patience: int) -> bool:
    """Return whether the last `patience` rows brought no better accuracy, so the run ends; 0 is off."""
    return bool(patience) and without_gain(ordered) >= patience
