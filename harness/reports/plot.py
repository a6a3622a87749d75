"""A run as a picture: the learning-rate curve as text, and loss, accuracy and rate as one SVG file.

Draws the CSV's own columns and computes no statistics; needs no plotting library.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any

from base import bounds
from base.storage import files, input_files, tables
from harness.reports import output, svg, validated_rows
from LR_Schedules._schedule import highest

Rows = Sequence[Mapping[str, Any]]
Points = list[tuple[float, float]]

BLOCKS = " ▁▂▃▄▅▆▇█"
LEFT, RIGHT, EDGE = 64, 16, 14  # pixels: margins around a panel's axes, and around texts
PANEL, GAP, BOTTOM = 150, 34, 46  # pixels: height of a panel's axes, space above the next panel, space under the last
PALE, BLUE, ORANGE, GREEN = "#a9c4e4", "#1f5a99", "#c4561a", "#3b7d4f"
COLOURS = ((PALE, 6.0), (BLUE, 2.2), (ORANGE, 2.2), (GREEN, 2.2))  # of runs in one picture, and widths: none hides the first


def text_curve(
    learning_rate: Callable[[int], float], iterations: int, epochs: float, width: int = 60, height: int = 8
) -> str:
    """The learning rate over the run: `width` × `height` characters between its axes."""
    edges = [min(c * iterations // width, iterations - 1) for c in range(width)] + [iterations]
    columns = [range(a, max(a + 1, b), max(1, (b - a) // 16)) for a, b in pairwise(edges)]
    tops = [max(_number(learning_rate(i), least=0) for i in column) for column in columns]
    peak, at = highest(lambda i: _number(learning_rate(i), least=0), iterations)
    eighths = [max(1, round(8 * height * top / peak)) if top > 0 else 0 for top in tops]
    labels = {height - 1: peak, height // 2 - 1: peak * (height // 2) / height}
    lines = [f"learning rate: {peak:.4g} at its peak (epoch {at * epochs / iterations:.4g}), "
             f"{learning_rate(iterations - 1):.4g} at the last of {iterations:,} updates"]  # fmt: skip
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


def run_svg(training_rows: Rows, validation_rows: Rows, title: str, name: str = "") -> str:
    """Loss, top-1 accuracy and learning rate over the epochs, from rows with the CSV's columns. `name`: of the run."""
    batch, average = points(training_rows, "loss_batch"), points(training_rows, "loss_avg")
    training, validation = points(training_rows, "train_acc_avg"), of_epochs(validation_rows)
    loss = of_epochs(validation_rows, "loss")
    panels = (
        Panel("Loss", (Line("each host step", PALE, 1.2, batch, outliers=True),
                       Line("average over an epoch", BLUE, 2.4, average),
                       Line("validation", ORANGE, 2, loss, dots=True, ceiling=loss_ceiling(average)))),
        Panel("Top-1 accuracy, %", (Line("training, over an epoch", BLUE, 2.4, training),
                                    Line("validation", ORANGE, 2, validation, dots=True)), floor=0),
        Panel("Learning rate", (Line("at each log row", GREEN, 2.4, points(training_rows, "lr")),), floor=0),
    )  # fmt: skip
    return _page(panels, title, _best(training, validation_rows), name)


def loss_ceiling(training: Points) -> float:
    """The validation's loss that the first checkpoints may exceed, whose norms have not settled, without flattening the
    curves: 1.5 times the training's."""
    return 1.5 * max((y for _, y in training if math.isfinite(y)), default=math.inf)


def _best(training: Points, validation: Rows) -> str:
    """The best accuracy of a run and its place, in words; an empty text if nothing is known."""
    placed = [row for row in validation if of_epochs([row])]
    if placed:
        ((epoch, value),) = of_epochs(validated_rows.ranked(placed)[:1])
        return f"best validation top-1: {value:.2f} % at epoch {epoch:.4g}"
    return f"training top-1: {training[-1][1]:.2f} %, not validated" if training else ""


