"""Charts that a phone shows legibly, in the colours of the page, which are others in the dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from harness.report_page import markup, scores
from harness.reports import svg
from harness.reports.plot import Line, Points

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400.0, 270.0, 58.0, 12.0, 34.0, 44.0  # pixels
_SIZE = 15  # of letters, so that they are 12 pixels high on a screen of 375 at least
_MAX_POINTS = 500  # of a curve: about one for each pixel
_DASHES = "5 3"


@dataclass(frozen=True)
class Curve:
    """A curve of a chart. `colour`: a number of the page's colours, or -1 for the pale one; `outliers`, `ceiling`: as of
    the line that draws it."""

    label: str
    points: Points
    colour: int = 0
    width: float = 2.2
    dots: bool = False
    dashed: bool = False
    outliers: bool = False
    ceiling: float = math.inf

    @property
    def stroke(self) -> str:
        """The colour as the page's style sheet has it."""
        return f"var(--c{self.colour % markup.COLOURS})" if self.colour >= 0 else "var(--pale)"

    @property
    def dashes(self) -> str:
        """The attribute of a dashed curve: of training where validation is drawn too, and beyond the page's colours."""
        return f' stroke-dasharray="{_DASHES}"' if self.dashed or self.colour >= markup.COLOURS else ""

    @property
    def line(self) -> Line:
        """The line that draws the curve."""
        return Line(self.label, self.stroke, self.width, thinned(self.points), self.dots, self.outliers, self.ceiling)


def of(title: str, curves: Sequence[Curve], x_axis: tuple[float, float], floor: float | None = None, unit: str = "") -> str:
    """A figure of curves over epochs, with a legend that wraps; an empty text if no curve has a point."""
    curves = [curve for curve in curves if any(math.isfinite(y) for _, y in curve.points)]
    if not curves:
        return ""
    lines = [(curve.line, curve) for curve in curves]
    y_axis = svg.span([y for line, _ in lines for y in line.scaling()], floor, slack=1)
    parts = [*_axes(x_axis, y_axis, "epoch"), *_clipped(_drawn(lines, x_axis, y_axis))]
    legend = "".join(f"<li>{_sample(curve)}{escape(_told(curve, unit))}</li>" for curve in curves)
    return f'<figure>{_picture(title, parts)}<ul class="legend">{legend}</ul></figure>'


def epochs(curves: Iterable[Curve]) -> tuple[float, float]:
    """The axis of epochs that charts share."""
    return svg.span([x for curve in curves for x, _ in curve.points], floor=0, count=5)


def calibration(bins: Sequence[scores.Bin]) -> str:
    """The shares of right answers over their probabilities, with intervals; below them how many answers there are."""
    axis, most = (0.0, 100.0), max(each.right.count for each in bins)

    def parts() -> Iterator[str]:
        yield from _axes(axis, axis, "probability of the answer, %")
        for each in bins:
            x, base = _place(100 * each.mean, 0, axis, axis)
            height = 46 * each.right.count / most
            yield f'<rect x="{x - 6:.1f}" y="{base - height:.1f}" width="12" height="{height:.1f}" fill="var(--pale)"/>'
        ends = _place(0, 0, axis, axis), _place(100, 100, axis, axis)
        yield svg.rule(*ends[0], *ends[1], "var(--soft)")
        for each in bins:
            x, y = _place(100 * each.mean, 100 * each.right.value, axis, axis)
            _, low = _place(0, 100 * each.right.low, axis, axis)
            _, high = _place(0, 100 * each.right.high, axis, axis)
            yield f'<path d="M{x:.1f},{low:.1f}L{x:.1f},{high:.1f}" stroke="var(--c0)" stroke-width="2"/>'
            says = f"{each.right.count} answers of {100 * each.mean:.1f} %: {100 * each.right.value:.1f} % right"
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="var(--c0)"><title>{escape(says)}</title></circle>'

    return _picture("Right answers, %", parts())


