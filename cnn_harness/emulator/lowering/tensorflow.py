"""Build a network from TensorFlow's operations: a function for each `op` of a node.

Weights are tensors by name; the caller decides how they are stored and cast. Random draws depend on (seed, layer, sample
position), and stochastic rounding on (seed, segment, number of the rounding, sample position). Values between nodes have the
narrowest dtype that holds their format; inside a node they are FP32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from cnn_harness.base import draws
from cnn_harness.base.gradient_rules import by_rule, with_gradient
from cnn_harness.emulator.layers import activations, batch_norm, group_norm, proxy_norm
from cnn_harness.emulator.layers.block_formats import BlockOperands
from cnn_harness.emulator.layers.rounding import (
    BACKWARD,
    Noise,
    Rounding,
    kernel_attributes,
    recomputed,
    storage_dtype,
    widened,
)
from cnn_harness.emulator.layers.watch import GradientWatch, check_finite
from cnn_harness.emulator.lowering.convolutions import KERNELS, Narrow, padded, subsample
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.network import LINEAR, PRODUCTS, Network, Node
from cnn_harness.emulator.passes.formats import is_one_operation
from cnn_harness.emulator.passes.target import Target
from cnn_harness.emulator.plan.checkpoint_tensors import AMAX_HISTORY
from cnn_harness.Models._norms import BatchNorm, GroupNorm, Norm

MOMENTS = "moving_mean", "moving_variance"  # the variables of batch norm that hold moving statistics
Build = Callable[..., Any]  # arguments: lowering, node, a tensor for each input


class OperandRoundings(NamedTuple):
    """The roundings of a layer's operands. None means no rounding."""

    activation: Rounding | None
    gradient: Rounding | None
    kernel_index: int | None = None  # if formats are scaled: the layer's row in the history of largest values (amax).
    blocks: BlockOperands | None = None  # if operands have block formats, which the other fields leave out.


