"""A run as a picture: the learning-rate curve as text, and loss, accuracy and rate as one SVG file.

Draws the CSV's own columns and computes no statistics; needs no plotting library.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from base import bounds
from base.storage import files, input_files, tables
from harness.reports import svg

Rows = Sequence[Mapping[str, Any]]
Points = list[tuple[float, float]]

BLOCKS = " ▁▂▃▄▅▆▇█"
WIDTH, LEFT, RIGHT, TOP = 920, 78, 30, 72  # pixels: the picture, and the margins around its panels
PANEL, GAP, BOTTOM = 200, 62, 54  # pixels: height of a panel, space above the next, space under the last
_MARK, _CHARACTER = 52, 6.6  # pixels of a legend: a line's sample with the space around it, a letter
PALE, BLUE, ORANGE, GREEN = "#a9c4e4", "#1f5a99", "#c4561a", "#3b7d4f"
COLOURS = ((PALE, 6.0), (BLUE, 2.2), (ORANGE, 2.2), (GREEN, 2.2))  # of runs in one picture, and widths: none hides the first


def text_curve(rate: Callable[[int], float], iterations: int, epochs: float, width: int = 60, height: int = 8) -> str:
    """The learning rate over the run: `width` × `height` characters between its axes."""
    edges = [min(c * iterations // width, iterations - 1) for c in range(width)] + [iterations]
    columns = [range(a, max(a + 1, b), max(1, (b - a) // 16)) for a, b in pairwise(edges)]
    tops = [max((_number(rate(i)), -i) for i in column) for column in columns]
    # A sampled maximum can miss the tip of the warm-up, so every update around it is looked at.
    near, reach = -max(tops)[1], iterations // width // 16 + 1
    peak, at = max((_number(rate(i)), -i) for i in range(max(0, near - reach), min(iterations, near + reach + 1)))
    eighths = [max(1, round(8 * height * top / peak)) if top > 0 else 0 for top, _ in tops]
    labels = {height - 1: peak, height // 2 - 1: peak * (height // 2) / height}
    lines = [f"learning rate: {peak:.4g} at its peak (epoch {-at * epochs / iterations:.4g}), "
             f"{rate(iterations - 1):.4g} at the last of {iterations:,} updates"]  # fmt: skip
    for row in reversed(range(height)):
        axis = f"{labels[row]:>9.4g} ┤" if row in labels else " " * 10 + "│"
        lines.append((axis + "".join(BLOCKS[min(8, max(0, e - 8 * row))] for e in eighths)).rstrip())
    return "\n".join(lines + _text_axis(epochs, width))


def _text_axis(epochs: float, width: int) -> list[str]:
    line, names = ["─"] * (width + 1), [" "] * (width + 20)
    for tick in svg.ticks(0, epochs, max(2, width // 9)):
        name, line[round(tick / epochs * width)] = f"{tick:g}", "┬"
        start = round(tick / epochs * width) + 10 - len(name) // 2
        names[start : start + len(name)] = name
    return [" " * 8 + "0 └" + "".join(line[1:]), "".join(names).rstrip() + "  epochs"]


def run_svg(training_rows: Rows, validation_rows: Rows, title: str) -> str:
    """Loss, top-1 accuracy and learning rate over the epochs, from rows with the CSV's columns."""
    batch, average = points(training_rows, "loss_batch"), points(training_rows, "loss_avg")
    training, validation = points(training_rows, "train_acc_avg"), of_epochs(validation_rows)
    panels = (
        Panel("Loss", (Line("each host step", PALE, 1.2, batch, outliers=True),
                       Line("average over an epoch", BLUE, 2.4, average))),
        Panel("Top-1 accuracy, %", (Line("training, average over an epoch", BLUE, 2.4, training),
                                    Line("validation", ORANGE, 2, validation, dots=True)), floor=0),
        Panel("Learning rate", (Line("at each log row", GREEN, 2.4, points(training_rows, "lr")),), floor=0),
    )  # fmt: skip
    return _page(panels, title)


