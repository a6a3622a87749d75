"""Compare the rates of convolutions with their roofs, by channels per group: a chart, its arithmetic, and all layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from cnn_harness.emulator.cost_model.prediction import Prediction
from cnn_harness.emulator.cost_model.roofline import Layer, layers
from cnn_harness.emulator.cost_model.supersteps import Phases
from cnn_harness.emulator.cost_model.systems import Device
from cnn_harness.emulator.network.network import operation
from cnn_harness.harness.reports import markup
from cnn_harness.harness.reports.chart import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SAND, Curves, Line
from cnn_harness.harness.reports.markup import Cell

COLOURS = (ORANGE, BLUE, GREEN, PURPLE, SAND)
UNGROUPED = "no groups"
INTRODUCTION = (
    "A dot is a convolution or dense layer in the forward pass. To the right, it has more FLOPs for each byte that its "
    "tiles exchange; above, it is faster. No dot is above its roof. Dots far below are small layers, which mostly "
    "synchronise. Norms and activation functions have no FLOPs here; their time is in the steps."
)
SMALLEST = 1 / 256  # Slower layers, relative to the fastest one, are not drawn.


def section(plans: Iterable[tuple[str, Prediction]]) -> list[str]:
    """Return the parts of the page for named plans. Plans of a network on equal chips have the same layers, so the first is
    shown."""
    shown = {(name, p.system.device.name): (p.system.device, list(layers(p))) for name, p in reversed(list(plans))}
    by_device: dict[Device, dict[str, list[Layer]]] = {}
    for (name, _), (device, own) in reversed(shown.items()):
        by_device.setdefault(device, {})[name] = own
    parts = [markup.heading(2, "Intensity and roof of each layer"), markup.paragraph(INTRODUCTION)]
    for device, named in by_device.items():
        groups = _by_group(layer for own in named.values() for layer in own)
        parts.append(markup.charts([_roofline(device, groups)]))
        caption = "Sums of the forward pass of a micro-batch; FLOPs in 10^9, bytes in 10^6, rates in TFLOP/s, times in ms."
        head = ("plan", "groups", "layers", "flops", "bytes", "intensity", "rate", *Phases._fields)
        parts.append(markup.table(head, (row for name, own in named.items() for row in _sums(name, own)), caption))
        parts.append(_arithmetic(device, groups))
        parts += [markup.folded(f"Layers of {name} on {device.name}", _table(own)) for name, own in named.items()]
    return parts


def _by_group(layers: Iterable[Layer]) -> dict[str, list[Layer]]:
    """Return the layers by channels per group, in rising order; those without groups are last."""
    found: dict[tuple[float, str], list[Layer]] = {}
    for layer in layers:
        size = layer.channels_per_group
        key = (math.inf, UNGROUPED) if layer.node.groups == 1 else (size, f"groups of {size}")
        found.setdefault(key, []).append(layer)
    return {words: found[_, words] for _, words in sorted(found)}


def _roofline(device: Device, groups: dict[str, list[Layer]]) -> Curves:
    """Return the roofline: rate over intensity, both logarithmic."""
    every = [layer for own in groups.values() for layer in own]
    bandwidth, top = every[0].bandwidth, max(layer.peak for layer in every)
    least = SMALLEST * max(layer.rate for layer in every)
    drawn = {words: [layer for layer in own if layer.rate >= least] for words, own in groups.items()}
    intensities = [layer.intensity for own in drawn.values() for layer in own]
    left, right = min(intensities) / 2, 2 * max(*intensities, top / bandwidth)

    def points(pairs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(math.log2(x), math.log2(y / 1e12)) for x, y in pairs]

    slope = points([(left, left * bandwidth), (top / bandwidth, top)])
    lines = [Line(f"roof of the exchange: {bandwidth / 1e12:.1f} TB/s", slope, INK, last=False)]
    colours = dict(zip(groups, COLOURS)) | {UNGROUPED: GREY}
    peaks: dict[float, list[str]] = {}
    for words, own in groups.items():
        peaks.setdefault(max(layer.peak for layer in own), []).append(words)
    for peak, names in peaks.items():
        flat, label = points([(peak / bandwidth, peak), (right, peak)]), f"roof of {', '.join(names)}"
        lines.append(Line(f"{label}: {peak / 1e12:,.0f} TFLOP/s", flat, colours[names[0]], last=False))
    for words, own in reversed(drawn.items()):
        dots = points((layer.intensity, layer.rate) for layer in own)
        lines.append(Line(words, dots, colours[words], 0, 1, last=False))
    title = f"TFLOP/s of layers on one {device.name} {device.kind}"
    if hidden := len(every) - len(intensities):
        title += f" ({hidden} layers below {least / 1e12:.2g} TFLOP/s are only in the tables)"
    return Curves(
        title, lines, (math.log2(left), math.log2(right)), None, "intensity (FLOPs for each exchanged byte)",
        lambda x: f"{2**x:.4g}", wide=True, y_tick=lambda y: f"{2**y:.4g}", height=300,
    )  # fmt: skip


def _sums(name: str, own: Iterable[Layer]) -> Iterator[Sequence[Cell]]:
    """Yield a row for each number of channels per group of a plan."""
    for words, some in _by_group(own).items():
        flops, size = sum(layer.flops for layer in some), sum(layer.bytes for layer in some)
        seconds = [sum(times) for times in zip(*(layer.seconds for layer in some))]
        yield name, words, *(("n", text) for text in (
            str(len(some)), f"{flops / 1e9:,.1f}", f"{size / 1e6:,.0f}", f"{flops / size:.1f}",
            f"{flops / sum(seconds) / 1e12:.1f}", *(f"{1e3 * each:.3f}" for each in seconds),
        ))  # fmt: skip


def _arithmetic(device: Device, groups: dict[str, list[Layer]]) -> str:
    """Return a table that computes the roof of one layer for each number of channels per group: that with most FLOPs."""
    columns = {}
    for words, own in groups.items():
        layer = max(own, key=lambda each: each.flops)
        product, size = layer.product, max(1, layer.node.kernel) ** 2
        positions, ins, outs = (f"{side:,.1f}".removesuffix(".0") for side in product.block)
        flops, moved, width = 2 * product.multiply_adds, product.moved * layer.element, layer.bandwidth / 1e12
        columns[words] = (
            f"{layer.node.path}: {operation(layer.node)}",
            f"{positions} positions x {ins} input x {outs} output channels",
            f"2 x {positions} x {ins} x {outs} x {size} of the kernel = {flops:,.0f}",
            f"{layer.element} x ({positions} x ({ins} + {outs}) + {ins} x {outs} x {size}) = {moved:,.0f}",
            f"{flops:,.0f} / {moved:,.0f} = {layer.intensity:.1f}",
            f"{layer.intensity:.1f} x {width:.2f} TB/s = {layer.intensity * width:.1f} TFLOP/s",
            f"2 x {product.rate:.4g} multiply-adds x {layer.peak / 2 / product.rate / 1e12:.4g} x 10^12 = "
            f"{layer.peak / 1e12:.1f} TFLOP/s",
            f"{layer.roof / 1e12:.1f} TFLOP/s",
            " + ".join(f"{1e6 * each:.1f}" for each in layer.seconds) + f" = {1e6 * sum(layer.seconds):.1f} µs",
            f"{layer.flops / 1e6:,.0f} x 10^6 / {1e6 * sum(layer.seconds):.1f} µs = {layer.rate / 1e12:.1f} TFLOP/s",
        )
    names = ("layer with most FLOPs", "part of a tile", "FLOPs of a tile", "bytes of a tile", "intensity",
             "rate that the exchange allows", "rate of the kernel", "roof, the lower of the two",
             "compute + exchange + synchronisation", "rate: FLOPs of all tiles / time")  # fmt: skip
    caption = (
        "Roofs and rates computed. Tiles divide a product into equal parts. The rate of the kernel is 2 x its multiply-adds "
        "per cycle x the cycles per second of all tiles."
    )
    return markup.table(("", *columns), zip(names, *columns.values()), caption)


def _table(own: Iterable[Layer]) -> str:
    """Return a table of all layers."""
    values = [layer.values() for layer in own]
    rows = [
        (each["layer"], each["operation"], str(each["stage"]), *(("n", text) for text in (
            str(each["channels_per_group"]), f"{each['flops'] / 1e6:,.4g}", f"{each['bytes'] / 1e6:.3g}",
            f"{each['intensity']:.3g}", f"{each['roof'] / 1e12:.3g}", f"{each['rate'] / 1e12:.3g}",
            *(f"{1e3 * seconds:.4f}" for seconds in each["seconds"].values()))))
        for each in values
    ]  # fmt: skip
    head = [*(name.replace("_", " ") for name in values[0] if name != "seconds"), *Phases._fields]
    return markup.table(head, rows, "FLOPs and bytes in 10^6, roofs and rates in TFLOP/s, times in ms.")