@dataclass(kw_only=True)
class Lowering:
    """The context of a network's operations: everything that they need in addition to their inputs."""

    weights: Mapping[str, tf.Tensor]  # every variable by full name. Results have this dtype, or the dtype of their format.
    target: Target
    seed: draws.Seed = 0
    positions: tf.Tensor | None = None  # int64 [batch], in training only: the key of random draws.
    norm_parts: int = 1  # the number of equal parts of the batch that have separate batch-norm statistics.
    watch: GradientWatch | None = None  # counts the gradients that narrow formats lose.
    sync_mean: Callable[[tf.Tensor], tf.Tensor] | None = None  # averages over the processes that share batch norm.
    rounding: Rounding | None = None  # rounds results and gradients, if they are rounded.
    operands: Callable[[str], OperandRoundings] = lambda kernel: OperandRoundings(None, None)  # of the layer with a kernel.
    stochastic: bool = False  # roundings are stochastic.
    product_dtype: tf.DType | None = None  # the dtype of convolutions and matrix products, if it is not that of the weights.
    product: Callable[[str, tf.Tensor], tf.Tensor] = lambda kernel, y: y  # changes the result of the layer with a kernel.
    statistics: dict[str, tf.Tensor] = field(default_factory=dict)  # gets each moving statistic on this micro-batch.
    observed: dict[str, list[tf.Tensor]] = field(default_factory=dict)  # gets inputs and gradients of observed kernels.
    _drawn: dict[tuple[str, int, int], tf.Tensor] = field(default_factory=dict)

    def run(self, network: Network, *inputs: tf.Tensor, operations: Mapping[str, Build] | None = None) -> tf.Tensor:
        """Return the result of a network for its inputs [batch, height, width, channels]."""
        values, table = dict(zip(network.inputs, inputs)), operations or OPERATIONS
        for node in network.nodes:
            results = table[node.op](self, node, *(self._read(node, k, values[v]) for k, v in enumerate(node.inputs)))
            if node.op in PRODUCTS:
                results = self.product(node.variable("kernel"), results)
            values |= zip(node.outputs, results if isinstance(results, tuple) else (results,))
        return values[network.output]

    @property
    def dtype(self) -> tf.DType:
        """The dtype of rounded results."""
        return storage_dtype(self.rounding.format)

    def weight(self, node: Node, name: str) -> tf.Tensor | None:
        """Return the variable of a node whose name ends with `name`, or None."""
        full = node.variable(name)
        return None if full is None else self.weights[full]

    def has(self, operation: str, *inputs: tf.Tensor) -> bool:
        """Return whether there is a native operation, and the inputs have 16 bits."""
        return operation in self.target.native and all(x.dtype.size == 2 for x in inputs)

    def _read(self, node: Node, k: int, x: tf.Tensor) -> tf.Tensor:
        """Return input k of a node, whose gradient is rounded and checked as the passes decided."""
        read = node.formats.reads[k] if node.formats.reads else None
        if read is not None:
            noise = self.noise(node, read.draw, x)
            done = read.draw is None or (node.op == "conv" and KERNELS[node.computed_by].rounds_input)
            dtype = tf.float32 if read.adds else x.dtype  # sums of gradients are FP32

            def gradient(dy: tf.Tensor) -> tf.Tensor:
                if not done and dy.dtype == tf.float32:
                    return self.rounding.of_gradient(dy, noise, dtype)
                return widened(dy) if read.adds else dy

            x = by_rule("Identity", tf.identity, x, rule=gradient)
        if node.checked and self.target.training:
            x = by_rule("Identity", tf.identity, x, rule=lambda dy: check_finite(dy, f"{node.path}, backward"))
        return x

    def noise(self, node: Node, number: int | None, x: tf.Tensor) -> Noise:
        """Return the random bits of a numbered rounding of a tensor like x."""
        if number is None or not self.stochastic or self.positions is None:
            return ()
        place = node.segment, number, x.shape.rank
        if place not in self._drawn:
            key = draws.key(self.seed, f"rounding/{node.segment}/{number}")
            self._drawn[place] = draws.bits(key, tf.reshape(self.positions, [-1] + [1] * (x.shape.rank - 1)))
        return (self._drawn[place],)

    def result(self, node: Node, y: tf.Tensor) -> tf.Tensor:
        """Return a node's result in its format, and round the gradient that arrives there if nobody else does."""
        if self.rounding is None:
            return y
        noise = self.noise(node, node.formats.result, y)

        def rule(dy: tf.Tensor) -> tf.Tensor:
            return self.rounding.of_gradient(dy, noise) if node.formats.rounds_gradient else widened(dy)

        return self.rounding.value(y, noise, self.dtype, rule)

    def stored(self, y: tf.Tensor) -> tf.Tensor:
        """Return numbers of the format in the dtype of values between nodes."""
        if self.rounding is None or y.dtype == self.dtype:
            return y
        return self.rounding.value(y, dtype=self.dtype)

    def inside(self, node: Node, x: tf.Tensor) -> tuple[Rounding | None, Noise]:
        """Return rounding and noise for an operation that rounds its results and gradients itself."""
        return self.rounding, self.noise(node, node.formats.result, x)

    def by_kernel(self, node: Node, build: Build, rule: Callable[..., Any], *sources: tf.Tensor) -> tf.Tensor:
        """Return build(*sources), rounded by a native operation. `rule` returns the gradients of the sources."""
        noise = self.noise(node, node.formats.result, sources[0])

        @with_gradient
        def apply(*sources: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
            return build(*sources, **self.rounded_by_kernel(noise)), lambda dy: rule(self.result_gradient(node, dy, noise))

        return apply(*sources)

    def rounded_by_kernel(self, noise: Noise) -> dict[str, Any]:
        """Return the arguments that tell a native operation how to round and store its results."""
        return {**kernel_attributes(self.rounding, noise), "V": self.dtype}

    def result_gradient(self, node: Node, dy: tf.Tensor, noise: Noise) -> tf.Tensor:
        """Return the gradient of a result, rounded if this node must round it."""
        return self.rounding.of_gradient(dy, noise, self.dtype) if node.formats.rounds_gradient else dy


def _operand(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    """Return the operand that a product multiplies, rounded to the format of operands."""
    rounding, _, kernel_index, _ = low.operands(node.variable("kernel"))
    if rounding is None:
        return x
    x, noise = widened(x), low.noise(node, node.formats.operand, x)
    if kernel_index is None:
        return rounding.value(x, noise, storage_dtype(rounding.format), rule=lambda dy: dy)
    if low.watch is not None:
        low.watch.record_operand_amax(kernel_index, 0, x)
    return rounding.scaled_value(x, low.weights[AMAX_HISTORY][kernel_index, 0], noise)


def _with_rounded_gradient(low: Lowering, node: Node, y: tf.Tensor) -> tf.Tensor:
    """Return a product whose gradient is rounded to the format of gradients that are multiplied."""
    _, rounding, kernel_index, _ = low.operands(node.variable("kernel"))
    if rounding is None or not low.target.training:
        return y
    noise = low.noise(node, node.formats.gradient, y)
    if kernel_index is None:
        return rounding.gradient(y, noise)
    y = rounding.scaled_gradient(y, low.weights[AMAX_HISTORY][kernel_index, 1], noise)
    return y if low.watch is None else low.watch.record_gradient_amax(kernel_index, y)


def _multiplied(low: Lowering, node: Node, multiply: Build, x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return multiply(x, weights), computed in the dtype of products, with operands rounded to block formats."""
    blocks, own = low.operands(node.variable("kernel")).blocks, node.formats
    if blocks is not None:
        noise = low.noise(node, own.operand, x), low.noise(node, own.gradient, x)
        signs = draws.bits(draws.key(low.seed, "hadamard")) if blocks.rotates and low.target.training else None
        place = {"groups": node.groups, "micro_batches": low.norm_parts}
        return blocks.product(multiply, **place, noise=noise, signs=signs)(x, weights)
    dtype = x.dtype if node.groups > 1 else low.product_dtype or x.dtype  # TensorFlow is slow at groups in 16 bits.
    y = multiply(tf.cast(x, dtype), tf.cast(weights, dtype))
    return tf.cast(y, tf.float32) if dtype == low.product_dtype else y


def _conv(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    x, weights, kernel = _operand(low, node, x), low.weight(node, "kernel"), KERNELS[node.computed_by]
    if kernel.rounds_result:
        return kernel.build(x, weights, node, _narrow(low, node, x))

    def multiply(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        return padded(partial(kernel.build, weights=weights, node=node), x, node)

    product = recomputed(partial(_multiplied, low, node, multiply))(x, weights)
    return low.result(node, _with_rounded_gradient(low, node, product))


def _narrow(low: Lowering, node: Node, x: tf.Tensor) -> Narrow:
    """Return the roundings for a kernel that rounds its result."""
    rounding = low.operands(node.variable("kernel")).gradient
    noise, noise_in_products = (low.noise(node, n, x) for n in (node.formats.result, node.formats.gradient))

    def result_gradient(dy: tf.Tensor) -> tf.Tensor:
        dy = low.result_gradient(node, dy, noise)
        return rounding.of_gradient(dy, noise_in_products, storage_dtype(rounding.format)) if rounding else dy

    read = node.formats.reads[0] if node.formats.reads else None
    if read is None or read.draw is None:
        return Narrow(low.rounded_by_kernel(noise), result_gradient, {"noise": ()})
    dtype = tf.float32 if read.adds else low.dtype
    input_gradient = {**kernel_attributes(low.rounding, low.noise(node, read.draw, x)), "salt": BACKWARD, "V": dtype}
    return Narrow(low.rounded_by_kernel(noise), result_gradient, input_gradient)


def _dense(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    operand = widened(_operand(low, node, _flat(widened(x))))
    product = _multiplied(low, node, tf.matmul, operand, low.weight(node, "kernel"))
    return low.result(node, _with_rounded_gradient(low, node, product))


def _flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, math.prod(x.shape[1:])])


def _norm(low: Lowering, node: Node, x: tf.Tensor, *shortcuts: tf.Tensor) -> tf.Tensor:
    gamma, beta = scale_and_offset(low, node, x)
    return NORMS[type(node.norm)](low, node, x, *shortcuts, gamma=gamma, beta=beta)


def scale_and_offset(low: Lowering, node: Node, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the scale and the offset of a norm [channels]: its variables, or ones and zeros."""
    dtype = tf.float32 if x.dtype.size == 2 else x.dtype
    gamma, beta = low.weight(node, "gamma"), low.weight(node, "beta")
    gamma = tf.ones(x.shape[-1:], dtype) if gamma is None else gamma
    return gamma, tf.zeros(x.shape[-1:], dtype) if beta is None else beta


def _group_norm(low: Lowering, node: Node, x: tf.Tensor, *, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return low.stored(group_norm.group_norm(x, gamma, beta, node.norm, node.activation, *low.inside(node, x)))


def _batch_norm(
    low: Lowering, node: Node, x: tf.Tensor, *shortcuts: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
) -> tf.Tensor:
    if is_one_operation(node, low.target):
        batch = x, gamma, beta, low.norm_parts, node.norm.epsilon, node.activation
        return low.stored(_with_statistics(low, node, batch_norm.native_batch_norm(*batch, *low.inside(node, x), shortcuts)))
    if low.rounding is None:
        return _in_fp32(low, node, x, gamma, beta, node.activation)
    y = _in_fp32(low, node, x, gamma, beta, LINEAR)
    if node.activation == LINEAR:
        return low.result(node, y)
    return low.stored(activations.rounded_activation(y, node.activation, *low.inside(node, y)))


def _in_fp32(low: Lowering, node: Node, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, activation: str) -> tf.Tensor:
    """Return a batch norm and an activation that are not rounded."""
    if low.target.uses_batch_statistics(node):
        batch = widened(x), gamma, beta, low.norm_parts, node.norm.epsilon
        normed = batch_norm.sync_batch_norm(*batch, low.sync_mean) if low.sync_mean else batch_norm.local_batch_norm(*batch)
        return activations.activated(activation, _with_statistics(low, node, normed))
    own = gamma, beta, tuple(low.weight(node, name) for name in MOMENTS), node.norm.epsilon
    if low.target.training:
        return batch_norm.frozen_batch_norm(x, *own, activation)
    x = widened(x)
    y = batch_norm.native_inference(x, *own, activation)
    return activations.activated(activation, batch_norm.inference(x, *own)) if y is None else y


def _with_statistics(low: Lowering, node: Node, normed: batch_norm.Normed) -> tf.Tensor:
    """Return the values of a batch norm, and record its mean and variance as statistics of the micro-batch."""
    low.statistics |= {node.variable(name): value for name, value in zip(MOMENTS, (normed.mean, normed.variance))}
    return normed.y


def _proxy_norm(low: Lowering, node: Node, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    (gamma, beta, *proxy), factor = proxy_rows(low, node)
    arguments = x, gamma, beta, node.norm, node.activation, *low.inside(node, x)
    return low.stored(group_norm.group_norm(*arguments, proxy=tuple(proxy), scaled=node.scaled)), factor


def proxy_rows(low: Lowering, node: Node) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return gamma, beta, mean and inverse deviation of proxy norm [channels], and the last also as [1, 1, 1, channels]."""
    rows = tf.unstack(low.weight(node, "proxy"))
    used = proxy_norm.GAMMA, proxy_norm.BETA, proxy_norm.MEAN, proxy_norm.INVERSE_DEVIATION
    return [tf.reshape(rows[row], [-1]) for row in used], rows[proxy_norm.INVERSE_DEVIATION][None]


NORMS: dict[type[Norm], Build] = {GroupNorm: _group_norm, BatchNorm: _batch_norm}  # with the activation after the norm


def _relu(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    if not low.has("emulator_relu", x):
        return low.stored(recomputed(tf.nn.relu)(x))
    kernels = library.load()
    rule = lambda dy: kernels.emulator_relu_gradient(x=y, dy=dy)  # noqa: E731
    y = by_rule("EmulatorRelu", lambda x: kernels.emulator_relu(x=x), x, rule=rule)
    return y


def _add(low: Lowering, node: Node, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    if not low.has("emulator_sum", x, y):
        return low.result(node, widened(x) + widened(y))
    operation = library.load().emulator_sum
    return low.by_kernel(node, lambda x, y, **r: operation(x=x, other=y, **r), lambda dy: (dy, dy), x, y)


def _gate(low: Lowering, node: Node, x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    factor, kernels = widened(factor), library.load()
    if "emulator_gate" not in low.target.native or factor.shape[0] != x.shape[0]:
        return low.result(node, recomputed(tf.multiply)(x, factor))

    def gradients(x: tf.Tensor, factor: tf.Tensor, dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tuple(kernels.emulator_gate_gradient(x=x, factor=factor, dy=dy))

    if low.has("emulator_gate", x):
        own = lambda x, factor, **r: kernels.emulator_gate(x=x, factor=factor, **r)  # noqa: E731
        return low.by_kernel(node, own, partial(gradients, x, factor), x, factor)
    apply = with_gradient(lambda x, factor: (x * factor, partial(gradients, x, factor)))
    return low.result(node, apply(x, factor))


def _max_pool(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    valid = node.padding == "VALID"
    window = partial(tf.nn.max_pool2d, ksize=node.kernel, strides=node.stride, padding="VALID" if valid else "SAME")
    return low.stored(recomputed(window if valid else lambda x: padded(window, x, node))(x))


def _global_mean(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    if low.rounding is None:
        return tf.reduce_mean(x, axis=[1, 2], keepdims=True)
    noise = low.noise(node, node.formats.pixels, x)
    return low.result(node, low.rounding.pixel_mean(widened(x), noise))


def with_more_channels(node: Node, x: tf.Tensor) -> tf.Tensor:
    """Return x with as many channels as the node's result; the others are zero, half of them in front."""
    missing = node.shape.channels - node.source.channels
    return tf.pad(x, [[0, 0], [0, 0], [0, 0], [missing // 2, missing - missing // 2]])


def _dropout(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    elements = tf.reshape(tf.range(math.prod(x.shape[1:]), dtype=tf.int64), [1, *x.shape[1:]])
    return _keep(low, node, x, 1 - node.rate, elements)


def _keep(low: Lowering, node: Node, x: tf.Tensor, probability: float, *elements: tf.Tensor) -> tf.Tensor:
    """Return x with random zeros; the other values are divided by their probability."""
    sample = tf.reshape(low.positions, [-1, 1, 1, 1])
    drawn = draws.uniform(draws.key(low.seed, node.path), sample, *elements)
    x = widened(x)
    return low.result(node, x * (tf.cast(drawn < probability, x.dtype) / probability))


def _conv_norm(low: Lowering, node: Node, x: tf.Tensor, *gate: tf.Tensor) -> tf.Tensor:
    names = {"weights": "kernel", "gamma": "gamma", "beta": "beta", "mean": MOMENTS[0], "variance": MOMENTS[1]}
    inputs = {"x": x, **{argument: low.weight(node, name) for argument, name in names.items()}}
    options = {"stride": node.stride, "epsilon": node.norm.epsilon, "activation": node.activation}
    if node.groups > 1:
        return library.load().emulator_depthwise_conv_norm(**inputs, **options)
    return library.load().emulator_pointwise_conv_norm(gate=gate, **inputs, **options)


def _conv_bias(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    weights, dense, of_mean = low.weight(node, "kernel"), "dense" in node.fused, "global_mean" in node.fused
    if dense and not of_mean:
        x = tf.reshape(x, [-1, 1, 1, weights.shape[0]])
    y = library.load().emulator_pointwise_conv_bias(
        x=x, weights=weights[None, None] if dense else weights, bias=low.weight(node, "bias"), activation=node.activation,
        of_mean=of_mean,
    )  # fmt: skip
    return tf.reshape(y, [-1, node.shape.channels]) if dense else y


def _sum_gradients(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    rounds, noise = node.formats.rounds_gradient, low.noise(node, node.formats.result, x)
    return low.rounding.gradient(x, noise) if rounds else tf.identity(x)


def _observe(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    found = low.observed.setdefault(node.label, [])
    if not found:  # the input of the product
        found.append(x)
        return x

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        found.append(dy)
        return dy

    return by_rule("Identity", tf.identity, x, rule=gradient)


OPERATIONS: Mapping[str, Build] = {
    "conv": _conv,
    "dense": _dense,
    "bias": lambda low, node, x: low.result(node, tf.nn.bias_add(widened(x), low.weight(node, "bias"))),
    "norm": _norm,
    "proxy_norm": _proxy_norm,
    "relu": _relu,
    "relu6": lambda low, node, x: low.stored(recomputed(tf.nn.relu6)(x)),
    "swish": lambda low, node, x: low.stored(activations.swish(x, *low.inside(node, x))),
    "sigmoid": lambda low, node, x: low.result(node, tf.sigmoid(widened(x))),
    "add": _add,
    "gate": _gate,
    "concat": lambda low, node, x, y: low.stored(tf.concat([widened(x), widened(y)], -1)),
    "max_pool": _max_pool,
    "global_mean": _global_mean,
    "subsample": lambda low, node, x: low.stored(with_more_channels(node, subsample(widened(x), node.stride))),
    "flatten": lambda low, node, x: low.stored(_flat(widened(x))),
    "dropout": _dropout,
    "drop_path": lambda low, node, x: _keep(low, node, x, node.rate),
    "conv_norm": _conv_norm,
    "conv_bias": _conv_bias,
    "sum_gradients": _sum_gradients,
    "check": lambda low, node, x: check_finite(x, f"{node.label}, forward"),
    "count": lambda low, node, x: low.watch.watch_gradient(x, node.label),
    "observe": _observe,
}
