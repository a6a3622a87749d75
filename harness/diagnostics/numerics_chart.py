"""numerics.svg: for each kind of tensor the layers, from the first to the last, against the exponents of their numbers, with
the range of the format drawn over them. Numbers left of the range become 0, numbers right of it overflow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from emulator.numerics.observation import KINDS, Observation, ObservedTensor
from emulator.plan.number_formats import FP32, Format
from harness.reports import chart
from harness.reports.chart import ALL, BLUE, ORANGE, SAND, Box, Rows

MAX_ROWS, LEVELS = 40, 10
SHOWN = 1e-4  # the least share of a layer's numbers that is drawn
LEGEND = {1: "0.01 % of a layer's numbers", LEVELS: "a quarter or more"}
HEIGHT = 200  # pixels of a panel's rows


def draw(observation: Observation) -> str:
    """Return the picture of an observation."""
    panels = []
    for kind in KINDS:
        tensors = [tensor for tensor in observation.tensors if tensor.kind == kind]
        scale = f" times the loss scale of {observation.scale:g}" if kind == "gradients" and observation.scale != 1 else ""
        panels.append(_panel(f"{kind.capitalize()}{scale}", tensors))
    return chart.figure(panels, f"Numbers of each layer by their exponents, after {observation.updates:,} updates")


def _panel(title: str, tensors: Sequence[ObservedTensor]) -> Rows:
    """Return the rows of one kind, with strokes at the format's least, least normal and largest number."""
    usual, follows = Counter((tensor.format, tensor.follows) for tensor in tensors).most_common(1)[0][0]
    rows = _rows(tensors)
    drawn = FP32 if follows else usual  # a range that each tensor has for itself is no stroke through all of them
    first, last = _span(rows, drawn)
    marks = [
        Box(exponent, exponent + 1, BLUE, k, LEGEND.get(level, ""), opacity=level / LEVELS, thick=1)
        for k, shares in enumerate(rows)
        for exponent, share in shares.items()
        if (level := _level(share)) and first <= exponent <= last
    ]
    if drawn != FP32:
        ends, least = "smallest and largest of the format", "smallest normal number"
        places = (drawn.smallest, ORANGE, ends), (2.0**drawn.least_exponent, SAND, least), (drawn.overflow, ORANGE, ends)
        strokes = [(math.log2(value), colour, label) for value, colour, label in places]
        marks += [Box(x, x, colour, ALL, label, least=2, thick=1) for x, colour, label in strokes if first <= x <= last + 1]
    names = ["first", *[""] * (len(rows) - 2), "last"][: len(rows)]
    note = _lost(usual, follows, tensors)
    return Rows(title, names, marks, "exponent", "2^{:g}", HEIGHT / len(rows), (first, last + 1), note)


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