def comparison_svg(runs: Sequence[tuple[str, Rows, Rows]], title: str) -> str:
    """The curves of several runs: (label, training rows, validation rows) each."""
    named = [(label, pen, whole_steps(t), v) for (label, t, v), pen in zip(runs, COLOURS)]
    panels = (
        Panel("Training loss", tuple(Line(n, *c, points(t, "loss_batch"), outliers=True) for n, c, t, _ in named)),
        Panel("Training accuracy, %", tuple(Line(n, *c, points(t, "train_acc_batch")) for n, c, t, _ in named), floor=0),
        Panel("Validation accuracy, %", tuple(Line(n, *c, of_epochs(v), dots=True) for n, c, _, v in named), floor=0),
    )
    return _page(tuple(panel for panel in panels if any(line.points for line in panel.lines)), title)


def whole_steps(rows: Rows) -> Rows:
    """The rows without the last one, if it is of less than half the updates of the one before: the rest of a training, of
    whose few batches a last value in a legend would tell more than of the network."""
    ends = [_number(row.get("iteration"), math.nan) for row in rows[-3:]]
    return rows[:-1] if len(ends) == 3 and ends[2] - ends[1] < (ends[1] - ends[0]) / 2 else rows


def write_comparison(
    runs: Sequence[tuple[str, Path]], title: str, target: Path, replaces: Sequence[str] = output.PICTURE
) -> Path:
    """Draw (label, run folder) into one picture, in a folder that is made if need be; OptionError where it cannot be.
    `replaces`: how files begin whose place it may take."""
    rows = [(label, _read(folder / "training.csv"), _read(folder / "validation.csv")) for label, folder in runs]
    target.parent.mkdir(parents=True, exist_ok=True)
    output.write_atomically(str(target), comparison_svg(rows, title), replaces)
    return target


def _page(panels: tuple[Panel, ...], title: str, subtitle: str = "", name: str = "") -> str:
    """Panels below each other, on one axis of epochs."""
    x_axis = svg.span([x for panel in panels for line in panel.lines for x, _ in line.points], floor=0, count=6)
    room = svg.WIDTH - 2 * EDGE
    heading, below = svg.wrapped(title, room, 18, "bold") if title else [], [part for part in (subtitle, name) if part]
    parts = svg.paragraph(EDGE, 28, heading, size=18, weight="bold")
    y = 28.0 + 21 * len(heading)
    for line in (line for part in below for line in svg.wrapped(part, room)):
        parts.append(svg.text(EDGE, y, line, fill=svg.SOFT))
        y += 21
    for panel in panels:
        drawn, y = panel.draw(y + 14, x_axis)
        parts += drawn
        y += GAP
    height = y - GAP + BOTTOM
    parts.append(svg.text((LEFT + svg.WIDTH - RIGHT) / 2, height - 8, "epoch", anchor="middle"))
    return svg.document(svg.WIDTH, height, parts, ", ".join(filter(None, (title, *below))))


def write_run_svg(run_dir: str | Path, title: str = "") -> Path:
    """Draw a run's `training.csv` and `validation.csv` as its `training.svg`, whole or not at all. `title`: the run in
    words, beside the folder's name."""
    folder = Path(run_dir)
    name = folder.resolve().name
    words = (title, name) if title else (name,)
    target = folder / "training.svg"
    files.write_atomically(target, run_svg(_read(folder / "training.csv"), _read(folder / "validation.csv"), *words))
    return target


@dataclass(frozen=True)
class Line:
    """A line of a panel. `outliers`: its extreme points leave the picture instead of stretching the axis, and so do the
    points above `ceiling` that come before all others."""

    label: str
    colour: str
    width: float
    points: Points
    dots: bool = False
    outliers: bool = False
    ceiling: float = math.inf

    @property
    def radius(self) -> float:
        """Pixels of a dot: more than the line's width, so that a wide line's dots show around those of the next one."""
        return max(4.0, self.width / 2 + 2.9)

    @property
    def sample(self) -> str:
        """A piece of the line for a legend."""
        dot = f'<circle cx="12" r="{self.radius:g}" fill="{self.colour}" stroke="{svg.PAPER}"/>' if self.dots else ""
        return f'<rect y="{-self.width / 2:g}" width="24" height="{self.width + 0.6:g}" fill="{self.colour}"/>{dot}'

    def words(self) -> str:
        """The line's name with its last value."""
        return f"{self.label} (last: {self.points[-1][1]:.4g})" if self.points else f"{self.label} (none)"

    def scaling(self) -> list[float]:
        """The values that the axis must show."""
        finite = [y for _, y in self.points if math.isfinite(y)]
        values = sorted(list(dropwhile(lambda y: y > self.ceiling, finite)) or finite)
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
                spot = 'cx="{:.1f}" cy="{:.1f}"'.format(*place(x, y))
                yield f'<circle {spot} r="{self.radius:g}" fill="{self.colour}" stroke="{svg.PAPER}"/>'


