"""Pieces of SVG pictures: axes with round numbers, rules, texts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from xml.sax.saxutils import escape

INK, RULE = "#333", "#e4e4e4"


def span(values: list[float], floor: float | None = None, count: int = 6, slack: float = 0.05) -> tuple[float, float]:
    """Ends of an axis that shows all values, moved out to a tick that lies within `slack` of a tick's distance."""
    finite = [v for v in values if math.isfinite(v)] + ([] if floor is None else [floor])
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if high - low <= 1e-9 * abs(high):
        low, high = (low, low + 1) if low == floor else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))
    step = round_step(low, high, count)
    below, above = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return below if low - below <= slack * step else low, above if above - high <= slack * step else high


def round_step(low: float, high: float, count: int) -> float:
    """The smallest of 1, 2, 5 × 10^n that cuts the range into at most `count` pieces."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))


def ticks(low: float, high: float, count: int) -> list[float]:
    """The round numbers from low to high, about `count` of them at most."""
    step = round_step(low, high, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


def rule(x0: float, y0: float, x1: float, y1: float, colour: str = RULE) -> str:
    """A straight line, in pixels."""
    return f'<path d="M{x0:.1f},{y0:.1f}L{x1:.1f},{y1:.1f}" stroke="{colour}"/>'


def text(
    x: float, y: float, text: str, *, size: int = 13, anchor: str = "start", weight: str = "normal", fill: str = INK
) -> str:
    """A line of text whose base line begins, or lies as `anchor` says, at x, y."""
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def document(width: float, height: float, parts: Iterable[str], background: str = "#fff") -> str:
    """A whole picture of `width` x `height` pixels, on white if nothing else is said."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">'
    )
    return "\n".join([head, f'<rect width="{width:g}" height="{height:g}" fill="{background}"/>', *parts, "</svg>\n"])
