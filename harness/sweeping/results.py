"""The results of a sweep's trials, by the rows in their folders, and their order by a measure."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from base.fields import brief
from base.storage import run_tables
from base.storage.tables import Row
from harness.report_page.run_folder import number
from harness.reports import validated_rows
from harness.sweeping.block import Axis
from harness.sweeping.trials import Trial

COMPLETE, FAILED, STOPPED, WAITING = "complete", "failed", "stopped", "waiting"
_NUMBERS = ("epoch", "accuracy", "loss", "training_loss", "minutes")
ALIASES = {"accuracy": "validation-accuracy", "loss": "validation-loss"}


@dataclass(frozen=True)
class Metric:
    """A measure of a trial: a column of its rows, of which the highest or the lowest is the best."""

    name: str
    of_validation: bool
    column: str
    highest: bool = False
    unit: str = ""

    def cost(self, row: Row) -> float:
        """Return a number that is lower for a better row; inf for a row without the measure."""
        value = number(row, self.column)
        return math.inf if not math.isfinite(value) else -value if self.highest else value

    def text(self, value: float) -> str:
        """A value for people."""
        return f"{self.name.replace('-', ' ')} {value:.2f} %" if self.unit else f"{self.name.replace('-', ' ')} {value:.4g}"


METRICS = {
    metric.name: metric
    for metric in (
        Metric("validation-accuracy", True, "val_acc", highest=True, unit=" %"),
        Metric("validation-loss", True, "loss"),
        Metric("training-loss", False, "loss_avg"),
    )
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """A trial as far as it has come. `value`: of the measure, None without one; `accuracy`, `loss`, `epoch`, `checkpoint`:
    of its best validation by that measure, or else by accuracy; nan and "" for missing ones. `reason`: of a failure;
    `has_rows`: whether the trial came to a row of either table."""

    trial: Trial
    folder: Path
    state: str
    value: float | None
    accuracy: float
    loss: float
    epoch: float
    checkpoint: str
    training_loss: float
    minutes: float
    reason: str = ""
    has_rows: bool = True

    @property
    def is_ranked(self) -> bool:
        """True for a complete trial that has the measure: only these are compared."""
        return self.state == COMPLETE and self.value is not None


def read(trial: Trial, folder: Path, state: str, metric: Metric, reason: str = "") -> Result:
    """The result in a trial's folder, which need not be there."""
    training = _rows(folder, "training.csv")
    validated = _rows(folder, "validation.csv")
    by = metric if metric.of_validation else METRICS[ALIASES["accuracy"]]
    best = next(iter(validated_rows.ranked(validated, by.cost)), {})
    last = training[-1] if training else {}
    measured = best if metric.of_validation else last
    value = number(measured, metric.column)
    return Result(
        trial=trial, folder=folder, state=state, reason=reason, value=value if math.isfinite(value) else None,
        accuracy=number(best, "val_acc"), loss=number(best, "loss"), checkpoint=best.get("name", ""),
        epoch=number(best, "epoch") if number(best, "iteration") >= 0 else math.nan,
        training_loss=number(last, "loss_avg"), minutes=number(last, "total_time") / 60,
        has_rows=bool(training or validated),
    )  # fmt: skip


def ordered(results: Sequence[Result], metric: Metric) -> list[Result]:
    """The best first, of equal ones that of the lower loss; those that are not compared last, in their order."""

    def place(result: Result) -> tuple[bool, float, float]:
        if not result.is_ranked:
            return True, 0.0, 0.0
        loss = result.loss if math.isfinite(result.loss) else math.inf
        return False, -result.value if metric.highest else result.value, loss

    return sorted(results, key=place)


def line(result: Result, stop_after: int | None = None) -> str:
    """A trial's result in a line. `stop_after`: the update at which --stop-after ended it."""
    if result.state == FAILED:
        return f"failed: {result.reason}"
    if not result.has_rows:
        return f"no row yet{f': --stop-after {stop_after} ended before the first' if stop_after else ''}"
    measures = (
        f"accuracy {result.accuracy:.2f} %" if math.isfinite(result.accuracy) else "",
        f"loss {result.loss:.4g}" if math.isfinite(result.loss) else "",
        f"training loss {result.training_loss:.4g}" if not math.isfinite(result.loss) else "",
    )
    place = (
        f" at epoch {result.epoch:.4g}"
        if math.isfinite(result.epoch)
        else f" of {result.checkpoint}" * bool(result.checkpoint)
    )
    took = f", {_minutes(result)} minutes" * math.isfinite(result.minutes)
    return f"{', '.join(measure for measure in measures if measure)}{place}{took}"


def why_unranked(results: Sequence[Result], metric: Metric) -> str:
    """The reason that none of the results can be ranked, in words."""
    complete = [result for result in results if result.state == COMPLETE]
    if not complete:
        return "none is complete"
    if not any(result.has_rows for result in complete):
        return "none that is complete has a row yet"
    return f"none that is complete has a {metric.name.replace('-', ' ')}; --metric compares by another measure"


def table(results: Sequence[Result], axes: Sequence[Axis]) -> str:
    """A line for each trial below a head, in the order given; the ranks are those places."""
    head = ("rank", *(axis.key for axis in axes), "accuracy", "loss", "epoch", "training loss", "minutes", "state")
    rows = [head, *(_cells(place, result) for place, result in enumerate(results, 1))]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def as_csv(results: Sequence[Result], axes: Sequence[Axis]) -> str:
    """Return the table for programs."""
    varied = (axis.option.name for axis in axes)
    head = ("rank", "trial", *varied, "state", "reason", "checkpoint", *_NUMBERS, "folder")
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for place, each in enumerate(results, 1):
        numbers = (getattr(each, name) for name in _NUMBERS)
        writer.writerow(
            (place if each.is_ranked else "", each.trial.name, *each.trial.texts, each.state, each.reason, each.checkpoint)
            + (*(f"{value:.6g}" if math.isfinite(value) else "" for value in numbers), str(each.folder))
        )
    return out.getvalue()


def _cells(place: int, result: Result) -> tuple[str, ...]:
    def shown(value: float, form: str) -> str:
        return f"{value:{form}}" if math.isfinite(value) else ""

    return (
        str(place) if result.is_ranked else "-", *result.trial.texts,
        f"{result.accuracy:.2f} %" if math.isfinite(result.accuracy) else "", shown(result.loss, ".4g"), _epoch(result),
        shown(result.training_loss, ".4g"), _minutes(result),
        brief(f"{result.state}: {result.reason}") if result.reason else result.state,
    )  # fmt: skip


def _epoch(result: Result) -> str:
    return f"{result.epoch:.4g}" if math.isfinite(result.epoch) else result.checkpoint


def _minutes(result: Result) -> str:
    return "" if not math.isfinite(result.minutes) else f"{result.minutes:.{1 if result.minutes >= 1 else 2}f}"


def _rows(folder: Path, name: str) -> list[Row]:
    try:
        return run_tables.run_table(folder, name).read()
    except OSError:
        return []
