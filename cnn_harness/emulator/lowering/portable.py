"""Build an FP32 network for inference in other runtimes from operations that every runtime supports.

There are no native operations, no functions compiled by XLA, and no gradients. Convolutions are not replaced by other
operations, so that converters can quantise and fuse them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import tensorflow.compat.v1 as tf

from cnn_harness.emulator.layers import batch_norm, group_norm
from cnn_harness.emulator.layers.activations import ACTIVATIONS
from cnn_harness.emulator.lowering import tensorflow as lowering
from cnn_harness.emulator.lowering.convolutions import depthwise, padded, plain
from cnn_harness.emulator.lowering.tensorflow import Build, Lowering
from cnn_harness.emulator.network.network import Network, Node
from cnn_harness.emulator.passes.normal_form import normal_form
from cnn_harness.emulator.passes.target import Target
from cnn_harness.Models._norms import BatchNorm, GroupNorm


def logits(network: Network, weights: Mapping[str, tf.Tensor], image: tf.Tensor) -> tf.Tensor:
    """Return the network's result [batch, classes] for prepared images [batch, side, side, channels], for any batch."""
    target = Target(training=False)
    network = _with_groups_at_norms(normal_form(network, target))
    return Lowering(weights=weights, target=target).run(network, image, operations=_PORTABLE)


def _with_groups_at_norms(network: Network) -> Network:
    """Return the network in which a norm after a grouped convolution has the number of groups."""
    grouped = {n.outputs[0]: n.groups for n in network.nodes if n.op == "conv" and not n.is_depthwise}
    return network.rewritten(lambda n: [replace(n, groups=grouped.get(n.inputs[0], 1)) if n.op == "norm" else n])


def _conv(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    build = depthwise if node.is_depthwise else plain
    return padded(partial(build, weights=low.weight(node, "kernel"), node=node), x, node)


def _norm(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    if not isinstance(node.norm, (BatchNorm, GroupNorm)):
        return lowering.OPERATIONS["norm"](low, node, x)
    return ACTIVATIONS[node.activation].value(_linear(low, node, x, *lowering.scale_and_offset(low, node, x)))


def _linear(low: Lowering, node: Node, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    """Return a norm without its activation."""
    if not isinstance(node.norm, BatchNorm):
        mean, r = group_norm.statistics(x, node.norm)
        factor = r * gamma
        return x * factor + (beta - mean * factor)
    mean, variance = (low.weight(node, name) for name in lowering.MOMENTS)
    if node.groups > 1:
        # TensorFlow would fuse a batch norm or a sum with the convolution, and can run the result only with oneDNN.
        factor = gamma * tf.math.rsqrt(variance + node.norm.epsilon)
        return x * factor - (mean * factor - beta)
    return batch_norm.inference(x, gamma, beta, (mean, variance), node.norm.epsilon)


def _proxy_norm(low: Lowering, node: Node, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    (gamma, beta, mean, inverse), factor = lowering.proxy_rows(low, node)
    y = ACTIVATIONS[node.activation].value(_linear(low, node, x, gamma, beta)) - mean
    return y * inverse if node.scaled else y, factor


_PORTABLE: Mapping[str, Build] = {
    **lowering.OPERATIONS,
    "conv": _conv,
    "norm": _norm,
    "proxy_norm": _proxy_norm,
    "swish": lambda low, node, x: ACTIVATIONS["swish"].value(x),
    "subsample": lambda low, node, x: lowering.with_more_channels(node, x[:, :: node.stride, :: node.stride, :]),
}
