"""Pieces of SVG pictures: axes with round numbers, rules, texts, and the colours that each has in the dark.

A picture is as wide as a phone shows legibly: letters of `SIZE` on `WIDTH` are more than 12 pixels high on a screen of 375.
A colour stands in the elements themselves, so that a viewer without style sheets shows it; a rule gives its counterpart in
the dark.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

WIDTH, SIZE = 440.0, 16  # pixels: of a picture, and of its letters
INK, SOFT, RULE, AXIS, PAPER = "#333", "#666", "#e4e4e4", "#888", "#fff"
DARK = {
    INK: "#e4e6ea", SOFT: "#a3a9b4", RULE: "#3a3f48", AXIS: "#8b929e", PAPER: "#16181c",
    "#a9c4e4": "#5678a3", "#1f5a99": "#6aaaf0", "#c4561a": "#f0935a", "#3b7d4f": "#74c78e", "#8a5a99": "#cf8ee2",
    "#d9a37e": "#b98a6c", "#eef0f2": "#2a2e35", "#3d78b5": "#3d78b5", "#d9772b": "#c4661f", "#2a6f97": "#5fa8d3",
    "#adb5bd": "#5c6370", "#c1121f": "#ff6b6b", "#264653": "#6f9fb3", "#2a9d8f": "#3dbcae", "#8ab17d": "#8ab17d",
    "#e9c46a": "#e9c46a", "#f4a261": "#f4a261", "#e76f51": "#e76f51", "#9b5de5": "#b48af0", "#8d99ae": "#8d99ae",
}  # fmt: skip
BRIGHT = "#fefefe"  # of letters on a colour that is dark enough in both schemes
_COLOUR = re.compile(r'(?:fill|stroke)="(#[0-9a-f]{3,6})"')
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_LETTER = 0.52  # of a letter's size: its usual width in Helvetica and Arial; a bold one is wider
_BOLD = 0.57


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
    x: float, y: float, text: str, *, size: int = SIZE, anchor: str = "start", weight: str = "normal", fill: str = INK,
    halo: bool = False,
) -> str:  # fmt: skip
    """A line of text whose base line begins, or lies as `anchor` says, at x, y. `halo`: in front of lines, which it cuts."""
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    around = f' stroke="{PAPER}" stroke-width="5" stroke-linejoin="round" paint-order="stroke"' if halo else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}{around}>{escaped(text)}</text>'


def escaped(text: str) -> str:
    """A text as XML has it, with escapes for what XML cannot hold, as a folder's name may."""
    return escape(_shown(text))


def _shown(text: str) -> str:
    return _NO_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def text_width(text: str, size: int = SIZE, weight: str = "normal") -> float:
    """The pixels that a text takes, about."""
    return len(text) * size * (_BOLD if weight == "bold" else _LETTER)


def wrapped(text: str, width: float, size: int = SIZE, weight: str = "normal") -> list[str]:
    """The lines of a text in a room of `width` pixels; a longer word is cut."""
    most = max(1, int(width / text_width("x", size, weight)))
    return textwrap.wrap(text, most, break_on_hyphens=False) or [""]


def paragraph(x: float, y: float, lines: Sequence[str], step: float = 21, **style: Any) -> list[str]:
    """Lines of text below each other; the first one's base line is at y."""
    return [text(x, y + step * k, line, **style) for k, line in enumerate(lines)]


def legend(entries: Sequence[tuple[str, str]], x: float, y: float, right: float) -> tuple[list[str], float]:
    """Samples, which are markup 24 pixels wide drawn around 0, 0, with their words, in rows that end at `right` pixels; and
    the base line below the last row."""
    parts, begin = [], x
    for sample, words in entries:
        needed = 30 + text_width(words)
        if x > begin and x + needed > right:
            x, y = begin, y + 21
        parts.append(f'<g transform="translate({x:.1f},{y - 5:.1f})">{sample}</g>{text(x + 30, y, words)}')
        x += needed + 14
    return parts, y + 21


def square(colour: str) -> str:
    """The sample of a colour for a legend."""
    return f'<rect x="5" y="-7" width="14" height="14" fill="{colour}"/>'


def dark_rules(markup: str, within: str = "") -> str:
    """The rules of a style sheet that give the colours of some markup their counterparts in the dark. `within`: a selector
    of what holds the pictures, on a page."""
    used = sorted({*_COLOUR.findall(markup)} & {*DARK})
    rules = "".join(f'{within}[{kind}="{each}"]{{{kind}:{DARK[each]}}}' for each in used for kind in ("fill", "stroke"))
    return f"@media(prefers-color-scheme:dark){{{rules}}}"


def document(width: float, height: float, parts: Iterable[str], title: str = "") -> str:
    """A whole picture of `width` x `height` pixels, with a name for those who do not see it, light or dark as the reader's
    screen is."""
    return _document(width, height, [f'<rect width="{width:g}" height="{height:g}" fill="{PAPER}"/>', *parts], title, True)


def inline(width: float, height: float, parts: Iterable[str], title: str = "") -> str:
    """A picture without a background, for a page whose style sheet has the rules for the dark."""
    return _document(width, height, list(parts), title, False)


def _document(width: float, height: float, parts: Sequence[str], title: str, alone: bool) -> str:
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    named = f' role="img" aria-label={quoteattr(_shown(title))}' if title else ""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}{named} font-family="Helvetica, Arial, DejaVu Sans, sans-serif">'
    title_element = [f"<title>{escaped(title)}</title>"] if title and alone else []
    rules = [f"<style>{dark_rules(''.join(parts))}</style>"] if alone else []
    return "\n".join([head, *title_element, *rules, *parts, "</svg>\n"])
