"""Draw numerics.svg: for each kind of tensor, a panel with the exponents of the numbers in every layer.

Lines in the panel show the range of the number format. Numbers left of the range become 0, numbers right of it overflow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from cnn_harness.emulator.numerics.observation import KINDS, Observation, ObservedTensor
from cnn_harness.emulator.plan.number_formats import FP32, BlockFormat, Format
from cnn_harness.harness.reports import chart
from cnn_harness.harness.reports.chart import ALL, BLUE, ORANGE, SAND, Box, Rows

MAX_ROWS, LEVELS = 40, 10
SHOWN = 1e-4  # An exponent is drawn if at least this share of a layer's numbers has it.
LEGEND = {1: "0.01 % of a layer's numbers", LEVELS: "a quarter or more"}
HEIGHT = 200  # height of all rows of a panel in pixels


def draw(observation: Observation) -> str:
    """Return the SVG chart of an observation."""
    panels = []
    for kind in KINDS:
        tensors = [tensor for tensor in observation.tensors if tensor.kind == kind]
        scale = f" times the loss scale of {observation.scale:g}" if kind == "gradients" and observation.scale != 1 else ""
        panels.append(_panel(f"{kind.capitalize()}{scale}", tensors))
    return chart.figure(panels, f"Numbers of each layer by their exponents, after {observation.updates:,} updates")


def _panel(title: str, tensors: Sequence[ObservedTensor]) -> Rows:
    """Return the panel for one kind of tensor. Lines are at the smallest, smallest normal and largest number of the
    format."""
    usual, follows = Counter((tensor.format, tensor.follows) for tensor in tensors).most_common(1)[0][0]
    rows = _rows(tensors)
    drawn = FP32 if follows else usual  # If the range is scaled to each tensor, there are no lines.
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
    return Rows(title, names, marks, "exponent", "2^{:g}".format, HEIGHT / len(rows), (first, last + 1), note)


def _rows(tensors: Sequence[ObservedTensor]) -> list[Mapping[int, float]]:
    """Return the share of each exponent in each row. If there are many layers, neighbouring layers share a row."""
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
    """Return the first and last exponent to draw. The range of the format `usual` is included unless it is much wider."""
    seen = [exponent for shares in rows for exponent, share in shares.items() if share >= SHOWN] or [0]
    first, last = min(seen), max(seen)
    if usual != FP32:
        first = min(first, max(math.floor(math.log2(usual.smallest)) - 2, first - 12))
        last = max(last, min(math.ceil(math.log2(usual.overflow)) + 1, last + 12))
    return first, last


def _level(share: float) -> int:
    """Return the opacity for a share of the numbers, from 0 (not drawn) to LEVELS (a quarter or more)."""
    return 0 if share < SHOWN else max(1, min(LEVELS, round(LEVELS * math.sqrt(4 * share))))


def _lost(usual: Format | BlockFormat, follows: bool, tensors: Sequence[ObservedTensor]) -> str:
    """Return a note on the numbers that the format loses, and on the layer that loses most. If the range of the format is
    scaled to each tensor, `follows` is true."""
    if usual == FP32:
        return "in FP32, which represents all of these numbers"
    own = [tensor for tensor in tensors if (tensor.format, tensor.follows) == (usual, follows)]
    scaled = f"{usual.octaves:.0f} octaves, scaled to each {'block' if isinstance(usual, BlockFormat) else 'layer'}"
    under = max(own, key=lambda tensor: tensor.losses.under)
    over = max(own, key=lambda tensor: tensor.losses.over)
    error = sorted(tensor.losses.error for tensor in own)[len(own) // 2]
    said = [
        f"{usual.name}: " + (scaled if follows else f"{usual.smallest:.3g} to {usual.largest:.5g}"),
        f"rounding error {100 * error:.2g} % in the median layer",
    ]
    for becomes, become, tensor, share in (
        ("becomes 0", "become 0", under, under.losses.under),
        ("overflows", "overflow", over, over.losses.over),
    ):
        said.append(f"at most {100 * share:.2g} % {become} ({tensor.layer})" if share else f"none {becomes}")
    return "; ".join(said)