@dataclass(frozen=True)
class Panel:
    """Axes, and the lines in them."""

    title: str
    lines: tuple[Line, ...]
    floor: float | None = None

    def draw(self, top: float, x_axis: tuple[float, float]) -> tuple[list[str], float]:
        """Title, legend, axes and lines below each other from a height on; and the height at which the axes end."""
        named, y = svg.legend([(line.sample, line.words()) for line in self.lines], EDGE, top + 37, svg.WIDTH - EDGE)
        top_of_axes = y - 8
        return [
            svg.text(EDGE, top + 14, self.title, weight="bold"),
            *named,
            *self._axes(top_of_axes, x_axis),
        ], top_of_axes + PANEL

    def _axes(self, top: float, x_axis: tuple[float, float]) -> Iterator[str]:
        right, bottom, (x0, x1) = svg.WIDTH - RIGHT, top + PANEL, x_axis
        y0, y1 = svg.span([y for line in self.lines for y in line.scaling()], self.floor, 5, slack=1)

        def place(x: float, y: float) -> tuple[float, float]:
            return LEFT + (x - x0) / (x1 - x0) * (right - LEFT), bottom - (y - y0) / (y1 - y0) * PANEL

        for tick in svg.ticks(x0, x1, 6):
            x, _ = place(tick, y0)
            yield svg.rule(x, top, x, bottom) + svg.text(x, bottom + 19, f"{tick:g}", anchor="middle")
        for tick in svg.ticks(y0, y1, 5):
            _, y = place(x0, tick)
            yield svg.rule(LEFT, y, right, y) + svg.text(LEFT - 8, y + 5, f"{tick:g}", anchor="end")
        yield svg.rule(LEFT, bottom, right, bottom, svg.AXIS)
        # A nested picture cuts off what leaves the panel, without an identifier that could clash on a page.
        yield f'<svg x="{LEFT - 7}" y="{top - 7}" width="{right - LEFT + 14}" height="{PANEL + 14}">'
        for line in self.lines:
            yield from line.draw(lambda x, y: (place(x, y)[0] - LEFT + 7, place(x, y)[1] - top + 7))
        yield "</svg>"
        if not any(line.scaling() for line in self.lines):
            yield svg.text((LEFT + right) / 2, (top + bottom) / 2, "no rows yet", anchor="middle")


def of_epochs(rows: Rows, column: str = "val_acc") -> Points:
    """A measure of validation. Averaged weights have no place on the epoch axis; their rows carry a negative iteration."""
    return sorted(p for p in points(rows, column) if p[0] >= 0 and math.isfinite(p[1]))


def points(rows: Rows, column: str) -> Points:
    """The values of a column over the epochs; nan where a value is no number, nothing where the epoch is none."""
    pairs = [(_number(row.get("epoch"), math.nan), _number(row.get(column), math.nan)) for row in rows]
    return [(x, y) for x, y in pairs if math.isfinite(x)]


def _number(value: Any, otherwise: float = 0.0, least: float = 1e-30) -> float:
    """Return a value as a number that an axis can show: 0 where it is nearer to 0 than `least`; `otherwise` where it is no
    number, or beyond 1e30."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return otherwise
    if abs(number) < least:
        return 0.0
    return number if abs(number) <= 1e30 else otherwise


def _read(path: Path) -> Rows:
    """The rows of a CSV; ValueError, with the file named, if they cannot be read."""
    try:
        text = input_files.content(path, tables.MAX_BYTES).decode("utf-8")
        return list(csv.DictReader(text.splitlines()))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read: {bounds.reason(error)}") from None
