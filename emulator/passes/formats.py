"""Decide who rounds each value and each gradient to its narrow format, and number the stochastic roundings.

    x ---- sum_gradients ---+---> conv
                            |
                            +---> add

Every result is rounded by the node that computes it. A gradient is rounded by the node that returns it. Some need not do so:
they return numbers of the format, or the node that made the value rounds what arrives. If several nodes read a value, the
sum of their gradients is rounded, too. Between segments, gradients are always rounded, because the backward passes of
segments may be separate and must give the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from emulator.network.network import LINEAR, PRODUCTS, Formats, Network, Node, Read
from emulator.passes.target import Target
from emulator.plan.precision import Precision
from Models._norms import BatchNorm, GroupNorm

SUM = "sum_gradients"
# These operations can round the gradient that arrives at their result.
_ROUNDING = (*PRODUCTS, "bias", "norm", "sigmoid", "add", "gate", "swish", "global_mean", "dropout", "drop_path")
# These operations return gradients of the format if such a gradient arrives.
_ON_GRID = (
    "bias", "norm", "proxy_norm", "relu", "relu6", "swish", "add", "concat", "subsample", "flatten", "global_mean",
)  # fmt: skip
_UNROUNDED = ("relu", "relu6", "concat", "max_pool", "subsample", "flatten")  # their results are numbers of the format
_Place = tuple[int, str]  # a value, and the segment in which nodes read it.


def formats(network: Network, precision: Precision, target: Target) -> Network:
    """Return the network with `Formats` at each node, and with nodes that sum the gradients of a value's readers."""
    if not (precision.rounds_results or precision.rounds_operands):
        return network
    readers = _readers(network) if precision.rounds_results and target.training else Counter()
    made = {value: node for node in network.nodes for value in node.outputs[:1]}
    new, draws, sums, nodes = network.new_values(), Counter[str](), dict[_Place, int](), []
    results: dict[int, int] = {}  # maps a value to the number of its rounding

    def draw(node: Node) -> int:
        draws[node.segment] += 1
        return draws[node.segment]

    for node in network.nodes:
        reads, inputs = [], []
        for value in node.inputs:
            place = value, node.segment
            if place not in readers:
                reads.append(None)
                inputs.append(value)
                continue
            several = readers[place] > 1
            rounds_itself = _rounds_in(made.get(value), node.segment)
            if place not in sums:
                number = draw(node)  # drawn for each value, needed or not: numbers are keys of a run's random draws.
                sums[place] = next(new) if several else value
                if several:
                    given = Formats(result=number, rounds_arriving=not rounds_itself)
                    nodes.append(_sum(node, value, sums[place], made, given))
            own = None if _is_on_grid(node, target) else draw(node)
            if own is not None and rounds_itself and not several:  # round with the number of the node that made the value.
                own = None if _always_rounds(made[value], target) else results[value]
            rounds = own is not None
            reads.append(Read(rounds, own, adds=several) if rounds or several else None)
            inputs.append(sums[place])
        given = _of_node(node, precision, target, lambda node=node: draw(node))
        arriving = bool(readers) and node.op in _ROUNDING and not _has_one_reader(node, readers)
        results[node.outputs[0]] = given.result
        nodes.append(
            replace(node, inputs=tuple(inputs), formats=replace(given, reads=tuple(reads), rounds_arriving=arriving))
        )
    return replace(network, nodes=tuple(nodes))


def _readers(network: Network) -> Counter[_Place]:
    """Return how many nodes of a segment read a value. The inverse deviation of proxy norm has no entry, because it depends
    on weights only."""
    of_weights = {value for node in network.nodes for value in node.outputs[1:]}
    read = ((value, node.segment) for node in network.nodes for value in node.inputs if value not in of_weights)
    return Counter(read)


def _is_on_grid(node: Node, target: Target) -> bool:
    """Return whether a node returns gradients of the format if such a gradient arrives."""
    return node.op in _ON_GRID and (node.op != "norm" or rounds_inside(node, target))


def rounds_inside(node: Node, target: Target) -> bool:
    """Return whether one operation computes this norm and its activation, and rounds its results and gradients."""
    native = target.uses_batch_statistics(node) and not target.synced and "emulator_batch_norm" in target.native
    return native or isinstance(node.norm, GroupNorm)


def _always_rounds(node: Node, target: Target) -> bool:
    """Return whether a node rounds the gradient of its result in any case, as part of its own gradient."""
    if node.op != "norm":
        return node.op == "swish"
    return rounds_inside(node, target) or (isinstance(node.norm, BatchNorm) and node.activation != LINEAR)


def _rounds_in(maker: Node | None, segment: str) -> bool:
    """Return whether the node that made a value rounds its gradient for the readers in a segment."""
    return maker is not None and maker.segment == segment and maker.op in _ROUNDING


def _has_one_reader(node: Node, readers: Counter[_Place]) -> bool:
    """Return whether one node of the same segment reads the result, or only other segments do."""
    value = node.outputs[0]
    elsewhere = any(v == value and segment != node.segment for v, segment in readers)
    return readers[value, node.segment] + elsewhere == 1


def _sum(reader: Node, value: int, total: int, made: Mapping[int, Node], given: Formats) -> Node:
    shape = made[value].shape if value in made else reader.source
    return Node(
        op=SUM, inputs=(value,), outputs=(total,), segment=reader.segment, scope=reader.scope, source=shape, shape=shape,
        formats=given,
    )  # fmt: skip


def _of_node(node: Node, precision: Precision, target: Target, draw: Callable[[], int]) -> Formats:
    """Return the numbers of the roundings inside a node, in the order in which they are numbered."""
    operand = arriving = pixels = result = None
    if node.op in PRODUCTS:
        formats = precision.operands_of(node.variable("kernel"))
        operand = None if formats.activation.contains(precision.compute) else draw()
        arriving = None if formats.gradient.contains(precision.compute) or not target.training else draw()
    if precision.rounds_results and node.op not in _UNROUNDED:
        pixels = draw() if node.op == "global_mean" else None
        result = draw()
    return Formats(operand=operand, arriving=arriving, pixels=pixels, result=result)
