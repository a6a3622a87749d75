"""Build an FP32 network for inference in other runtimes from operations that every runtime supports.

There are no native operations, no functions compiled by XLA, and no gradients. Convolutions are not replaced by other
operations, so that converters can quantise and fuse them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import tensorflow.compat.v1 as tf

from emulator.layers import batch_norm, group_norm, proxy_norm
from emulator.lowering.convolutions import padded
from emulator.lowering.tensorflow import MOMENTS, OPERATIONS, Build, Lowering, scale_and_offset, with_more_channels
from emulator.network.network import Network, Node
from emulator.passes.normal_form import normal_form
from emulator.passes.target import Target
from Models._norms import BatchNorm, GroupNorm

_ACTIVATIONS = {"linear": lambda x: x, "relu": tf.nn.relu, "relu6": tf.nn.relu6, "swish": lambda x: x * tf.sigmoid(x)}


def logits(network: Network, weights: Mapping[str, tf.Tensor], image: tf.Tensor) -> tf.Tensor:
    """Return the network's result [batch, classes] for prepared images [batch, side, side, channels]. Batches may have any
    size."""
    target = Target(training=False)
    lowering = Lowering(weights=weights, target=target)
    return lowering.run(_with_groups_at_norms(normal_form(network, target)), image, operations=_PORTABLE)


def _with_groups_at_norms(network: Network) -> Network:
    """Return the network in which a norm after a grouped convolution has the number of groups."""
    grouped = {n.outputs[0]: n.groups for n in network.nodes if n.op == "conv" and not n.is_depthwise}
    nodes = (replace(n, groups=grouped.get(n.inputs[0], 1)) if n.op == "norm" else n for n in network.nodes)
    return replace(network, nodes=tuple(nodes))


def _conv(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    weights = low.weight(node, "kernel")
    if node.is_depthwise:
        depthwise = tf.reshape(weights, [node.kernel, node.kernel, node.groups, 1])
        strides = [1, node.stride, node.stride, 1]
        window = partial(tf.nn.depthwise_conv2d_native, filter=depthwise, strides=strides, padding="SAME")
    else:
        window = partial(tf.nn.conv2d, filter=weights, strides=node.stride, padding="SAME")
    return padded(window, x, node.stride, node.padding)


def _norm(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    if not isinstance(node.norm, (BatchNorm, GroupNorm)):
        return OPERATIONS["norm"](low, node, x)
    return _ACTIVATIONS[node.activation](_linear(low, node, x, *scale_and_offset(low, node, x)))


def _linear(low: Lowering, node: Node, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    """Return a norm without its activation."""
    if not isinstance(node.norm, BatchNorm):
        mean, r = group_norm.statistics(x, node.norm)
        factor = r * gamma
        return x * factor + (beta - mean * factor)
    mean, variance = (low.weight(node, name) for name in MOMENTS)
    if node.groups > 1:
        # TensorFlow would fuse a batch norm or a sum with the convolution, and can run the result only with oneDNN.
        factor = gamma * tf.math.rsqrt(variance + node.norm.epsilon)
        return x * factor - (mean * factor - beta)
    return batch_norm.inference(x, gamma, beta, (mean, variance), node.norm.epsilon)


def _proxy_norm(low: Lowering, node: Node, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    own = tf.unstack(low.weight(node, "proxy"))
    beta, gamma, mean, inverse = (tf.reshape(own[row], [-1]) for row in proxy_norm.ROWS[:4])
    y = _ACTIVATIONS[node.activation](_linear(low, node, x, gamma, beta)) - mean
    return y * inverse if node.scaled else y, own[proxy_norm.INVERSE_DEVIATION][None]


_PORTABLE: Mapping[str, Build] = {
    **OPERATIONS,
    "conv": _conv,
    "norm": _norm,
    "proxy_norm": _proxy_norm,
    "swish": lambda low, node, x: x * tf.sigmoid(x),
    "gate": lambda low, node, x, factor: x * factor,
    "subsample": lambda low, node, x: with_more_channels(node, x[:, :: node.stride, :: node.stride, :]),
}