def interval(share: scores.Share) -> str:
    """A share from 0 to 1 as a dot on its interval, as wide as there is room."""
    low, value, high = (100 * each for each in (share.low, share.value, share.high))
    return (
        '<svg viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">'
        '<rect y="5" width="100" height="4" fill="var(--rule)"/>'
        f'<rect x="{low:.1f}" y="3" width="{max(0.5, high - low):.1f}" height="8" fill="var(--pale)"/>'
        f'<rect x="{min(value, 98.8):.1f}" width="1.2" height="14" fill="var(--c0)"/></svg>'
    )


def thinned(points: Points, most: int = _MAX_POINTS) -> Points:
    """The points of a long curve that show at a screen's resolution: the lowest and the highest of each piece, and the
    ends."""
    if len(points) <= most:
        return points
    size = math.ceil(2 * len(points) / most)
    kept = {0, len(points) - 1}
    for first in range(0, len(points), size):
        piece = range(first, min(first + size, len(points)))
        finite = [k for k in piece if math.isfinite(points[k][1])]
        broken = [k for k in piece if not math.isfinite(points[k][1])][:1]  # where the line has a gap
        kept |= {min(finite, key=lambda k: points[k][1]), max(finite, key=lambda k: points[k][1])} if finite else set()
        kept |= set(broken)
    return [points[k] for k in sorted(kept)]


def _picture(title: str, parts: Iterable[str]) -> str:
    return svg.inline(WIDTH, HEIGHT, [_text(6, 20, title, weight="bold"), *parts], title)


def _text(x: float, y: float, text: str, **style: str) -> str:
    return svg.text(x, y, text, size=_SIZE, fill="currentColor", **style)


def _place(x: float, y: float, x_axis: tuple[float, float], y_axis: tuple[float, float]) -> tuple[float, float]:
    """The pixel of a point."""
    across, up = (x - x_axis[0]) / (x_axis[1] - x_axis[0]), (y - y_axis[0]) / (y_axis[1] - y_axis[0])
    return LEFT + across * (WIDTH - RIGHT - LEFT), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP)


def _axes(x_axis: tuple[float, float], y_axis: tuple[float, float], name: str) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in svg.ticks(*x_axis, 5):
        x, _ = _place(tick, y_axis[0], x_axis, y_axis)
        yield svg.rule(x, TOP, x, bottom, "var(--rule)") + _text(x, bottom + 17, f"{tick:g}", anchor="middle")
    for tick in svg.ticks(*y_axis, 5):
        _, y = _place(x_axis[0], tick, x_axis, y_axis)
        yield svg.rule(LEFT, y, right, y, "var(--rule)") + _text(LEFT - 6, y + 5, f"{tick:g}", anchor="end")
    yield svg.rule(LEFT, bottom, right, bottom, "var(--soft)")
    yield _text((LEFT + right) / 2, HEIGHT - 8, name, anchor="middle")


def _clipped(parts: Iterable[str]) -> Iterator[str]:
    """A nested picture cuts off what leaves the panel, without an identifier that could clash on a page."""
    width, height = WIDTH - RIGHT - LEFT, HEIGHT - BOTTOM - TOP
    yield f'<svg x="{LEFT - 5}" y="{TOP - 5}" width="{width + 10}" height="{height + 10}">'
    yield from parts
    yield "</svg>"


def _drawn(lines: Sequence[tuple[Line, Curve]], x_axis: tuple[float, float], y_axis: tuple[float, float]) -> Iterator[str]:
    for line, curve in lines:

        def place(x: float, y: float) -> tuple[float, float]:
            across, down = _place(x, y, x_axis, y_axis)
            return across - LEFT + 5, down - TOP + 5

        yield f"<g{curve.dashes}>{''.join(line.draw(place))}</g>"


def _sample(curve: Curve) -> str:
    """A piece of the curve for the legend."""
    dot = f'<circle cx="13" cy="5" r="4" fill="{curve.stroke}"/>' if curve.dots else ""
    path = f'<path d="M0,5H26" stroke="{curve.stroke}" stroke-width="{curve.width + 0.6:.1f}"{curve.dashes}/>'
    return f'<svg viewBox="0 0 26 10" aria-hidden="true">{path}{dot}</svg>'


def _told(curve: Curve, unit: str) -> str:
    last = next(y for _, y in reversed(curve.points) if math.isfinite(y))
    return f"{curve.label}: {last:.4g}{unit} at the end"
