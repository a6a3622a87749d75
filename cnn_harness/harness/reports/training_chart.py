"""Draw charts of a run from its CSV files: loss, accuracy and learning rate as SVG, and the learning rate as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from cnn_harness.base.storage import files
from cnn_harness.base.storage.tables import TABLES, run_table
from cnn_harness.harness.reports import chart
from cnn_harness.harness.reports.chart import BLUE, GREEN, ORANGE, PALE, PURPLE, RED, SAND, Curves, Line, Points
from cnn_harness.harness.run import recorded_arguments, validations
from cnn_harness.LR_Schedules._schedule import highest

Rows = Sequence[Mapping[str, Any]]
# Names in titles. Data sets of plug-ins are not in this table and keep the value of --dataset.
_DATA = {
    "fashion-mnist": "Fashion-MNIST", "fashion-mnist-full": "all of Fashion-MNIST", "cifar-10": "CIFAR-10",
    "cifar-100": "CIFAR-100", "imagenet": "ImageNet", "imagefolder": "a folder of images",
}  # fmt: skip
BLOCKS = " ▁▂▃▄▅▆▇█"
# Colour and line width of each run in a chart. The first line is wide, so it stays visible below the other lines.
PENS = ((PALE, 6.0), *((colour, 2.2) for colour in (BLUE, ORANGE, GREEN, PURPLE, SAND, RED, "#00808a")))
# Each panel has a title, a column of training.csv, a column of validation.csv, and a value that the y axis must include.
_COMPARED = (
    ("Training loss", "loss_batch", "", None),
    ("Validation loss", "", "loss", None),
    ("Training accuracy, %", "train_acc_batch", "", 0.0),
    ("Validation accuracy, %", "", "val_acc", 0.0),
    ("Learning rate", "lr", "", 0.0),
)


def run_title(options: Mapping[str, Any]) -> str:
    """Return a title such as "ResNet-14 on Fashion-MNIST" for a run with these options; "" if the network is unknown."""
    data, network = options.get("dataset"), recorded_arguments.network_title(options)
    return network and f"{network} on {_DATA.get(data, data) if data else 'unknown data'}"


def text_curve(
    learning_rate: Callable[[int], float], iterations: int, epochs: float, width: int = 60, height: int = 8
) -> str:
    """Return the learning rate over a run as text: `width` × `height` characters between the axes."""
    edges = [min(c * iterations // width, iterations - 1) for c in range(width)] + [iterations]
    columns = [range(a, max(a + 1, b), max(1, (b - a) // 16)) for a, b in pairwise(edges)]

    def rate(update: int) -> float:  # 0 for values that an axis cannot show, such as infinity
        return value if 0 < (value := learning_rate(update)) <= 1e30 else 0.0

    tops = [max(map(rate, column)) for column in columns]
    peak, at = highest(rate, iterations)
    eighths = [max(1, round(8 * height * top / peak)) if top > 0 else 0 for top in tops]
    labels = {height - 1: peak, height // 2 - 1: peak * (height // 2) / height}
    updates = f"{iterations:,} update{'s' * (iterations > 1)}"
    lines = [f"learning rate: peak {peak:.4g} (epoch {at * epochs / iterations:.4g}), "
             f"{learning_rate(iterations - 1):.4g} at the last of {updates}"]  # fmt: skip
    for row in reversed(range(height)):
        axis = f"{labels[row]:>9.4g} ┤" if row in labels else " " * 10 + "│"
        lines.append((axis + "".join(BLOCKS[min(8, max(0, e - 8 * row))] for e in eighths)).rstrip())
    return "\n".join(lines + _text_axis(epochs, width))


def _text_axis(epochs: float, width: int) -> list[str]:
    line, names = ["─"] * (width + 1), [" "] * (width + 20)
    for tick in chart.ticks(0, epochs, max(2, width // 9)):
        name, line[round(tick / epochs * width)] = f"{tick:g}", "┬"
        start = round(tick / epochs * width) + 10 - len(name) // 2
        names[start : start + len(name)] = name
    return [" " * 8 + "0 └" + "".join(line[1:]), "".join(names).rstrip() + "  epochs"]


def run_svg(training_rows: Rows, validation_rows: Rows, title: str, name: str = "") -> str:
    """Return the chart of a run as SVG. The rows are those of training.csv and validation.csv."""
    notes = filter(None, (_best(points(training_rows, "train_acc_avg"), validation_rows), name))
    return chart.figure(run_panels(training_rows, validation_rows), title, list(notes))


def run_panels(training: Rows, validation: Rows) -> list[Curves]:
    """Return panels of loss, top-1 accuracy and learning rate over the epochs."""
    average = points(training, "loss_avg")
    return _panels(
        ("Loss", None, (
            Line("each host step", points(training, "loss_batch"), PALE, 1.2, trim=True),
            Line("average over an epoch", average, BLUE),
            Line("validation", validation_points(validation, "loss"), ORANGE, dots=True, ceiling=_ceiling(training)))),
        ("Top-1 accuracy, %", 0.0, (
            Line("training, average over an epoch", points(training, "train_acc_avg"), BLUE),
            Line("validation", validation_points(validation), ORANGE, dots=True))),
        ("Learning rate", 0.0, [Line("at each logged step", points(training, "lr"), GREEN)]),
    )  # fmt: skip


def comparison_panels(runs: Sequence[tuple[str, Rows, Rows]]) -> list[Curves]:
    """Return a panel for each metric that at least one run has. A run is (label, training rows, validation rows)."""
    panels: list[tuple[str, float | None, Sequence[Line]]] = []
    for title, trained, validated, floor in _COMPARED:
        lines = []
        for k, (label, training, validation) in enumerate(runs):
            values = points(whole_steps(training), trained) if trained else validation_points(validation, validated)
            pen, again = PENS[k % len(PENS)], k >= len(PENS)
            most = _ceiling(training) if validated == "loss" else math.inf
            lines.append(Line(label, values, *pen, bool(validated), again, trained == "loss_batch", most))
        panels.append((title, floor, lines))
    return _panels(*([panel for panel in panels if any(line.scaling() for line in panel[2])] or panels[:1]))


def _ceiling(training: Rows) -> float:
    """Return the loss above which the axis ignores the first validations. Early in a run, the moving statistics of batch
    norm are inaccurate, and the resulting high validation loss would flatten all curves."""
    return 1.5 * max((y for _, y in points(training, "loss_avg") if math.isfinite(y)), default=math.inf)


def _panels(*panels: tuple[str, float | None, Sequence[Line]]) -> list[Curves]:
    """Return panels with the same x axis of epochs. A panel is (title, value that the y axis must include, lines)."""
    epochs = chart.span([x for _, _, lines in panels for line in lines for x, _ in line.points], floor=0)
    return [Curves(title, lines, epochs, floor) for title, floor, lines in panels]


def _best(training: Points, validation: Rows) -> str:
    """Return a note on the best accuracy of a run and its epoch; "" without rows."""
    placed = [row for row in validation if validation_points([row])]
    if placed:
        ((epoch, value),) = validation_points(validations.ranked(placed)[:1])
        return f"best validation top-1: {value:.2f} % at epoch {epoch:.4g}"
    return f"training top-1: {training[-1][1]:.2f} %, not validated" if training else ""


def whole_steps(rows: Rows) -> Rows:
    """Return the rows, without the last row if it covers less than half as many updates as the row before. A mean over so
    few batches would be a misleading last value in the legend."""
    ends = [number(row, "iteration") for row in rows[-3:]]
    return rows[:-1] if len(ends) == 3 and ends[2] - ends[1] < (ends[1] - ends[0]) / 2 else rows


def write_run_svg(folder: Path, title: str = "") -> Path:
    """Write the chart of a run to training.svg in its directory, and return the path. Without a title, the directory's name
    is the title; otherwise it is below the title."""
    target, names = folder / "training.svg", [*[title] * bool(title), folder.resolve().name]
    files.write_atomically(target, run_svg(*tables(folder), *names))
    return target


def tables(folder: Path) -> tuple[Rows, Rows]:
    """Return the rows of training.csv and of validation.csv in a run directory."""
    training, validation = (run_table(folder, name).read() for name in TABLES)
    return training, validation


def validation_points(rows: Rows, column: str = "val_acc") -> Points:
    """Return (epoch, value) of a validation metric. Averaged weights belong to no epoch and are left out."""
    return sorted(p for p in points(rows, column) if p[0] >= 0 and math.isfinite(p[1]))


def points(rows: Rows, column: str) -> Points:
    """Return (epoch, value) for each row that has an epoch. The value is nan if the cell is empty."""
    pairs = [(number(row, "epoch"), number(row, column)) for row in rows]
    return [(x, y) for x, y in pairs if math.isfinite(x)]


def number(row: Mapping[str, Any], column: str) -> float:
    """Return a cell as a number; nan if it is missing, empty or too large for an axis."""
    cell = row.get(column)
    value = math.nan if cell in (None, "") else float(cell)
    return value if abs(value) <= 1e30 else math.nan
