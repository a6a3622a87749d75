"""SVG charts: panels of curves, and panels of rows with bars and dots.

A panel is 440 pixels wide with 16-pixel text, so it is legible on a phone. A file with several panels has two columns, and
a wide panel extends over both; such a file is legible on a phone that is held sideways. Colours are inverted in dark mode.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from xml.sax.saxutils import escape, quoteattr

WIDTH, SIZE, EDGE = 440.0, 16, 14  # These are the width of a column, the font size and the margin in pixels.
COLUMNS = 2
STEP = 21  # This is the line height in pixels.
INK, SOFT, RULE, AXIS, PAPER = "#333", "#666", "#e4e4e4", "#888", "#fff"
PALE, BLUE, ORANGE, GREEN, PURPLE, SAND, RED = "#a9c4e4", "#1f5a99", "#c4561a", "#3b7d4f", "#8a5a99", "#d9a37e", "#c1121f"
GREY, LIGHT = "#adb5bd", "#eef0f2"
INVERTED = "filter:invert(.91) hue-rotate(180deg)"
_DARK = f"<style>@media(prefers-color-scheme:dark){{:root{{{INVERTED}}}}}</style>"
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_MOST_POINTS = 500  # A curve has at most about one point per pixel.
Points = list[tuple[float, float]]
Axis = tuple[float, float]


def span(values: Sequence[float], floor: float | None = None, count: int = 6, slack: float = 0.05) -> Axis:
    """Return the limits of an axis that shows all values. A limit moves out to the next tick if the tick is closer than
    `slack` times the distance between ticks."""
    finite = [v for v in values if math.isfinite(v)] + ([] if floor is None else [floor])
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if high - low <= 1e-9 * abs(high):
        low, high = (low, low + 1) if low == floor else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))
    step = _round_step(low, high, count)
    below, above = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return below if low - below <= slack * step else low, above if above - high <= slack * step else high


def _round_step(low: float, high: float, count: int) -> float:
    """Return the smallest step of the form 1, 2 or 5 × 10^n that divides the range into at most `count` intervals."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Return equidistant round numbers from low to high, with at most about `count` intervals between them."""
    step = _round_step(low, high, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


def escaped(text: str) -> str:
    """Return text escaped for XML. Characters that XML does not allow, for example in a directory name, become escapes such
    as \\x00."""
    return escape(_shown(text))


def _shown(text: str) -> str:
    return _NO_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def text_width(text: str, size: float = SIZE, weight: str = "normal") -> float:
    """Return the approximate width of a text in pixels."""
    return len(text) * size * (0.57 if weight == "bold" else 0.52)


def _text(
    x: float, y: float, text: str, anchor: str = "start", fill: str = INK, size: int = SIZE, weight: str = "normal"
) -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escaped(text)}</text>'


def _paragraph(
    text: str, y: float, width: float, size: int = SIZE, weight: str = "normal", fill: str = INK
) -> tuple[list[str], float]:
    """Return the SVG of a text, wrapped into lines below y, and the y below the last line."""
    most = int((width - 2 * EDGE) / text_width("x", size, weight))
    lines = textwrap.wrap(_shown(text), most, break_on_hyphens=False)
    parts = [_text(EDGE, y + STEP * k + 16, line, "start", fill, size, weight) for k, line in enumerate(lines)]
    return parts, y + STEP * len(lines)


