"""Build a network from TensorFlow's operations: a function for each `op` of a node.

Weights are tensors by name; the caller decides how they are stored and cast. Random draws depend on (seed, layer, sample
position), and stochastic rounding on (seed, segment, number of the rounding, sample position). Values between nodes have the
narrowest dtype that holds their format; inside a node they are FP32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from base import draws
from base.gradient_rules import by_rule, with_gradient
from emulator.layers import activations, batch_norm, group_norm, proxy_norm
from emulator.layers.checks import check_finite
from emulator.layers.rounding import (
    BACKWARD,
    Rounding,
    gradient_rounded,
    kernel_attributes,
    range_factor,
    recomputed,
    rounded,
    rounded_gradient,
    rounded_pixel_mean,
    scaled_gradient_rounded,
    scaled_value_rounded,
    storage_dtype,
    value_rounded,
    widened,
)
from emulator.layers.watch import GradientWatch
from emulator.lowering.convolutions import BUILDS, NARROW_CORE, matrix_product, native_convolution, padded, plain, subsample
from emulator.native import library
from emulator.network.network import LINEAR, Network, Node
from emulator.passes.checks import CHECK, COUNT, OBSERVE
from emulator.passes.formats import SUM, rounds_inside
from emulator.passes.target import Target
from emulator.plan.checkpoint_tensors import AMAX_HISTORY
from Models._norms import BatchNorm, GroupNorm, Norm

MOMENTS = "moving_mean", "moving_variance"  # the variables of batch norm that hold moving statistics
_WITH_ACTIVATION = "norm", "proxy_norm", "conv_norm", "conv_bias"  # these compute the activation of their node
Build = Callable[..., Any]  # arguments: lowering, node, a tensor for each input


class OperandRoundings(NamedTuple):
    """The roundings of a layer's operands. None means no rounding. If the layer's formats are scaled, `kernel_index` is the
    layer's row in the history of largest values (amax)."""

    activation: Rounding | None
    gradient: Rounding | None
    kernel_index: int | None = None


