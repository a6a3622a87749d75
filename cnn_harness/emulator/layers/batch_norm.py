"""Batch norm (Ioffe and Szegedy, arXiv 1502.03167), by the native kernels (emulator/native) or TensorFlow's operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cnn_harness.base.gradient_rules import with_gradient
from cnn_harness.base.tracing import TensorFunction
from cnn_harness.emulator.layers.activations import ACTIVATIONS
from cnn_harness.emulator.layers.rounding import Noise, Rounding, kernel_attributes, widened
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.network import LINEAR

Moments = tuple[tf.Tensor, tf.Tensor]  # mean and variance [channels]


class Normed(NamedTuple):
    """The normalised values of a batch, with the mean and the biased variance [channels] for the moving statistics."""

    y: tf.Tensor
    mean: tf.Tensor
    variance: tf.Tensor


def native_batch_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, parts: int, epsilon: float, activation: str = LINEAR,
    rounding: Rounding | None = None, noise: Noise = (), shortcuts: tuple[tf.Tensor, ...] = (),
) -> Normed:  # fmt: skip
    """Return batch norm and activation by the native kernels. Each of `parts` equal parts of the batch has its statistics.

    With a rounding, the results of norm and activation and their gradients are rounded. With a shortcut, return
    relu(norm + shortcut), with the bits of separate operations. If x has 16 bits, the result has 16 bits, too.
    """
    kernels = library.load()
    attributes = {"parts": parts, "epsilon": epsilon, "proxy": (), **kernel_attributes(rounding, noise)}
    moments: list[tf.Tensor] = []

    @with_gradient
    def apply(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *shortcuts: tf.Tensor) -> tuple[tf.Tensor, TensorFunction]:
        y, mean, variance = kernels.emulator_norm(
            x=x, gamma=gamma, beta=beta, moments=(), shortcut=shortcuts, activation=activation, **attributes
        )
        moments[:] = mean, variance

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            if shortcuts:
                dy = tf.raw_ops.ReluGrad(gradients=dy, features=y)
            dx, dgamma, dbeta, _ = kernels.emulator_norm_gradient(
                x=x, dy=dy, gamma=gamma, beta=beta, mean=mean, variance=variance,
                activation=LINEAR if shortcuts else activation, V=x.dtype, **attributes,
            )  # fmt: skip
            return dx, tf.reduce_sum(dgamma, 0), tf.reduce_sum(dbeta, 0), *(dy for _ in shortcuts)

        return y, gradient

    y = apply(x, gamma, beta, *shortcuts)
    return Normed(y, *(tf.reduce_mean(each, 0) for each in moments))


def local_batch_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, parts: int, epsilon: float) -> Normed:
    """Return batch norm without an activation, computed by TensorFlow's operations."""
    unused = (tf.constant([], tf.float32),) * 2
    of_parts = tf.split(x, parts) if parts > 1 else [x]
    ys, means, variances = zip(*[_fused(part, gamma, beta, unused, epsilon, training=True) for part in of_parts])
    count = tf.cast(tf.size(of_parts[0]) // x.shape[-1], x.dtype)
    # The operation returns the unbiased variance, but the IPU's moving statistics use the biased variance.
    biased = [variance * ((count - 1) / count) for variance in variances]
    return Normed(tf.concat(ys, 0) if parts > 1 else ys[0], _mean(means), _mean(biased))


def sync_batch_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, parts: int, epsilon: float,
    sync_mean: Callable[[tf.Tensor], tf.Tensor],
) -> Normed:  # fmt: skip
    """Return batch norm with statistics over several processes. `sync_mean` averages a tensor over the processes."""
    flat = tf.reshape(x, [parts, -1, x.shape[-1]])
    mean = sync_mean(tf.reduce_mean(flat, 1))
    centred = flat - mean[:, None]
    variance = sync_mean(tf.reduce_mean(tf.square(centred), 1))
    y = centred * (tf.math.rsqrt(variance + epsilon) * gamma)[:, None] + beta
    return Normed(tf.reshape(y, tf.shape(x)), tf.reduce_mean(mean, 0), tf.reduce_mean(variance, 0))


def inference(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, moving: Moments, epsilon: float) -> tf.Tensor:
    """Return batch norm with moving statistics, computed by TensorFlow's operations."""
    return _fused(x, gamma, beta, moving, epsilon, training=False)[0]


def native_inference(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, moving: Moments, epsilon: float, activation: str = LINEAR
) -> tf.Tensor | None:
    """Return the result of `inference` and an activation by a native kernel, or None if the kernels are not built."""
    kernels = library.load_for(x)
    if kernels is None:
        return None
    unused = {"proxy": (), "noise": (), "shortcut": ()}
    own = {"x": x, "gamma": gamma, "beta": beta, "moments": moving, "parts": 1, "epsilon": epsilon, "activation": activation}
    return kernels.emulator_norm(**own, **unused).y


def frozen_batch_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, moving: Moments, epsilon: float, activation: str
) -> tf.Tensor:
    """Return `inference` and an activation, for training that does not change the norm. Only x has a gradient."""
    function = ACTIVATIONS[activation]

    @with_gradient
    def apply(source: tf.Tensor) -> tuple[tf.Tensor, TensorFunction]:
        x = widened(source)

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            linear = inference(widened(source, again=True), gamma, beta, moving, epsilon)
            return function.gradient(linear, dy) * (gamma * tf.math.rsqrt(moving[1] + epsilon))

        done = native_inference(x, gamma, beta, moving, epsilon, activation)
        return function.in_xla(inference(x, gamma, beta, moving, epsilon)) if done is None else done, gradient

    return apply(x)


def _fused(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, moving: Moments, epsilon: float, *, training: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return batch norm with the mean and the unbiased variance. The function in tf.nn would silently raise epsilon."""
    if x.dtype != tf.float64:
        operands = {"x": x, "scale": gamma, "offset": beta, "mean": moving[0], "variance": moving[1]}
        return tf.raw_ops.FusedBatchNormV3(**operands, epsilon=epsilon, is_training=training)[:3]
    mean, variance = tf.nn.moments(x, [0, 1, 2]) if training else moving
    y = (x - mean) * tf.math.rsqrt(variance + epsilon) * gamma + beta
    count = tf.cast(tf.size(x) // x.shape[-1], x.dtype)
    return y, mean, variance * count / (count - 1)


def _mean(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the mean of the values, which are added in order."""
    return sum(values[1:], values[0]) / len(values) if len(values) > 1 else values[0]
