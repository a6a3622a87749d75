"""Activations and gates, with their gradients written out: swish in one function that XLA compiles, a rounded result with
its activation in another, and a gate's gradient in one pass where the native kernels are built (emulator/native).

In half precision (`rounding`) each result and each gradient is on FP16's grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import tensorflow.compat.v1 as tf

from base.gradient_rules import by_rule, with_gradient
from base.tracing import TensorFunction, compiled
from emulator.layers.rounding import Rounding
from emulator.native import library

LINEAR, RELU, RELU6, SWISH = "linear", "relu", "relu6", "swish"
Noise = tuple[tf.Tensor, ...]


def exact(x: tf.Tensor, noise: Noise = (), salt: int = 0) -> tf.Tensor:
    """x, in place of a rounding."""
    return x


def _swish(x: tf.Tensor) -> tf.Tensor:
    return x * tf.sigmoid(x)


def _swish_gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    s = tf.sigmoid(x)
    return dy * s * (1 + x * (1 - s))


ACTIVATIONS: Mapping[str, TensorFunction] = {
    LINEAR: lambda z: z,
    RELU: lambda z: tf.maximum(z, 0.0),  # which XLA compiles faster than its relu
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
    """x * sigmoid(x); backward it needs x alone."""
    value, slope = _swish_kernels(rounding)

    return by_rule("PartitionedCall", value, x, *noise, rule=lambda dy: slope(x, dy, *noise))


def rounded_activation(x: tf.Tensor, activation: str, rounding: Rounding, noise: Noise = ()) -> tf.Tensor:
    """A result on FP16's grid and its activation, both and their gradients on FP16's grid; x [batch, ...]."""
    value, slope = _rounded_activation_kernels(activation, rounding)

    return by_rule("PartitionedCall", value, x, *noise, rule=lambda dy: slope(x, dy, *noise))


@cache
def _rounded_activation_kernels(activation: str, rounding: Rounding) -> tuple[TensorFunction, TensorFunction]:
    def value(x: tf.Tensor, *noise: tf.Tensor) -> tf.Tensor:
        return activated(activation, rounding(x, noise, 0), rounding, noise)

    def slope(x: tf.Tensor, dy: tf.Tensor, *noise: tf.Tensor) -> tf.Tensor:
        z = rounding(x, noise, 0)
        return rounding(activation_gradient(activation, z, rounding(dy, noise, 2)), noise, 3)

    return compiled(value), compiled(slope)


def activated(activation: str, z: tf.Tensor, rounded: TensorFunction, noise: Noise) -> tf.Tensor:
    """The activation of an FP16 number, on FP16's grid without rounding unless it is swish."""
    y = ACTIVATIONS[activation](z)
    return rounded(y, noise, 1) if activation == SWISH else y


def activation_gradient(activation: str, z: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """dy * activation'(z)."""
    if activation in (RELU, RELU6):
        linear = z > 0 if activation == RELU else tf.logical_and(z > 0, z < 6)
        return tf.where_v2(linear, dy, tf.zeros_like(dy))
    return _swish_gradient(z, dy) if activation == SWISH else dy


def gate(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """x [batch, height, width, channels] times a factor for every sample and channel, [batch, 1, 1, channels]."""
    kernels = library.load_for(x)
    if kernels is None or factor.shape[0] != x.shape[0]:
        return x * factor

    @with_gradient
    def apply(x: tf.Tensor, factor: tf.Tensor) -> tuple[tf.Tensor, TensorFunction]:
        return x * factor, lambda dy: tuple(kernels.emulator_gate_gradient(x=x, factor=factor, dy=dy))

    return apply(x, factor)
