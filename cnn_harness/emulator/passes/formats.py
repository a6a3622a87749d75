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
from dataclasses import replace

from cnn_harness.emulator.network.network import LINEAR, OPS, PRODUCTS, Formats, Network, Node, Read
from cnn_harness.emulator.passes.target import Target
from cnn_harness.emulator.plan.precision import Precision
from cnn_harness.Models._norms import BatchNorm, GroupNorm


def formats(network: Network, precision: Precision, target: Target) -> Network:
    """Return the network with `Formats` at each node, and with nodes that sum the gradients of a value's readers."""
    if not (precision.rounds_results or precision.rounds_operands):
        return network
    return network.rewritten(_State(network, precision, target).with_formats)


class _State:
    """The nodes so far, and the number of the next rounding in each segment."""

    def __init__(self, network: Network, precision: Precision, target: Target) -> None:
        self.precision, self.target = precision, target
        self.made: dict[int, Node] = {}
        self.inputs: dict[tuple[int, str], int] = {}  # maps a value and a segment to what is read there, such as a sum.
        self.draws, self.new_values = Counter[str](), network.new_values()
        read = [(value, node.segment) for node in network.nodes for value in node.inputs]
        of_weights = {value for node in network.nodes for value in node.outputs[1:]}  # inverse deviations of proxy norm
        rounded = precision.rounds_results and target.training
        # counts the nodes of a segment that read a value, for all values whose gradients are rounded.
        self.readers = Counter(place for place in read if rounded and place[0] not in of_weights)

    def with_formats(self, node: Node) -> list[Node]:
        """Return a node with its formats, after the sums that it is the first to need."""
        sums: list[Node] = []
        inputs, reads = zip(*[self.read(node, value, sums) for value in node.inputs])
        own = replace(self.of_node(node), reads=reads, rounds_gradient=self.rounds_gradient(node))
        self.made[node.outputs[0]] = replace(node, inputs=inputs, formats=own)
        return [*sums, self.made[node.outputs[0]]]

    def draw(self, node: Node) -> int:
        """Return the number of the next rounding in the segment. Numbers are the keys of random draws."""
        self.draws[node.segment] += 1
        return self.draws[node.segment]

    def read(self, node: Node, value: int, sums: list[Node]) -> tuple[int, Read | None]:
        """Return what a node reads as one of its inputs, and who rounds the gradient. Add a new sum to `sums`."""
        place = value, node.segment
        if place not in self.readers:
            return value, None
        maker, several = self.made.get(value), self.readers[place] > 1
        maker_rounds = maker is not None and maker.segment == node.segment and OPS[maker.op].rounds_gradient
        if place not in self.inputs:
            number = self.draw(node)  # needed or not, so that a run's random draws stay the same.
            self.inputs[place] = next(self.new_values) if several else value
            if several:
                shape = maker.shape if maker else node.source
                own = Formats(result=number, rounds_gradient=not maker_rounds)
                sums.append(node.inserted("sum_gradients", value, self.inputs[place], shape, formats=own))
        number = None if _keeps_gradients(node, self.target) else self.draw(node)
        if number is not None and maker_rounds and not several:
            number = None if _always_rounds(maker, self.target) else maker.formats.result
        return self.inputs[place], None if number is None and not several else Read(number, several)

    def of_node(self, node: Node) -> Formats:
        """Return the numbers of the roundings inside a node, in the order in which they are numbered."""
        operand = gradient = pixels = result = None
        if node.op in PRODUCTS:
            formats = self.precision.operands_of(node.variable("kernel"))
            operand = None if formats.activation.contains(self.precision.compute) else self.draw(node)
            exact = formats.gradient.contains(self.precision.compute) or not self.target.training
            gradient = None if exact else self.draw(node)
        if self.precision.rounds_results and not OPS[node.op].keeps_values:
            pixels = self.draw(node) if node.op == "global_mean" else None
            result = self.draw(node)
        return Formats(operand=operand, gradient=gradient, pixels=pixels, result=result)

    def rounds_gradient(self, node: Node) -> bool:
        """Return whether a node rounds the gradient of its result. If there is one reader, that node does so."""
        value = node.outputs[0]
        elsewhere = any(v == value and segment != node.segment for v, segment in self.readers)
        several = self.readers[value, node.segment] + elsewhere != 1
        return bool(self.readers) and OPS[node.op].rounds_gradient and several


def is_one_operation(norm: Node, target: Target) -> bool:
    """Return whether one operation computes a norm and its activation, and rounds all results and gradients inside."""
    native = target.uses_batch_statistics(norm) and not target.synced and "emulator_norm" in target.native
    return native or isinstance(norm.norm, GroupNorm)


def _keeps_gradients(node: Node, target: Target) -> bool:
    """Return whether a node returns gradients of the format if such a gradient arrives."""
    return OPS[node.op].keeps_gradients and (node.op != "norm" or is_one_operation(node, target))


def _always_rounds(node: Node, target: Target) -> bool:
    """Return whether a node rounds the gradient of its result in any case, as part of its own gradient."""
    if node.op != "norm":
        return node.op == "swish"
    return is_one_operation(node, target) or (isinstance(node.norm, BatchNorm) and node.activation != LINEAR)
