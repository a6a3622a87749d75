"""Activations with their gradients. With `rounding`, every result and every gradient is rounded to a narrow format."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cnn_harness.base.gradient_rules import by_rule
from cnn_harness.base.tracing import TensorFunction, compiled
from cnn_harness.emulator.layers.rounding import Noise, Rounding, widened
from cnn_harness.emulator.network.network import LINEAR


def exact(x: tf.Tensor, noise: Noise = (), salt: int = 0) -> tf.Tensor:
    """Return x without rounding. This function replaces a `Rounding`."""
    return x


class Activation(NamedTuple):
    """An activation."""

    value: TensorFunction
    in_xla: TensorFunction  # the same values; XLA computes this expression faster than TensorFlow's operation.
    gradient: TensorFunction  # a function of the input, and of the gradient of the result.
    rounds: bool = False  # the results of numbers of a format need rounding.


def _swish(x: tf.Tensor) -> tf.Tensor:
    return x * tf.sigmoid(x)


def _swish_gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    s = tf.sigmoid(x)
    return dy * s * (1 + x * (1 - s))


ACTIVATIONS: Mapping[str, Activation] = {
    LINEAR: Activation(lambda z: z, lambda z: z, lambda z, dy: dy),
    "relu": Activation(
        tf.nn.relu, lambda z: tf.maximum(z, 0.0), lambda z, dy: tf.where_v2(z > 0, dy, tf.zeros_like(dy))
    ),
    "relu6": Activation(
        tf.nn.relu6, lambda z: tf.minimum(tf.maximum(z, 0.0), 6.0),
        lambda z, dy: tf.where_v2(tf.logical_and(z > 0, z < 6), dy, tf.zeros_like(dy)),
    ),
    "swish": Activation(_swish, _swish, _swish_gradient, rounds=True),
}  # fmt: skip


def swish(x: tf.Tensor, rounding: Rounding | None = None, noise: Noise = ()) -> tf.Tensor:
    """Return x * sigmoid(x). The backward pass keeps only x."""
    value, slope = _swish_kernels(rounding)
    rule = lambda dy: slope(widened(x, again=True), widened(dy), *noise)  # noqa: E731
    return by_rule("PartitionedCall", value, widened(x), *noise, rule=rule)


@cache
def _swish_kernels(rounding: Rounding | None) -> tuple[TensorFunction, TensorFunction]:
    rounded = rounding or exact
    return (
        compiled(lambda x, *noise: rounded(_swish(x), noise, 0)),
        compiled(lambda x, dy, *noise: rounded(_swish_gradient(x, rounded(dy, noise, 1)), noise, 2)),
    )


def activated(activation: str, x: tf.Tensor) -> tf.Tensor:
    """Return the activation of FP32 numbers."""
    return swish(x) if activation == "swish" else ACTIVATIONS[activation].value(x)


def rounded_activation(x: tf.Tensor, activation: str, rounding: Rounding, noise: Noise = ()) -> tf.Tensor:
    """Round x [batch, ...], apply the activation, and round the result. The gradients are rounded too."""
    value, slope = _rounded_activation_kernels(activation, rounding)
    return by_rule("PartitionedCall", value, x, *noise, rule=lambda dy: slope(x, widened(dy), *noise))


@cache
def _rounded_activation_kernels(activation: str, rounding: Rounding) -> tuple[TensorFunction, TensorFunction]:
    def slope(x: tf.Tensor, dy: tf.Tensor, *noise: tf.Tensor) -> tf.Tensor:
        z, dy = rounding(x, noise, 0), rounding(dy, noise, 2)
        return rounding(ACTIVATIONS[activation].gradient(z, dy), noise, 3)

    return compiled(lambda x, *noise: activated_in_xla(activation, rounding(x, noise, 0), rounding, noise)), compiled(slope)


def activated_in_xla(activation: str, z: tf.Tensor, rounded: TensorFunction, noise: Noise) -> tf.Tensor:
    """Apply the activation to rounded numbers and round the result."""
    y = ACTIVATIONS[activation].in_xla(z)
    return rounded(y, noise, 1) if ACTIVATIONS[activation].rounds else y