@dataclass(frozen=True)
class Line:
    """A curve.

    `width` is the line width; with 0, only dots are drawn. `dots` is the relative size of the dots; with 0, there are none.
    If `trim` is true, the y axis may cut off the highest 2 % and the lowest 2 % of the points. The y axis may also cut off
    the first points, as long as they are above `ceiling`. If `last` is true, the legend shows the last value. If `filled` is
    true, the area down to 0 is filled.
    """

    label: str
    points: Points
    colour: str
    width: float = 2.2
    dots: float = 0
    dashed: bool = False
    trim: bool = False
    ceiling: float = math.inf
    last: bool = True
    filled: bool = False

    @property
    def words(self) -> str:
        """The text in the legend: the label and, if wanted, the last value."""
        if not self.last:
            return self.label
        last = next((y for _, y in reversed(self.points) if math.isfinite(y)), None)
        return f"{self.label} (none)" if last is None else f"{self.label} (last: {last:.4g})"

    @property
    def sample(self) -> str:
        """A sample of the curve for the legend."""
        dot = self._dot(12, 0) if self.dots else ""
        return f"<path d='M0,0H24' {self._pen}/>{dot}"

    @property
    def _pen(self) -> str:
        dashes = ' stroke-dasharray="5 3"' if self.dashed else ""
        return f'fill="none" stroke="{self.colour}" stroke-width="{self.width:g}"{dashes}'

    def _dot(self, x: float, y: float) -> str:
        # The dots of a wide line stay visible below the dots of the next line.
        radius = (self.dots or 1) * max(4.0, self.width / 2 + 2.9)
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{self.colour}" stroke="{PAPER}"/>'

    def scaling(self) -> list[float]:
        """Return the sorted values that the y axis must show."""
        finite = [y for _, y in self.points if math.isfinite(y)]
        values = sorted(list(dropwhile(lambda y: y > self.ceiling, finite)) or finite)
        cut = len(values) // 50 if self.trim else 0
        return values[cut : len(values) - cut]

    def draw(self, place: Callable[[float, float], tuple[float, float]]) -> Iterator[str]:
        """Yield the SVG of the curve, with a gap at each value that is not finite."""
        path, pen, shown = [], "M", thinned(self.points)
        for x, y in shown:
            if math.isfinite(y):
                path.append(pen + "{:.1f},{:.1f}".format(*place(x, y)))
            pen = "L" if math.isfinite(y) else "M"
        if self.filled:
            below = ("L{:.1f},{:.1f}".format(*place(shown[k][0], 0)) for k in (-1, 0))
            yield f'<path d="{"".join([*path, *below])}z" fill="{self.colour}"/>'
        elif path:
            yield f'<path d="{"".join(path)}" {self._pen}/>'
        if self.dots or len(path) == 1:
            yield from (self._dot(*place(x, y)) for x, y in shown if math.isfinite(y))


def thinned(points: Points) -> Points:
    """Return at most about _MOST_POINTS points that draw the same curve: its ends and gaps, and the minimum and maximum of
    each short piece."""
    if len(points) <= _MOST_POINTS:
        return points
    size, kept = math.ceil(2 * len(points) / _MOST_POINTS), {0, len(points) - 1}
    for first in range(0, len(points), size):
        piece = range(first, min(first + size, len(points)))
        finite = [k for k in piece if math.isfinite(points[k][1])]
        kept |= {choose(finite, key=lambda k: points[k][1]) for choose in (min, max) if finite}
        kept |= {*[k for k in piece if not math.isfinite(points[k][1])][:1]}
    return [points[k] for k in sorted(kept)]


ALL = -1  # A mark with this row number is drawn in every row.


@dataclass(frozen=True)
class Box:
    """A bar from x0 to x1 in a row, or a vertical line if x0 = x1.

    `label` is the text in the legend, and `tooltip` the text at the mouse pointer. `text` is drawn inside the bar if the bar
    has a tooltip and is wide enough. `thick` is the bar's height as a share of the row's height. `least` is the minimum
    width in pixels.
    """

    x0: float
    x1: float
    colour: str
    row: int = 0
    label: str = ""
    tooltip: str = ""
    text: str = ""
    opacity: float = 1
    thick: float = 0.85
    least: float = 0.4

    @property
    def fill(self) -> str:
        """The SVG attributes for colour and opacity."""
        return f'fill="{self.colour}"' + (f' opacity="{self.opacity:g}"' if self.opacity < 1 else "")

    @property
    def sample(self) -> str:
        """A sample of the bar for the legend."""
        wide, high = self.least if self.x0 == self.x1 else 16, 16 * self.thick
        return f'<path d="M{12 - wide / 2:g},{-high / 2:g}h{wide:g}v{high:g}h{-wide:g}z" {self.fill}/>'

    def outline(self, across: Callable[[float], float], top: float, height: float) -> str:
        """Return the bar's outline as an SVG path, in a row with this top and height."""
        x, width = across(self.x0), across(self.x1) - across(self.x0)
        wide, high = max(width, self.least), self.thick * height
        return f"M{x - (wide - width) / 2:.1f},{top + (height - high) / 2:.1f}h{wide:.1f}v{high:.1f}h{-wide:.1f}z"

    def draw(self, across: Callable[[float], float], top: float, height: float) -> str:
        """Return the SVG of the bar and its text."""
        width = across(self.x1) - across(self.x0)
        shape = f'<path d="{self.outline(across, top, height)}" {self.fill} stroke="{PAPER}" stroke-width="0.6"/>'
        if self.text and width > text_width(self.text) + 1.5:
            shape += _text(across(self.x0) + width / 2, top + height / 2 + 5, self.text, "middle", "#fefefe")
        return f"<g><title>{escaped(self.tooltip)}</title>{shape}</g>"