@dataclass(kw_only=True)
class Lowering:
    """The context of a network's operations: everything that they need in addition to their inputs.

    * `weights` has the value of every variable by full name. Results have the dtype of the weights, or of their format.
    * `positions` (int64 [batch], in training only) numbers each sample over all epochs. Random draws depend on it.
    * `norm_parts` is the number of equal parts of the batch that have separate batch-norm statistics.
    * `watch` counts the gradients that narrow formats lose.
    * `sync_mean` returns the mean of a tensor over the processes that share batch-norm statistics.
    * `rounding` rounds results and gradients; None means that they are not rounded. `stochastic` means that roundings are.
    * `operands` returns the roundings for the layer with a given kernel.
    * `product_dtype` is the dtype of convolutions and matrix products. None means the dtype of the weights.
    * `statistics` gets the value of each moving statistic on this micro-batch.
    * `observed` gets the input and the gradient of each product that the pass `observed` looks at, by kernel.
    """

    weights: Mapping[str, tf.Tensor]
    target: Target
    seed: draws.Seed = 0
    positions: tf.Tensor | None = None
    norm_parts: int = 1
    watch: GradientWatch | None = None
    sync_mean: Callable[[tf.Tensor], tf.Tensor] | None = None
    rounding: Rounding | None = None
    operands: Callable[[str], OperandRoundings] = lambda kernel: OperandRoundings(None, None)
    stochastic: bool = False
    product_dtype: tf.DType | None = None
    statistics: dict[str, tf.Tensor] = field(default_factory=dict)
    observed: dict[str, list[tf.Tensor]] = field(default_factory=dict)
    _drawn: dict[tuple[str, int, int], tf.Tensor] = field(default_factory=dict)

    def run(self, network: Network, *inputs: tf.Tensor, operations: Mapping[str, Build] | None = None) -> tf.Tensor:
        """Return the result of a network for its inputs [batch, height, width, channels]."""
        values, table = dict(zip(network.inputs, inputs)), operations or OPERATIONS
        for node in network.nodes:
            if node.activation != LINEAR and node.op not in _WITH_ACTIVATION:
                raise NotImplementedError(f"{node.op} does not compute the activation {node.activation}")
            results = table[node.op](self, node, *(self._read(node, k, values[v]) for k, v in enumerate(node.inputs)))
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
            rounds = read.rounds and node.by != NARROW_CORE  # this kernel rounds the gradient itself
            dtype = tf.float32 if read.adds else x.dtype  # sums of gradients are FP32

            def gradient(dy: tf.Tensor) -> tf.Tensor:
                if rounds and dy.dtype == tf.float32:
                    return rounded_gradient(dy, self.rounding, noise, dtype)
                return widened(dy) if read.adds else dy

            x = by_rule("Identity", tf.identity, x, rule=gradient)
        if node.checked and self.target.training:
            x = by_rule("Identity", tf.identity, x, rule=lambda dy: check_finite(dy, f"{node.path}, backward"))
        return x

    def noise(self, node: Node, number: int | None, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the random bits [batch, 1, ...] of a numbered rounding of a tensor like x, or () to round to nearest."""
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
            return rounded_gradient(dy, self.rounding, noise) if node.formats.rounds_arriving else widened(dy)

        return value_rounded(y, self.rounding, noise, self.dtype, rule)

    def stored(self, y: tf.Tensor) -> tf.Tensor:
        """Return numbers of the format in the dtype of values between nodes."""
        if self.rounding is None or y.dtype == self.dtype:
            return y
        return value_rounded(y, replace(self.rounding, stochastic=False), (), self.dtype)

    def inside(self, node: Node, x: tf.Tensor) -> tuple[Rounding | None, tuple[tf.Tensor, ...]]:
        """Return rounding and noise for an operation that rounds its results and gradients itself."""
        return self.rounding, self.noise(node, node.formats.result, x)

    def by_kernel(self, node: Node, build: Build, rule: Callable[..., Any], *sources: tf.Tensor) -> tf.Tensor:
        """Return build(*sources), rounded by a native operation. `rule` returns the gradients of the sources."""
        noise = self.noise(node, node.formats.result, sources[0])

        @with_gradient
        def apply(*sources: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
            return build(*sources, **self.rounded_by_kernel(noise)), lambda dy: rule(self.arriving(node, dy, noise))

        return apply(*sources)

    def rounded_by_kernel(self, noise: tuple[tf.Tensor, ...]) -> dict[str, Any]:
        """Return the arguments that tell a native operation how to round and store its results."""
        return {**kernel_attributes(self.rounding, noise), "V": self.dtype}

    def arriving(self, node: Node, dy: tf.Tensor, noise: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Return the gradient of a result, rounded if this node must round it."""
        return rounded_gradient(dy, self.rounding, noise, self.dtype) if node.formats.rounds_arriving else dy

    def factors(self, node: Node, weights: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return weights and activations in the dtype of products. Products of groups have the dtype of the activations,
        because TensorFlow is slow at products of groups in 16 bits."""
        dtype = x.dtype if node.groups > 1 else self.product_dtype or x.dtype
        return tf.cast(weights, dtype), tf.cast(x, dtype)

    def as_results(self, y: tf.Tensor) -> tf.Tensor:
        """Return a product in the dtype of results."""
        return tf.cast(y, tf.float32) if y.dtype == self.product_dtype else y


# products


def _operand(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    """Return the operand that a product multiplies, rounded to the format of operands."""
    rounding, _, kernel_index = low.operands(node.variable("kernel"))
    if rounding is None:
        return x
    x, noise = widened(x), low.noise(node, node.formats.operand, x)
    if kernel_index is None:
        return value_rounded(x, rounding, noise, storage_dtype(rounding.format), rule=lambda dy: dy)
    if low.watch is not None:
        low.watch.record_operand_amax(kernel_index, 0, x)
    return scaled_value_rounded(x, _factor(low, kernel_index, 0, rounding), rounding, noise)


def _with_rounded_gradient(low: Lowering, node: Node, y: tf.Tensor) -> tf.Tensor:
    """Return a product whose gradient is rounded to the format of gradients that are multiplied."""
    _, rounding, kernel_index = low.operands(node.variable("kernel"))
    if rounding is None or not low.target.training:
        return y
    noise = low.noise(node, node.formats.arriving, y)
    if kernel_index is None:
        return gradient_rounded(y, rounding, noise)
    y = scaled_gradient_rounded(y, _factor(low, kernel_index, 1, rounding), rounding, noise)
    return y if low.watch is None else low.watch.record_gradient_amax(kernel_index, y)


def _factor(low: Lowering, kernel_index: int, kind: int, rounding: Rounding) -> tf.Tensor:
    """Return the power of two that scales a tensor into the range of its format. `kind` is 0 for an activation and 1 for a
    gradient."""
    return range_factor(low.weights[AMAX_HISTORY][kernel_index, kind], rounding.format)


def _conv(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    x, weights = _operand(low, node, x), low.weight(node, "kernel")
    if node.by not in BUILDS:
        return _narrow_convolution(low, node, x, weights)

    def convolution(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        weights, x = low.factors(node, weights, x)
        window = partial(BUILDS[node.by], weights=weights, node=node)
        return low.as_results(padded(window, x, node.stride, node.padding))

    return low.result(node, _with_rounded_gradient(low, node, recomputed(convolution)(x, weights)))


def _narrow_convolution(low: Lowering, node: Node, x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return a convolution of 16-bit numbers whose kernel rounds the result."""
    _, operand_rounding, _ = low.operands(node.variable("kernel"))
    operand_noise = low.noise(node, node.formats.arriving, x)
    noise = low.noise(node, node.formats.result, x)

    def arriving(dy: tf.Tensor) -> tf.Tensor:
        """Return the gradient of the result as the products of the gradients read it."""
        dy = low.arriving(node, dy, noise)
        if operand_rounding:
            dy = rounded(widened(dy), operand_rounding, operand_noise, BACKWARD, storage_dtype(operand_rounding.format))
        return dy

    if node.by == NARROW_CORE:
        return native_convolution(x, weights, node.stride, low.rounded_by_kernel(noise), arriving, _of_input(low, node, x))
    build = matrix_product if node.kernel == node.stride == 1 else plain
    y = build(x, tf.cast(weights, x.dtype), node)
    return by_rule("Identity", tf.identity, y, rule=lambda dy: tf.cast(arriving(dy), x.dtype))


def _of_input(low: Lowering, node: Node, x: tf.Tensor) -> dict[str, Any]:
    """Return the arguments that tell a native convolution how to round and store the gradient of its input."""
    read = node.formats.reads[0] if node.formats.reads else None
    if read is None or not read.rounds:
        return {"noise": ()}
    dtype = tf.float32 if read.adds else low.dtype
    return {**kernel_attributes(low.rounding, low.noise(node, read.draw, x)), "salt": BACKWARD, "V": dtype}


def _dense(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    operand = widened(_operand(low, node, _flat(widened(x))))
    weights, operand = low.factors(node, low.weight(node, "kernel"), operand)
    return low.result(node, _with_rounded_gradient(low, node, low.as_results(tf.matmul(operand, weights))))


def _flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, math.prod(x.shape[1:])])


def _bias(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    return low.result(node, tf.nn.bias_add(widened(x), low.weight(node, "bias")))


# norms


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
    if rounds_inside(node, low.target):
        batch = x, gamma, beta, low.norm_parts, node.norm.epsilon, node.activation
        return low.stored(_with_statistics(low, node, batch_norm.native_batch_norm(*batch, *low.inside(node, x), shortcuts)))
    y, activated = _batch_norm_in_fp32(low, node, x, gamma, beta)
    if low.rounding is None:
        return y if activated else activated_by(node, y)
    if node.activation == LINEAR:
        return low.result(node, y)
    return low.stored(activations.rounded_activation(y, node.activation, *low.inside(node, y)))


def _batch_norm_in_fp32(
    low: Lowering, node: Node, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
) -> tuple[tf.Tensor, bool]:
    """Return a batch norm that is not rounded, and whether it has applied the activation."""
    epsilon, activation = node.norm.epsilon, LINEAR if low.rounding else node.activation
    if low.target.uses_batch_statistics(node):
        batch = widened(x), gamma, beta, low.norm_parts, epsilon
        if low.sync_mean:
            return _with_statistics(low, node, batch_norm.sync_batch_norm(*batch, low.sync_mean)), False
        return _with_statistics(low, node, batch_norm.local_batch_norm(*batch)), False
    moving = tuple(low.weight(node, name) for name in MOMENTS)
    if low.target.training:
        return batch_norm.frozen_batch_norm(x, gamma, beta, moving, epsilon, activation), True
    x = widened(x)
    done = batch_norm.native_inference(x, gamma, beta, moving, epsilon, activation)
    return (batch_norm.inference(x, gamma, beta, moving, epsilon), False) if done is None else (done, True)


def activated_by(node: Node, x: tf.Tensor) -> tf.Tensor:
    """Return the activation of a norm, applied to FP32 numbers by itself."""
    functions = {LINEAR: lambda x: x, "relu": tf.nn.relu, "relu6": tf.nn.relu6, "swish": activations.swish}
    return functions[node.activation](x)


def _with_statistics(low: Lowering, node: Node, normed: batch_norm.Normed) -> tf.Tensor:
    """Return the values of a batch norm, and record its mean and variance as statistics of the micro-batch."""
    low.statistics |= {node.variable(name): value for name, value in zip(MOMENTS, (normed.mean, normed.variance))}
    return normed.y


def _proxy_norm(low: Lowering, node: Node, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    own = tf.unstack(low.weight(node, "proxy"))
    beta, gamma, *proxy = (tf.reshape(own[row], [-1]) for row in proxy_norm.ROWS[:4])
    arguments = x, gamma, beta, node.norm, node.activation, *low.inside(node, x)
    y = group_norm.group_norm(*arguments, proxy=tuple(proxy), scaled=node.scaled)
    return low.stored(y), own[proxy_norm.INVERSE_DEVIATION][None]


# The arithmetic of each norm, with the activation after it.
NORMS: dict[type[Norm], Build] = {GroupNorm: _group_norm, BatchNorm: _batch_norm}


# other layers


def _relu(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    if not low.has("emulator_relu", x):
        return low.stored(recomputed(tf.nn.relu)(x))
    kernels = library.load()
    y = by_rule(
        "EmulatorRelu", lambda x: kernels.emulator_relu(x=x), x, rule=lambda dy: kernels.emulator_relu_gradient(x=y, dy=dy)
    )
    return y


def _relu6(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    return low.stored(recomputed(tf.nn.relu6)(x))


def _swish(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    return low.stored(activations.swish(x, *low.inside(node, x)))


def _sigmoid(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    return low.result(node, tf.sigmoid(widened(x)))


def _add(low: Lowering, node: Node, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    if not low.has("emulator_sum", x, y):
        return low.result(node, widened(x) + widened(y))
    operation = library.load().emulator_sum
    return low.by_kernel(node, lambda x, y, **r: operation(x=x, other=y, **r), lambda dy: (dy, dy), x, y)


def _gate(low: Lowering, node: Node, x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    factor = widened(factor)
    if not low.has("emulator_gate", x) or factor.shape[0] != x.shape[0]:
        return low.result(node, activations.gate(x, factor))
    kernels = library.load()

    def gradients(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tuple(kernels.emulator_gate_gradient(x=x, factor=factor, dy=dy))

    return low.by_kernel(node, lambda x, f, **r: kernels.emulator_gate(x=x, factor=f, **r), gradients, x, factor)


def _concat(low: Lowering, node: Node, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return low.stored(tf.concat([widened(x), widened(y)], -1))


def _max_pool(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    padding = "VALID" if node.padding == "VALID" else "SAME"
    window = partial(tf.nn.max_pool2d, ksize=node.kernel, strides=node.stride, padding=padding)
    if padding == "VALID":
        return low.stored(recomputed(window)(x))
    return low.stored(recomputed(lambda x: padded(window, x, node.stride, node.padding))(x))


def _global_mean(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    if low.rounding is None:
        return tf.reduce_mean(x, axis=[1, 2], keepdims=True)
    noise = low.noise(node, node.formats.pixels, x)
    return low.result(node, rounded_pixel_mean(widened(x), low.rounding, noise))


def _subsample(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    return low.stored(with_more_channels(node, subsample(widened(x), node.stride)))


def with_more_channels(node: Node, x: tf.Tensor) -> tf.Tensor:
    """Return x with as many channels as the node's result; the others are zero, half of them in front."""
    missing = node.shape.channels - node.source.channels
    return tf.pad(x, [[0, 0], [0, 0], [0, 0], [missing // 2, missing - missing // 2]])


def _flatten(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    return low.stored(_flat(widened(x)))


def _dropout(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    elements = tf.reshape(tf.range(math.prod(x.shape[1:]), dtype=tf.int64), [1, *x.shape[1:]])
    return _keep(low, node, x, 1 - node.rate, elements)


def _drop_path(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    return _keep(low, node, x, node.rate)


def _keep(low: Lowering, node: Node, x: tf.Tensor, probability: float, *elements: tf.Tensor) -> tf.Tensor:
    """Return x with random zeros; the other values are divided by their probability."""
    sample = tf.reshape(low.positions, [-1, 1, 1, 1])
    drawn = draws.uniform(draws.key(low.seed, node.path), sample, *elements)
    x = widened(x)
    return low.result(node, x * (tf.cast(drawn < probability, x.dtype) / probability))


# fused operations for inference


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


# nodes of passes


def _sum_gradients(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    noise = low.noise(node, node.formats.result, x)
    return gradient_rounded(x, low.rounding, noise, node.formats.rounds_arriving)


def _check(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    return check_finite(x, f"{node.label}, forward")


def _count(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
    return low.watch.watch_gradient(x, node.label)


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
    "conv": _conv, "dense": _dense, "bias": _bias, "norm": _norm, "proxy_norm": _proxy_norm, "relu": _relu, "relu6": _relu6,
    "swish": _swish, "sigmoid": _sigmoid, "add": _add, "gate": _gate, "concat": _concat, "max_pool": _max_pool,
    "global_mean": _global_mean, "subsample": _subsample, "flatten": _flatten, "dropout": _dropout, "drop_path": _drop_path,
    "conv_norm": _conv_norm, "conv_bias": _conv_bias,
    SUM: _sum_gradients, CHECK: _check, COUNT: _count, OBSERVE: _observe,
}  # fmt: skip
