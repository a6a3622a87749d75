"""Insert nodes that look at values and change nothing.

    conv  ->  conv, count, check
    conv  ->  observe, conv, observe

A check ends the run at a result or gradient that is not finite (--fp-exceptions). A count finds how many gradients of a
product narrow formats lose. An observer keeps what a product multiplies, for --numerics.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from emulator.network.network import PRODUCTS, Network, Node
from emulator.passes.formats import SUM

CHECK, COUNT, OBSERVE = "check", "count", "observe"
_CHECKED = (
    *PRODUCTS, "bias", "norm", "proxy_norm", "relu", "relu6", "swish", "sigmoid", "add", "gate", "max_pool", "global_mean",
    "dropout", "drop_path",
)  # fmt: skip


def checks(network: Network) -> Network:
    """Return the network with checks of each layer's result, and of the gradients that each layer returns."""
    network = replace(network, nodes=tuple(replace(node, checked=node.op != SUM) for node in network.nodes))
    return _followed(network, CHECK, _CHECKED)


def counts(network: Network, watched: Collection[str]) -> Network:
    """Return the network with a count after each convolution and dense layer whose path is watched."""
    return _followed(network, COUNT, (*PRODUCTS, "bias"), watched)


def observed(network: Network) -> Network:
    """Return the network with a look at the input and at the result of each product. The label is the kernel's name."""
    nodes, new = [], network.new_values()
    for node in network.nodes:
        if node.op not in PRODUCTS:
            nodes.append(node)
            continue
        kernel, x, y = node.variable("kernel"), next(new), next(new)
        own = replace(node, inputs=(x,), outputs=(y,))
        nodes += [_look(OBSERVE, node, node.inputs[0], x, kernel), own, _look(OBSERVE, node, y, node.outputs[0], kernel)]
    return replace(network, nodes=tuple(nodes))


def _followed(network: Network, op: str, ops: Collection[str], paths: Collection[str] | None = None) -> Network:
    """Return the network with a node `op` after each of `ops` that ends a layer, on these paths (None: on all)."""
    nodes, new = [], network.new_values()
    biased = {node.path for node in network.nodes if node.op == "bias"}  # there, the product does not end the layer
    for node in network.nodes:
        ends = node.op in ops and not (node.op in PRODUCTS and node.path in biased)
        if not ends or (paths is not None and node.path not in paths):
            nodes.append(node)
            continue
        made = next(new)
        nodes += [replace(node, outputs=(made, *node.outputs[1:])), _look(op, node, made, node.outputs[0], node.path)]
    return replace(network, nodes=tuple(nodes))


def _look(op: str, node: Node, value: int, result: int, label: str) -> Node:
    return Node(
        op=op, inputs=(value,), outputs=(result,), segment=node.segment, scope=node.scope, source=node.shape,
        shape=node.shape, label=label,
    )  # fmt: skip
