"""Activations and squeeze-and-excitation gates, with their gradients.

XLA compiles swish into one function, and also the rounding of a result together with the next activation. A native kernel
(emulator/native) computes the gradient of a gate, if the kernels are built. With `rounding`, every result and every gradient
is rounded to a narrow format.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import tensorflow.compat.v1 as tf

from base.gradient_rules import by_rule, with_gradient
from base.tracing import TensorFunction, compiled
from emulator.layers.rounding import Rounding, recomputed, widened
from emulator.native import library
from emulator.network.network import LINEAR

RELU, RELU6, SWISH = "relu", "relu6", "swish"
Noise = tuple[tf.Tensor, ...]


def exact(x: tf.Tensor, noise: Noise = (), salt: int = 0) -> tf.Tensor:
    """Return x without rounding. This function replaces a `Rounding`."""
    return x


def _swish(x: tf.Tensor) -> tf.Tensor:
    return x * tf.sigmoid(x)


def _swish_gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    s = tf.sigmoid(x)
    return dy * s * (1 + x * (1 - s))


ACTIVATIONS: Mapping[str, TensorFunction] = {
    LINEAR: lambda z: z,
    RELU: lambda z: tf.maximum(z, 0.0),  # XLA computes this expression faster than tf.nn.relu.
    RELU6: lambda z: tf.minimum(tf.maximum(z, 0.0), 6.0),
    SWISH: _swish,
}


@cache
def _swish_kernels(rounding: Rounding | None) -> tuple[TensorFunction, TensorFunction]:
    rounded = rounding or exact
    return (
        compiled(lambda x, *noise: rounded(_swish(x), noise, 0)),
        compiled(lambda x, dy, *noise: rounded(_swish_gradient(x, rounded(dy, noise, 1)), noise, 2)),
    )


def swish(x: tf.Tensor, rounding: Rounding | None = None, noise: Noise = ()) -> tf.Tensor:
    """Return x * sigmoid(x). The backward pass keeps only x."""
    value, slope = _swish_kernels(rounding)
    rule = lambda dy: slope(widened(x, again=True), widened(dy), *noise)  # noqa: E731
    return by_rule("PartitionedCall", value, widened(x), *noise, rule=rule)


def rounded_activation(x: tf.Tensor, activation: str, rounding: Rounding, noise: Noise = ()) -> tf.Tensor:
    """Round x [batch, ...], apply the activation, and round the result. The gradients are rounded too."""
    value, slope = _rounded_activation_kernels(activation, rounding)

    return by_rule("PartitionedCall", value, x, *noise, rule=lambda dy: slope(x, widened(dy), *noise))


@cache
def _rounded_activation_kernels(activation: str, rounding: Rounding) -> tuple[TensorFunction, TensorFunction]:
    def value(x: tf.Tensor, *noise: tf.Tensor) -> tf.Tensor:
        return activated(activation, rounding(x, noise, 0), rounding, noise)

    def slope(x: tf.Tensor, dy: tf.Tensor, *noise: tf.Tensor) -> tf.Tensor:
        z = rounding(x, noise, 0)
        return rounding(activation_gradient(activation, z, rounding(dy, noise, 2)), noise, 3)

    return compiled(value), compiled(slope)


def activated(activation: str, z: tf.Tensor, rounded: TensorFunction, noise: Noise) -> tf.Tensor:
    """Apply the activation to rounded numbers and round the result. Only the result of swish needs rounding."""
    y = ACTIVATIONS[activation](z)
    return rounded(y, noise, 1) if activation == SWISH else y


def activation_gradient(activation: str, z: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """Return dy * activation'(z)."""
    if activation in (RELU, RELU6):
        linear = z > 0 if activation == RELU else tf.logical_and(z > 0, z < 6)
        return tf.where_v2(linear, dy, tf.zeros_like(dy))
    return _swish_gradient(z, dy) if activation == SWISH else dy


def gate(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Return x [batch, height, width, channels] times `factor` [batch, 1, 1, channels]."""
    kernels = library.load_for(x)
    if kernels is None or factor.shape[0] != x.shape[0]:
        return recomputed(lambda x, factor: x * factor)(x, factor)

    @with_gradient
    def apply(x: tf.Tensor, factor: tf.Tensor) -> tuple[tf.Tensor, TensorFunction]:
        return x * factor, lambda dy: tuple(kernels.emulator_gate_gradient(x=x, factor=factor, dy=dy))

    return apply(x, factor)