def comparison_svg(runs: Sequence[tuple[str, Rows, Rows]], title: str) -> str:
    """The curves of several runs: (label, training rows, validation rows) each."""
    named = [(label, pen, *rows) for (label, *rows), pen in zip(runs, COLOURS)]
    panels = (
        Panel("Training loss", tuple(Line(n, *c, points(t, "loss_batch"), outliers=True) for n, c, t, _ in named)),
        Panel("Training, %", tuple(Line(n, *c, points(t, "train_acc_batch")) for n, c, t, _ in named), floor=0),
        Panel("Validation, %", tuple(Line(n, *c, of_epochs(v), dots=True) for n, c, _, v in named), floor=0),
    )
    return _page(tuple(panel for panel in panels if any(line.points for line in panel.lines)), title)


def write_comparison(runs: Sequence[tuple[str, Path]], title: str, target: Path) -> Path:
    """Draws (label, run folder) into one picture, in a folder that is made if need be."""
    rows = [(label, _read(folder / "training.csv"), _read(folder / "validation.csv")) for label, folder in runs]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(files.encoded(comparison_svg(rows, title)))
    return target


def _page(panels: tuple[Panel, ...], title: str) -> str:
    """Panels below each other, on one axis of epochs."""
    x_axis = svg.span([x for panel in panels for line in panel.lines for x, _ in line.points], floor=0, count=10)
    height = TOP + len(panels) * (PANEL + GAP) - GAP + BOTTOM
    drawn = [part for k, panel in enumerate(panels) for part in panel.draw(TOP + k * (PANEL + GAP), x_axis)]
    return svg.document(WIDTH, height, [
        svg.text(LEFT, 30, title[:100], size=16 if len(title) <= 72 else 12, weight="bold"),
        *drawn, svg.text((LEFT + WIDTH - RIGHT) / 2, height - 14, "epoch", anchor="middle"),
    ])  # fmt: skip


def write_run_svg(run_dir: str | Path) -> Path:
    """Draw a run's `training.csv` and `validation.csv` as its `training.svg`, whole or not at all."""
    folder = Path(run_dir)
    picture = run_svg(_read(folder / "training.csv"), _read(folder / "validation.csv"), folder.resolve().name)
    target = folder / "training.svg"
    files.write_atomically(target, picture)
    return target


@dataclass(frozen=True)
class Line:
    """A line of a panel. `outliers`: its extreme points leave the picture instead of stretching the axis."""

    label: str
    colour: str
    width: float
    points: Points
    dots: bool = False
    outliers: bool = False

    def scaling(self) -> list[float]:
        """The values that the axis must show."""
        values = sorted(y for _, y in self.points if math.isfinite(y))
        cut = len(values) // 50 if self.outliers else 0
        return values[cut : len(values) - cut]

    def draw(self, place: Callable[[float, float], tuple[float, float]]) -> Iterator[str]:
        path, pen = [], "M"
        for x, y in self.points:
            if math.isfinite(y):
                path.append(pen + "{:.1f},{:.1f}".format(*place(x, y)))
            pen = "L" if math.isfinite(y) else "M"  # a value that is not a number breaks the line
        if path:
            yield f'<path d="{"".join(path)}" fill="none" stroke="{self.colour}" stroke-width="{self.width}"/>'
        for x, y in self.points:
            if math.isfinite(y) and (self.dots or len(path) == 1):
                yield (
                    '<circle cx="{:.1f}" cy="{:.1f}" r="4" '.format(*place(x, y)) + f'fill="{self.colour}" stroke="#fff"/>'
                )


