"""Replace neighbouring operations by one native operation that returns the same bits.

norm ---+
        +--> add --> relu    ->  norm(relu, shortcut)       training in FP32
x ------+

conv --> norm(activation)    ->  conv_norm(activation)      inference in FP32
gate --> conv_norm           ->  conv_norm with a gate
conv --> bias --> activation ->  conv_bias(activation)
dense --> bias               ->  conv_bias
global_mean --> conv_bias    ->  conv_bias of a mean
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cnn_harness.emulator.network.network import LINEAR, OPS, Network, Node
from cnn_harness.emulator.passes.target import Target
from cnn_harness.emulator.plan.precision import Precision
from cnn_harness.Models._norms import BatchNorm

Found = "tuple[Node, list[Node]] | None"


@dataclass(frozen=True)
class Neighbours:
    """The nodes before a node, for patterns."""

    target: Target
    made: Mapping[int, Node]
    readers: Mapping[int, int]

    def before(self, node: Node, k: int = 0) -> Node | None:
        """Return the node that makes input k, if only `node` reads it."""
        maker = self.made.get(node.inputs[k])
        return maker if maker and self.readers[node.inputs[k]] == 1 and maker.outputs == (node.inputs[k],) else None


def fuse(network: Network, precision: Precision, target: Target) -> Network:
    """Return the network with fused operations. Narrow formats and checks need each operation by itself."""
    exact = not (precision.rounds_results or precision.rounds_operands or precision.checks)
    if not (exact and target.native):
        return network
    made: dict[int, Node] = {}
    near = Neighbours(target, made, network.readers())
    for node in network.nodes:
        for pattern in PATTERNS[target.training]:
            found = pattern(node, near)
            if found:
                fused, replaced = found
                parts = tuple(op for each in (*replaced, node) for op in each.fused or (each.op,))
                node = replace(fused, segment=node.segment, outputs=node.outputs, shape=node.shape, fused=parts)
                for each in replaced:
                    del made[each.outputs[0]]
        made[node.outputs[0]] = node
    return replace(network, nodes=tuple(made.values()))


def _norm_sum_relu(node: Node, near: Neighbours) -> Found:
    total = near.before(node) if node.op == "relu" else None
    if total is None or total.op != "add" or near.target.synced:
        return None
    for k in (1, 0):
        norm = near.before(total, k)
        if norm and norm.op == "norm" and norm.activation == LINEAR and near.target.uses_batch_statistics(norm):
            return replace(norm, activation="relu", inputs=(norm.inputs[0], total.inputs[1 - k])), [norm, total]
    return None


def _conv_norm(node: Node, near: Neighbours) -> Found:
    conv = near.before(node) if isinstance(node.norm, BatchNorm) else None
    if conv is None or not (conv.is_pointwise or (conv.is_depthwise and conv.pads_same)):
        return None
    own = {"norm": node.norm, "activation": node.activation, "variables": conv.variables + node.variables}
    gate = near.before(conv) if conv.is_pointwise else None
    if gate and gate.op == "gate" and gate.inputs[1] in near.made:
        return replace(conv, op="conv_norm", **own, inputs=gate.inputs), [gate, conv]
    return replace(conv, op="conv_norm", **own), [conv]


def _conv_bias(node: Node, near: Neighbours) -> Found:
    bias = near.before(node) if node.op == "sigmoid" or OPS[node.op].activation else None
    conv = near.before(bias) if bias and bias.op == "bias" else None
    return _with_bias(conv, bias, [conv, bias], node.op, near) if conv and conv.is_pointwise else None


def _dense_bias(node: Node, near: Neighbours) -> Found:
    dense = near.before(node) if node.op == "bias" else None
    return _with_bias(dense, node, [dense], LINEAR, near) if dense and dense.op == "dense" else None


def _with_bias(product: Node, bias: Node, replaced: list[Node], activation: str, near: Neighbours) -> Found:
    fused = replace(product, op="conv_bias", activation=activation, variables=product.variables + bias.variables)
    mean = near.before(product)
    if mean and mean.op == "global_mean":
        return replace(fused, inputs=mean.inputs, source=mean.source), [mean, *replaced]
    return fused, replaced


# For training and for inference: functions that return a new node, and the nodes before this one that it replaces.
PATTERNS = {True: (_norm_sum_relu,), False: (_conv_norm, _conv_bias, _dense_bias)}