@dataclass(frozen=True)
class Dot:
    """A dot in a row at the value `x0`. The dot is `lift` pixels below the middle of the row."""

    x0: float
    colour: str
    row: int = 0
    label: str = ""
    opacity: float = 1
    lift: float = 0

    @property
    def x1(self) -> float:
        """An alias of `x0`, so that the axis treats dots and boxes alike."""
        return self.x0

    @property
    def sample(self) -> str:
        """A sample of the dot for the legend."""
        return self.draw(lambda _: 12, -self.lift, 0)

    def draw(self, across: Callable[[float], float], top: float, height: float) -> str:
        """Return the SVG of the dot, in a row with this top and height."""
        pen = f'r="6" fill="{self.colour}" stroke="{PAPER}" opacity="{self.opacity:g}"'
        return f'<circle cx="{across(self.x0):.1f}" cy="{top + height / 2 + self.lift:.1f}" {pen}/>'


@dataclass(frozen=True)
class Curves:
    """A panel of curves over a shared x axis. `x` is the name of the x axis, and `tick` formats the numbers on it; `y_tick`
    formats those on the y axis. `floor` is a value that the y axis must include. `height` is that of the curves in pixels.
    If `wide` is true, the panel is two columns wide."""

    title: str
    lines: Sequence[Line]
    x_axis: Axis
    floor: float | None = None
    x: str = "epoch"
    tick: Callable[[float], str] = "{:g}".format
    wide: bool = False
    y_tick: Callable[[float], str] = "{:g}".format
    height: float = 150

    @property
    def legend(self) -> list[tuple[str, str]]:
        """A (sample, text) pair for each curve with a label."""
        return [(line.sample, line.words) for line in self.lines if line.label]

    def draw(self, top: float, width: float) -> tuple[list[str], float]:
        """Return the SVG of axes and curves, drawn below y = `top`, and the y below the panel."""
        left, right, bottom, height = 64, width - 16, top + self.height + 11, self.height
        values, (x0, x1) = [y for line in self.lines for y in line.scaling()], self.x_axis
        y0, y1 = span(values, self.floor, 5, slack=1)

        # coordinates in the nested <svg>, which extends 7 pixels beyond the axes
        def place(x: float, y: float) -> tuple[float, float]:
            return 7 + (x - x0) / (x1 - x0) * (right - left), 7 + height - (y - y0) / (y1 - y0) * height

        bands = [(bottom - height, height)]
        parts = _x_axis(lambda x: left - 7 + place(x, y0)[0], self.x_axis, bottom, bands, self.tick, width)
        for tick in ticks(y0, y1, 5):
            y = bottom - height - 7 + place(x0, tick)[1]
            parts.append(f'<path d="M{left},{y:.1f}H{right}" stroke="{RULE}"/>')
            parts.append(_text(left - 8, y + 5, self.y_tick(tick), "end"))
        parts.append(f'<path d="M{left},{bottom:.1f}H{right}" stroke="{AXIS}"/>')
        # A nested <svg> clips the curves; a clip path would need an id that is unique on the page.
        frame = f'x="{left - 7}" y="{bottom - height - 7:.1f}" width="{right - left + 14}" height="{height + 14}"'
        parts += [f"<svg {frame}>", *(piece for line in self.lines for piece in line.draw(place)), "</svg>"]
        if not values:
            parts.append(_text((left + right) / 2, bottom - height / 2, "no rows yet", "middle"))
        return [*parts, _text((left + right) / 2, bottom + 38, self.x, "middle")], bottom + 46


@dataclass(frozen=True)
class Rows:
    """A panel of rows over a shared x axis.

    The names of the rows are left of the rows if all names are short, otherwise above. `x` is the name of the x axis. `tick`
    formats the numbers on the x axis; if it is None, the axis has no numbers. `height` is the height of a row in
    pixels. If `wide` is true, the panel is two columns wide.
    """

    title: str
    names: Sequence[str]
    marks: Sequence[Box | Dot]
    x: str = ""
    tick: Callable[[float], str] | None = "{:g}".format
    height: float = 26
    x_axis: Axis | None = None
    note: str = ""
    wide: bool = False

    @property
    def legend(self) -> list[tuple[str, str]]:
        """A (sample, text) pair for each label."""
        return list({mark.label: (mark.sample, mark.label) for mark in reversed(self.marks) if mark.label}.values())[::-1]

    def draw(self, top: float, width: float) -> tuple[list[str], float]:
        """Return the SVG of the rows, drawn below y = `top`, and the y below the panel."""
        names_left = all(len(name) <= 8 for name in self.names)
        left, right = EDGE + 62.0 * (names_left and any(self.names)), width - EDGE
        x0, x1 = self.x_axis or span([x for mark in self.marks for x in (mark.x0, mark.x1)])
        words: list[str] = []
        bands: list[tuple[float, float]] = []
        y = top + 6
        for name in self.names:
            lines, y = ([], y) if names_left else _paragraph(name, y, width)
            words += [_text(left - 8, y + self.height / 2 + 5, name, "end")] if names_left and name else lines
            bands.append((y, self.height))
            y += self.height + 6 * (not names_left)

        def across(x: float) -> float:
            return left + (min(max(x, x0), x1) - x0) / (x1 - x0) * (right - left)

        parts = _x_axis(across, (x0, x1), y, bands, self.tick, width) if self.tick else []
        plain: dict[str, str] = {}  # All bars of a colour without a tooltip share one path, which keeps the file small.
        for mark in self.marks:
            if isinstance(mark, Box) and not mark.tooltip:
                within = bands if mark.row == ALL else [bands[mark.row]]
                plain[mark.fill] = plain.get(mark.fill, "") + "".join(mark.outline(across, *band) for band in within)
        parts += [f'<path d="{outlines}" {fill}/>' for fill, outlines in plain.items()]
        parts += [mark.draw(across, *bands[mark.row]) for mark in self.marks if isinstance(mark, Dot) or mark.tooltip]
        y += 24 * bool(self.tick)
        if self.x:
            parts.append(_text((left + right) / 2, y + 14, self.x, "middle"))
            y += STEP
        note, y = _paragraph(self.note, y + 4, width, fill=SOFT)
        return [*words, *parts, *note], y