@dataclass(frozen=True)
class Panel:
    """Axes, and the lines in them."""

    title: str
    lines: tuple[Line, ...]
    floor: float | None = None

    def draw(self, top: float, x_axis: tuple[float, float]) -> Iterator[str]:
        right, bottom, (x0, x1) = WIDTH - RIGHT, top + PANEL, x_axis
        y0, y1 = svg.span([y for line in self.lines for y in line.scaling()], self.floor, slack=1)

        def place(x: float, y: float) -> tuple[float, float]:
            return LEFT + (x - x0) / (x1 - x0) * (right - LEFT), bottom - (y - y0) / (y1 - y0) * PANEL

        yield svg.text(LEFT, top - 12, self.title, weight="bold")
        for tick in svg.ticks(x0, x1, 10):
            x, _ = place(tick, y0)
            yield svg.rule(x, top, x, bottom) + svg.text(x, bottom + 17, f"{tick:g}", anchor="middle")
        for tick in svg.ticks(y0, y1, 6):
            _, y = place(x0, tick)
            yield svg.rule(LEFT, y, right, y) + svg.text(LEFT - 8, y + 4, f"{tick:g}", anchor="end")
        yield svg.rule(LEFT, bottom, right, bottom, "#888")
        # A nested picture cuts off what leaves the panel, without an identifier that could clash on a page.
        yield f'<svg x="{LEFT - 5}" y="{top - 5}" width="{right - LEFT + 10}" height="{PANEL + 10}">'
        for line in self.lines:
            yield from line.draw(lambda x, y: (place(x, y)[0] - LEFT + 5, place(x, y)[1] - top + 5))
        yield "</svg>"
        if not any(line.scaling() for line in self.lines):
            yield svg.text((LEFT + right) / 2, (top + bottom) / 2, "no rows yet", anchor="middle")
        for line, (x, told) in zip(self.lines, self._legend(LEFT + 150, right)):
            yield f'<rect x="{x:g}" y="{top - 18}" width="20" height="{line.width + 1}" fill="{line.colour}"/>'
            yield svg.text(x + 28, top - 12, told)

    def _legend(self, left: float, right: float) -> list[tuple[float, str]]:
        """Return where each line's entry begins, its name and its last value: at even distances if the entries fit,
        else one after another, with less said where there is no room for it."""
        even = min(370.0, (right - left) / len(self.lines))
        entries = self._entries(" (last: {:.4g})")
        if max(map(_width, entries)) <= even:
            return [(left + even * k, told) for k, told in enumerate(entries)]
        for form in (" (last: {:.4g})", ": {:.4g}", ""):
            entries = self._entries(form)
            if sum(map(_width, entries)) <= right - left:
                break
        return list(zip(accumulate(map(_width, entries), initial=left), entries))

    def _entries(self, form: str) -> list[str]:
        return [line.label + (form.format(line.points[-1][1]) if line.points else " (none)") for line in self.lines]


def _width(told: str) -> float:
    """Pixels of a legend's entry."""
    return _MARK + len(told) * _CHARACTER


def of_epochs(rows: Rows, column: str = "val_acc") -> Points:
    """A measure of validation. Averaged weights have no place on the epoch axis; their rows carry a negative iteration."""
    return sorted(p for p in points(rows, column) if p[0] >= 0 and math.isfinite(p[1]))


def points(rows: Rows, column: str) -> Points:
    """The values of a column over the epochs; nan where a value is no number, nothing where the epoch is none."""
    pairs = [(_number(row.get("epoch"), math.nan), _number(row.get(column), math.nan)) for row in rows]
    return [(x, y) for x, y in pairs if math.isfinite(x)]


def _number(value: Any, otherwise: float = 0.0) -> float:
    """Return a value as a number that an axis can show: 0 where it is nearer to 0 than 1e-30; `otherwise` where it is no
    number, or beyond 1e30."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return otherwise
    if abs(number) < 1e-30:
        return 0.0
    return number if abs(number) <= 1e30 else otherwise


def _read(path: Path) -> Rows:
    """The rows of a CSV; ValueError, with the file named, if they cannot be read."""
    try:
        text = input_files.content(path, tables.MOST_BYTES).decode("utf-8")
        return list(csv.DictReader(text.splitlines()))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read: {bounds.reason(error)}") from None
