"""Insert nodes that look at values and change nothing.

    conv  ->  conv, count, check
    conv  ->  observe, conv, observe

A check ends the run at a result or gradient that is not finite (--fp-exceptions). A count finds how many gradients of a
product narrow formats lose. An observer keeps what a product multiplies, for --numerics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from cnn_harness.emulator.network.network import OPS, PRODUCTS, Network, Node


def checks(network: Network) -> Network:
    """Return the network with checks of each layer's result, and of the gradients that each layer returns."""
    network = network.rewritten(lambda node: [replace(node, checked=node.op != "sum_gradients")])
    return _followed(network, "check", lambda node: not OPS[node.op].moves)


def counts(network: Network, watched: Collection[str]) -> Network:
    """Return the network with a count after each convolution and dense layer whose path is watched."""
    return _followed(network, "count", lambda node: node.op in (*PRODUCTS, "bias") and node.path in watched)


def observed(network: Network) -> Network:
    """Return the network with a look at the input and at the result of each product. The label is the kernel's name."""
    new = network.new_values()

    def looked_at(node: Node) -> list[Node]:
        if node.op not in PRODUCTS:
            return [node]
        kernel, x, y = node.variable("kernel"), next(new), next(new)
        before = node.inserted("observe", node.inputs[0], x, node.source, label=kernel)
        after = node.inserted("observe", y, node.outputs[0], node.shape, label=kernel)
        return [before, replace(node, inputs=(x,), outputs=(y,)), after]

    return network.rewritten(looked_at)


def _followed(network: Network, op: str, wanted: Callable[[Node], bool]) -> Network:
    """Return the network with a node `op` after each wanted node that ends a layer."""
    new = network.new_values()
    biased = {node.path for node in network.nodes if node.op == "bias"}  # there, the product does not end the layer

    def followed(node: Node) -> list[Node]:
        if not wanted(node) or (node.op in PRODUCTS and node.path in biased):
            return [node]
        made = next(new)
        look = node.inserted(op, made, node.outputs[0], node.shape, label=node.path)
        return [replace(node, outputs=(made, *node.outputs[1:])), look]

    return network.rewritten(followed)
