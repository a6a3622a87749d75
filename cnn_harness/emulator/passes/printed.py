"""Print a network after a pass: a line for each node."""

from __future__ import annotations

from cnn_harness.emulator.network.network import PRODUCTS, Network, Node, operation
from cnn_harness.emulator.plan.precision import ALL, Precision

HEAD = "values", "operation", "layer", "result", "format", "kernel", "rounds"


def printed(network: Network, precision: Precision) -> str:
    """Return a table of the nodes: values, operation, layer, shape, format, kernel, and what the node rounds.

    `%3 = %1 %2` means that the node reads values 1 and 2 and returns value 3.
    """
    rows = [HEAD]
    for name in network.segments:
        own = [node for node in network.nodes if node.segment == name]
        rows += [(f"{name}:", *[""] * (len(HEAD) - 1))] * bool(name and own) + [_row(node, precision) for node in own]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _row(node: Node, precision: Precision) -> tuple[str, ...]:
    height, width, channels = node.shape
    shape = f"{height}x{width}x{channels}" if height * width > 1 else str(channels)
    values = " = ".join(" ".join(f"%{number}" for number in each) for each in (node.outputs, node.inputs))
    layer = node.path.removeprefix("all/")
    return values, operation(node), layer, shape, _format(node, precision), node.computed_by, _rounds(node, precision)


def _format(node: Node, precision: Precision) -> str:
    """Return the format of the result, and of what a product multiplies if it differs."""
    result = precision.compute.name
    if node.op not in PRODUCTS:
        return result
    weight, activation, gradient = (each.name for each in precision.operands_of(node.variable("kernel")))
    products = f"{weight} x {activation}" + (f", {gradient} back" if gradient != activation else "")
    return result if {weight, activation, gradient} == {result} else f"{products} -> {result}"


def _rounds(node: Node, precision: Precision) -> str:
    """Return what the node rounds. Stochastic roundings have their number in the segment."""
    formats = node.formats
    parts = [(formats.operand, "operand"), (formats.gradient, "gradient in products"), (formats.pixels, "mean")]
    if node.op == "sum_gradients":
        parts += [(formats.result, "sum")] * formats.rounds_gradient
    else:
        parts.append((formats.result, "result" + " and its gradient" * formats.rounds_gradient))
    parts += [(read.draw, f"gradient of %{value}") for value, read in zip(node.inputs, formats.reads) if read]
    stochastic = precision.stochastic == ALL
    return ", ".join(what + f" ({number})" * stochastic for number, what in parts if number is not None)
