"""Write each layer as the operations that round: the first pass of every list.

    conv with bias     ->  conv, bias
    norm, activation   ->  norm(activation)
    norm, proxy        ->  proxy_norm

A dense layer is split as a convolution is. A norm and its activation are one operation, as on the IPU. Without training,
dropout is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cnn_harness.emulator.network.network import OPS, PRODUCTS, Network, Node
from cnn_harness.emulator.passes.target import Target


def normal_form(network: Network, target: Target) -> Network:
    """Return the network with biases as operations of their own, and with norms that compute their activations."""
    if not target.training:
        network = _without_dropout(network)
    new, readers, nodes = network.new_values(), network.readers(), []
    made: dict[int, int] = {}  # maps a value to the place of the norm that makes it
    for node in network.nodes:
        place = made.get(node.inputs[0]) if OPS[node.op].activation or node.op == "proxy" else None
        if place is not None and readers[node.inputs[0]] == 1 and nodes[place].segment == node.segment:
            nodes[place] = _joined(nodes[place], node)
            continue
        if node.op == "norm":
            made[node.outputs[0]] = len(nodes)
        nodes += _with_bias_apart(node, new)
    return replace(network, nodes=tuple(nodes))


def _joined(norm: Node, after: Node) -> Node:
    """Return a norm that also computes the activation or the proxy norm after it."""
    if after.op == "proxy":
        return replace(after, op="proxy_norm", norm=norm.norm, inputs=norm.inputs, label="proxy_norm_activation")
    return replace(norm, activation=after.op, outputs=after.outputs, label="norm_activation")


def _with_bias_apart(node: Node, new: Iterator[int]) -> list[Node]:
    if node.op not in PRODUCTS or node.variable("bias") is None:
        return [node]
    product, (kernel, bias) = next(new), node.variables
    after = node.inserted("bias", product, node.outputs[0], node.shape, variables=(bias,), label=node.op)
    return [replace(node, outputs=(product,), variables=(kernel,)), after]


def _without_dropout(network: Network) -> Network:
    same: dict[int, int] = {}  # maps the result of a dropout to its input
    nodes = []
    for node in network.nodes:
        inputs = tuple(same.get(value, value) for value in node.inputs)
        if node.op in ("dropout", "drop_path"):
            same[node.outputs[0]] = inputs[0]
        else:
            nodes.append(replace(node, inputs=inputs))
    return replace(network, nodes=tuple(nodes), ends=tuple(same.get(value, value) for value in network.ends))
