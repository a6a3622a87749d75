"""numerics.svg: for each kind of tensor the layers, from the first to the last, against the exponents of their numbers, with
the range of the format drawn over them. Numbers left of the range become 0, numbers right of it overflow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from emulator.numerics.observation import KINDS, Observation, ObservedTensor
from emulator.plan.number_formats import FP32, Format
from harness.reports import plot, svg

EDGE, LEFT = 18, 62  # pixels: a margin, the room of the layers' words
MAX_ROWS, LEVELS = 40, 10
SHOWN = 1e-4  # the least share of a layer's numbers that is drawn
HEIGHT = 200  # pixels of a panel's rows


def draw(observation: Observation) -> str:
    """The picture of an observation."""
    title = f"Numbers of each layer by their exponents, after {observation.updates:,} updates"
    heading = svg.wrapped(title, svg.WIDTH - 2 * EDGE, 18, "bold")
    parts = svg.paragraph(EDGE, 28, heading, size=18, weight="bold")
    y = 34.0 + 21 * len(heading)
    for kind in KINDS:
        tensors = [tensor for tensor in observation.tensors if tensor.kind == kind]
        scale = f" times the loss scale of {observation.scale:g}" if kind == "gradients" and observation.scale != 1 else ""
        panel, y = _panel(f"{kind.capitalize()}{scale}", tensors, y)
        parts += panel
    return svg.document(svg.WIDTH, y, parts, title)


def _panel(words: str, tensors: Sequence[ObservedTensor], y: float) -> tuple[list[str], float]:
    """The rows of one kind, and the pixel below them."""
    usual, follows = Counter((tensor.format, tensor.follows) for tensor in tensors).most_common(1)[0][0]
    rows = _rows(tensors)
    drawn = FP32 if follows else usual  # a range that each tensor has for itself is no stroke through all of them
    first, last = _span(rows, drawn)
    left, right, top = LEFT, svg.WIDTH - EDGE, y + 34
    height, width = HEIGHT / len(rows), (right - left) / (last + 1 - first)
    bottom = top + HEIGHT

    def across(exponent: float) -> float:
        return left + (exponent - first) * width

    parts = [svg.text(EDGE, y + 16, words, weight="bold")]
    levels: dict[int, list[str]] = {}
    for k, shares in enumerate(rows):
        for exponent, share in shares.items():
            level = _level(share)
            if level and first <= exponent <= last:
                cell = f"M{across(exponent):.1f},{top + k * height:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"
                levels.setdefault(level, []).append(cell)
    parts += [
        f'<path d="{"".join(cells)}" fill="{plot.BLUE}" opacity="{level / LEVELS:g}"/>'
        for level, cells in sorted(levels.items())
    ]
    parts.append(svg.rule(left, bottom, right, bottom, svg.AXIS))
    for tick in range(first + -first % 8, last + 1, 8):
        parts.append(svg.text(across(tick), bottom + 20, f"2^{tick}", anchor="middle"))
    parts += [svg.text(EDGE, top + 16, "first"), svg.text(EDGE, bottom - 4, "last")]
    parts += _range(drawn, across, top, bottom, first, last)
    lines = svg.wrapped(_lost(usual, follows, tensors), right - EDGE)
    parts += svg.paragraph(EDGE, bottom + 44, lines, fill=svg.SOFT)
    return parts, bottom + 44 + 21 * len(lines) + 8


def _range(
    number_format: Format, across: Callable[[float], float], top: float, bottom: float, first: int, last: int
) -> list[str]:
    """Strokes where the format begins, where its subnormal numbers end, and where it ends."""
    if number_format == FP32:
        return []
    begin, normal = math.log2(number_format.smallest), number_format.least_exponent
    end = math.log2(number_format.overflow)
    strokes = ((begin, plot.ORANGE, ""), (normal, plot.ORANGE, ' stroke-dasharray="4 4"'), (end, plot.ORANGE, ""))
    return [
        f'<path d="M{across(place):.1f},{top:.1f}V{bottom:.1f}" stroke="{colour}" stroke-width="2"{dashes}/>'
        for place, colour, dashes in strokes
        if first <= place <= last + 1
    ]


def _rows(tensors: Sequence[ObservedTensor]) -> list[Mapping[int, float]]:
    """The share of each exponent, of a layer, or of neighbours where there are too many layers for a row each."""
    each = math.ceil(len(tensors) / MAX_ROWS)
    rows = []
    for k in range(0, len(tensors), each):
        counts: Counter[int] = Counter()
        for tensor in tensors[k : k + each]:
            counts.update(tensor.exponents)
        total = sum(counts.values()) or 1
        rows.append({exponent: count / total for exponent, count in counts.items()})
    return rows


def _span(rows: Sequence[Mapping[int, float]], usual: Format) -> tuple[int, int]:
    """The exponents that are drawn: those of the numbers, and of the format's range if that is not far wider."""
    seen = [exponent for shares in rows for exponent, share in shares.items() if share >= SHOWN] or [0]
    first, last = min(seen), max(seen)
    if usual != FP32:
        first = min(first, max(math.floor(math.log2(usual.smallest)) - 2, first - 12))
        last = max(last, min(math.ceil(math.log2(usual.overflow)) + 1, last + 12))
    return first, last


def _level(share: float) -> int:
    """0 for nothing to be drawn, up to LEVELS for a quarter of the numbers."""
    return 0 if share < SHOWN else max(1, min(LEVELS, round(LEVELS * math.sqrt(4 * share))))


def _lost(usual: Format, follows: bool, tensors: Sequence[ObservedTensor]) -> str:
    """A sentence on what the format loses, and where most. `follows`: its range does, each layer's tensor."""
    if usual == FP32:
        return "in FP32, which has room for all of them"
    own = [tensor for tensor in tensors if (tensor.format, tensor.follows) == (usual, follows)]
    octaves = math.log2(usual.largest / usual.smallest)
    under = max(own, key=lambda tensor: tensor.losses.under)
    over = max(own, key=lambda tensor: tensor.losses.over)
    error = sorted(tensor.losses.error for tensor in own)[len(own) // 2]
    said = [
        f"{usual.name}: "
        + (f"{octaves:.0f} octaves by each layer" if follows else f"{usual.smallest:.3g} to {usual.largest:.5g}"),
        f"rounding moves the median layer by {100 * error:.2g} %",
    ]
    for becomes, become, tensor, share in (
        ("becomes 0", "become 0", under, under.losses.under),
        ("overflows", "overflow", over, over.losses.over),
    ):
        said.append(f"at most {100 * share:.2g} % {become} ({tensor.layer})" if share else f"none {becomes}")
    return "; ".join(said)