def _x_axis(
    across: Callable[[float], float],
    axis: Axis,
    bottom: float,
    bands: Sequence[Axis],
    tick: Callable[[float], str],
    width: float,
) -> list[str]:
    """Return the SVG of vertical grid lines through the bands, with numbers below. A band is (top, height)."""
    parts = []
    for value in ticks(*axis):
        x, name = across(value), tick(value)
        rules = "".join(f"M{x:.1f},{top:.1f}v{height:.1f}" for top, height in bands)
        parts.append(f'<path d="{rules}" stroke="{RULE}"/>')
        parts.append(_text(min(x, width - 4 - text_width(name) / 2), bottom + 19, name, "middle"))
    return parts


def _legend(entries: Sequence[tuple[str, str]], y: float, width: float) -> tuple[list[str], float]:
    """Return the SVG of a legend, wrapped to the width, and the y below it. An entry is (sample, text)."""
    parts: list[str] = []
    x = right = width - EDGE
    for sample, words in entries:
        needed = 44 + text_width(words)
        if x + needed - 14 > right:
            x, y = EDGE, y + STEP
        parts.append(f'<g transform="translate({x:.1f},{y - 10:.1f})">{sample}</g>')
        most = int((right - x - 30) / text_width("x"))
        parts.append(_text(x + 30, y - 5, words if len(words) <= most else f"{words[: most - 1]}…"))
        x += needed
    return parts, y


def figure(
    panels: Sequence[Curves | Rows], title: str = "", notes: Sequence[str] = (), alone: bool = True, zoom: float = 1
) -> str:
    """Return panels as one SVG: one panel in one column, several in two. If `alone` is true, the SVG is a file with a
    background; otherwise it is a part of an HTML page. A reader sees it `zoom` times as large."""
    columns = COLUMNS if len(panels) > 1 or any(panel.wide for panel in panels) else 1
    width = WIDTH * columns
    parts, y = _paragraph(title, 12.0 * bool(title), width, 18, "bold")
    for note in notes:
        lines, y = _paragraph(note, y, width, fill=SOFT)
        parts += lines
    ends = [y if parts else -10.0] * columns  # the y below the last panel of each column
    known: set[tuple[str, str]] = set()
    for panel in panels:
        top = max(ends) if panel.wide else min(ends)
        column, across = (0, width) if panel.wide else (ends.index(top), WIDTH)
        heading, y = _paragraph(panel.title, top + 16, across, weight="bold")
        legend, y = _legend([entry for entry in panel.legend if entry not in known], y, across)
        known |= {*panel.legend}
        drawn, y = panel.draw(y, across)
        shift = f'<g transform="translate({WIDTH * column:g},0)">' if column else "<g>"
        parts += [shift, *heading, *legend, *drawn, "</g>"]
        ends = [y] * columns if panel.wide else [y if k == column else end for k, end in enumerate(ends)]
    height = max(ends) + 8
    name = ", ".join(filter(None, (title, *notes))) or panels[0].title
    size = f'width="{zoom * width:g}" height="{zoom * height:g}" viewBox="0 0 {width:g} {height:g}"'
    named = f'role="img" aria-label={quoteattr(_shown(name))} font-family="Helvetica, Arial, DejaVu Sans, sans-serif"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {named}>'
    paper = f'<title>{escaped(name)}</title>{_DARK}<path d="M0,0H{width:g}V{height:g}H0z" fill="{PAPER}"/>'
    return "\n".join([head, *[paper] * alone, *parts, "</svg>\n"])
