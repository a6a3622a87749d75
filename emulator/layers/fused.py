"""Group norm and the activation after it as few fused kernels, with their gradient written out.

Where the native kernels are built (emulator/native), they do an FP32 norm in one operation each way. Otherwise XLA
compiles element-wise work into a fused kernel each, and sums over pixels are TensorFlow's. With xhat = (x - mean) * r the
normalised input, z = gamma * xhat + beta, y = activation(z), and M the mean over a group's channels and pixels:

    dz = dy * activation'(z),  dgamma = sum(dz * xhat),  dbeta = sum(dz)
    dx = r * (gamma * dz - M(gamma * dz) - xhat * M(gamma * dz * xhat))

Proxy norm gives (y - mean of the proxy) * inverse deviation of the proxy, the last factor only where it is wanted here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import ModuleType

import tensorflow.compat.v1 as tf

from base.tracing import Kernel, compiled
from emulator.layers.gradient_rules import by_rule, with_gradient
from emulator.layers.half import Rounding
from emulator.native import library
from Models._norms import NormPolicy

LINEAR, RELU, RELU6, SWISH = "linear", "relu", "relu6", "swish"
Rows = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
Noise = tuple[tf.Tensor, ...]


def _exact(x: tf.Tensor, noise: Noise = (), salt: int = 0) -> tf.Tensor:
    """In place of a rounding: none."""
    return x


def _swish(x: tf.Tensor) -> tf.Tensor:
    return x * tf.sigmoid(x)


def _swish_gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    s = tf.sigmoid(x)
    return dy * s * (1 + x * (1 - s))


_ACTIVATIONS: Mapping[str, Kernel] = {
    LINEAR: lambda z: z,
    RELU: lambda z: tf.maximum(z, 0.0),  # which XLA compiles faster than its relu
    RELU6: lambda z: tf.minimum(tf.maximum(z, 0.0), 6.0),
    SWISH: _swish,
}


@cache
def _swish_kernels(rounding: Rounding | None) -> tuple[Kernel, Kernel]:
    rounded = rounding or _exact
    return (
        compiled(lambda x, *noise: rounded(_swish(x), noise, 0)),
        compiled(lambda x, dy, *noise: rounded(_swish_gradient(x, rounded(dy, noise, 1)), noise, 2)),
    )


@cache
def _kernels(activation: str, rounding: Rounding | None) -> tuple[Kernel, Kernel]:
    """Value and derivative of activation(x * factor + shift), compiled: (x, factor, shift, *noise) -> y, and
    (x, factor, shift, mean, dy, *noise) -> dz and dz * (x - mean). Norm and activation round, each for itself."""
    rounded = rounding or _exact

    def value(x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor, *noise: tf.Tensor) -> tf.Tensor:
        return _activated(activation, rounded(x * factor + shift, noise, 0), rounded, noise)

    def slope(
        x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor, mean: tf.Tensor, dy: tf.Tensor, *noise: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        z = rounded(x * factor + shift, noise, 0)
        dz = rounded(_activation_gradient(activation, z, rounded(dy, noise, 2)), noise, 3)
        return dz, dz * (x - mean)

    return compiled(value), compiled(slope)


def _activation_gradient(activation: str, z: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    if activation in (RELU, RELU6):
        linear = z > 0 if activation == RELU else tf.logical_and(z > 0, z < 6)
        return tf.where_v2(linear, dy, tf.zeros_like(dy))
    return _swish_gradient(z, dy) if activation == SWISH else dy


@cache
def _input_gradient(rounding: Rounding | None) -> Kernel:
    rounded = rounding or _exact

    def gradient(
        dz: tf.Tensor, x: tf.Tensor, mean: tf.Tensor, a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, *noise: tf.Tensor
    ) -> tf.Tensor:
        return rounded(dz * a + (x - mean) * b + c, noise, 4)

    return compiled(gradient)


def swish(x: tf.Tensor, rounding: Rounding | None = None, noise: Noise = ()) -> tf.Tensor:
    """x * sigmoid(x); backward it needs x alone."""
    value, slope = _swish_kernels(rounding)

    return by_rule("PartitionedCall", value, x, *noise, rule=lambda dy: slope(x, dy, *noise))


def halved_activation(x: tf.Tensor, activation: str, rounding: Rounding, noise: Noise = ()) -> tf.Tensor:
    """A result on FP16's grid and its activation, both and their gradients on FP16's grid; x [batch, ...]."""
    value, slope = _halved_kernels(activation, rounding)

    return by_rule("PartitionedCall", value, x, *noise, rule=lambda dy: slope(x, dy, *noise))


@cache
def _halved_kernels(activation: str, rounding: Rounding) -> tuple[Kernel, Kernel]:
    def value(x: tf.Tensor, *noise: tf.Tensor) -> tf.Tensor:
        return _activated(activation, rounding(x, noise, 0), rounding, noise)

    def slope(x: tf.Tensor, dy: tf.Tensor, *noise: tf.Tensor) -> tf.Tensor:
        z = rounding(x, noise, 0)
        return rounding(_activation_gradient(activation, z, rounding(dy, noise, 2)), noise, 3)

    return compiled(value), compiled(slope)


def _activated(activation: str, z: tf.Tensor, rounded: Kernel, noise: Noise) -> tf.Tensor:
    """The activation of an FP16 number, itself one anyway unless it is swish."""
    return rounded(_swish(z), noise, 1) if activation == SWISH else _ACTIVATIONS[activation](z)


def group_mean(per_channel: tf.Tensor, policy: NormPolicy) -> tf.Tensor:
    """[batch, 1, 1, channels] -> the mean of each channel's group, at every channel."""
    channels = per_channel.shape[-1]
    size = channels // policy.groups
    if policy.contiguous:
        means = tf.reduce_mean(tf.reshape(per_channel, [-1, policy.groups, size]), axis=2)
        spread = tf.repeat(means, size, axis=1)
    else:
        means = tf.reduce_mean(tf.reshape(per_channel, [-1, size, policy.groups]), axis=1)
        spread = tf.tile(means, [1, size])
    return tf.reshape(spread, [-1, 1, 1, channels])


def statistics(x: tf.Tensor, policy: NormPolicy) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and inverse deviation of each sample's groups, [batch, 1, 1, channels]."""
    mean = group_mean(_pixel_mean(x), policy)
    if policy.two_pass:
        variance = group_mean(_pixel_mean(tf.math.squared_difference(x, mean)), policy)
    else:
        variance = tf.maximum(group_mean(_pixel_mean(tf.square(x)), policy) - tf.square(mean), 0.0)
    return mean, tf.math.rsqrt(variance + policy.epsilon)


def group_norm(
    x: tf.Tensor,
    gamma: tf.Tensor | None,
    beta: tf.Tensor | None,
    policy: NormPolicy,
    activation: str = LINEAR,
    rounding: Rounding | None = None,
    noise: Noise = (),
) -> tf.Tensor:
    """Group normalisation (Wu and He, arXiv 1803.08494) and an activation; x [batch, height, width, channels].

    The IPU's strided groups, group(c) = c mod groups, or neighbouring channels where the policy says so. Without gamma the
    scale is 1, without beta the offset 0. With a rounding the norm, the activation and their gradients are on FP16's grid.
    """
    channels = x.shape[-1]
    if channels % policy.groups:
        raise ValueError(f"group norm: {channels} channels do not divide into {policy.groups} groups")
    ones, zeros = tf.ones([channels], x.dtype), tf.zeros([channels], x.dtype)

    kernels = _kernels_for(x)
    if kernels and rounding is None:
        return _by_kernels(kernels, policy, activation)(x, ones if gamma is None else gamma, zeros if beta is None else beta)

    @with_gradient
    def apply(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple[tf.Tensor, Kernel]:
        mean, r = statistics(x, policy)
        factor = r * gamma
        shift = beta - mean * factor
        value, slope = _kernels(activation, rounding)

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dz, product = slope(x, factor, shift, mean, dy, *noise)
            return _gradients(x, gamma, mean, r, dz, product, policy, rounding, noise)

        return value(x, factor, shift, *noise), gradient

    return apply(x, ones if gamma is None else gamma, zeros if beta is None else beta)


def _kernels_for(x: tf.Tensor) -> ModuleType | None:
    """The native kernels, which are for FP32 on processors."""
    return library.load() if x.dtype == tf.float32 and "GPU" not in x.device.upper() else None


def _by_kernels(kernels: ModuleType, policy: NormPolicy, activation: str, scaled: bool | None = None) -> Kernel:
    """Group norm and activation by the native kernels, of (x, gamma, beta): one operation forward, and one backward. With
    `scaled` proxy norm, of (x, gamma, beta, proxy mean, inverse deviation)."""
    attributes = {
        "groups": policy.groups, "contiguous": policy.contiguous, "activation": activation, "proxy": scaled is not None
    }  # fmt: skip

    @with_gradient
    def apply(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *proxy: tf.Tensor) -> tuple[tf.Tensor, Kernel]:
        centre, outer = proxy or ([], [])
        inputs = {"gamma": gamma, "beta": beta, "centre": centre, "outer": tf.ones_like(outer) if scaled is False else outer}
        y, mean, r = kernels.emulator_group_norm(
            x=x, epsilon=policy.epsilon, two_pass=policy.two_pass, **inputs, **attributes
        )

        def gradient(dy: tf.Tensor) -> list[tf.Tensor]:
            dx, *per_sample = kernels.emulator_group_norm_gradient(
                x=x, dy=dy, mean=mean, inverse_deviation=r, **inputs, **attributes
            )
            rows = [tf.reduce_sum(each, 0) for each in per_sample[: 2 + len(proxy)]]
            return [dx, *rows[:3], tf.zeros_like(outer)] if scaled is False else [dx, *rows]

        return y, gradient

    return apply


def batch_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, parts: int, epsilon: float, activation: str = LINEAR
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor] | None:
    """Batch norm (Ioffe and Szegedy, arXiv 1502.03167) of each of `parts` equal parts of the batch, and an activation: y,
    and the mean and the biased variance [parts, channels]. None without the native kernels."""
    kernels = _kernels_for(x)
    if kernels is None:
        return None
    attributes = {"parts": parts, "activation": activation, "epsilon": epsilon}
    moments: list[tf.Tensor] = []

    @with_gradient
    def apply(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple[tf.Tensor, Kernel]:
        y, mean, variance = kernels.emulator_batch_norm(x=x, gamma=gamma, beta=beta, **attributes)
        moments[:] = mean, variance

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dx, dgamma, dbeta = kernels.emulator_batch_norm_gradient(
                x=x, dy=dy, gamma=gamma, beta=beta, mean=mean, variance=variance, **attributes
            )
            return dx, tf.reduce_sum(dgamma, 0), tf.reduce_sum(dbeta, 0)

        return y, gradient

    return apply(x, gamma, beta), *moments


def gate(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """x [batch, height, width, channels] times a factor for every sample and channel, [batch, 1, 1, channels]."""
    kernels = _kernels_for(x)
    if kernels is None or factor.shape[0] != x.shape[0]:
        return x * factor

    @with_gradient
    def apply(x: tf.Tensor, factor: tf.Tensor) -> tuple[tf.Tensor, Kernel]:
        return x * factor, lambda dy: tuple(kernels.emulator_gate_gradient(x=x, factor=factor, dy=dy))

    return apply(x, factor)


def proxy_norm(
    x: tf.Tensor,
    proxy: Rows,
    policy: NormPolicy,
    activation: str,
    *,
    scaled: bool,
    rounding: Rounding | None = None,
    noise: Noise = (),
) -> tf.Tensor:
    """Group norm, then activation(gamma * xhat + beta) less the proxy's mean, times its inverse deviation if `scaled`.

    `proxy`: beta, gamma, mean, inverse deviation, [channels] each.
    """
    kernels = _kernels_for(x)
    if kernels and rounding is None:
        beta, gamma, proxy_mean, inverse = proxy
        return _by_kernels(kernels, policy, activation, scaled)(x, gamma, beta, proxy_mean, inverse)

    @with_gradient
    def apply(
        x: tf.Tensor, beta: tf.Tensor, gamma: tf.Tensor, proxy_mean: tf.Tensor, inverse: tf.Tensor
    ) -> tuple[tf.Tensor, Kernel]:
        mean, r = statistics(x, policy)
        factor = r * gamma
        shift = beta - mean * factor
        scale = inverse if scaled else tf.ones_like(inverse)
        value, slope = _proxy_kernels(activation, rounding)
        y = value(x, factor, shift, proxy_mean, scale, *noise)

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dz, product = slope(x, factor, shift, mean, dy, scale, *noise)
            dx, dgamma, dbeta = _gradients(x, gamma, mean, r, dz, product, policy, rounding, noise)
            of_scale = _channel_sum(dy * y) / inverse if scaled else tf.zeros_like(inverse)  # y = (...) * inverse
            return dx, dbeta, dgamma, -scale * _channel_sum(dy), of_scale

        return y, gradient

    return apply(x, *proxy)


@cache
def _proxy_kernels(activation: str, rounding: Rounding | None) -> tuple[Kernel, Kernel]:
    """Like `_kernels`, with the proxy's correction: (x, factor, shift, proxy mean, scale, *noise) -> y, and
    (x, factor, shift, mean, dy, scale, *noise) -> dz and dz * (x - mean)."""
    rounded = rounding or _exact
    act = _ACTIVATIONS[activation]

    def value(
        x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor, proxy_mean: tf.Tensor, scale: tf.Tensor, *noise: tf.Tensor
    ) -> tf.Tensor:
        return rounded((act(rounded(x * factor + shift, noise, 0)) - proxy_mean) * scale, noise, 1)

    def slope(
        x: tf.Tensor,
        factor: tf.Tensor,
        shift: tf.Tensor,
        mean: tf.Tensor,
        dy: tf.Tensor,
        scale: tf.Tensor,
        *noise: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        z = rounded(x * factor + shift, noise, 0)
        dz = rounded(_activation_gradient(activation, z, rounded(dy, noise, 2) * scale), noise, 3)
        return dz, dz * (x - mean)

    return compiled(value), compiled(slope)


def _channel_sum(x: tf.Tensor) -> tf.Tensor:
    """[batch, height, width, channels] -> [channels]; fastest as a product with ones."""
    rows = tf.reshape(x, [-1, x.shape[-1]])
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], x.dtype), rows)[0]


def _gradients(
    x: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, r: tf.Tensor, dz: tf.Tensor, product: tf.Tensor, policy: NormPolicy,
    rounding: Rounding | None, noise: Noise,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:  # fmt: skip
    """dx, dgamma, dbeta from dz and dz * (x - mean)."""
    pixels = x.shape[1] * x.shape[2]
    sums, products = (tf.reduce_sum(each, [1, 2], keepdims=True) for each in (dz, product))
    a = gamma * r
    of_mean = group_mean(gamma * sums, policy) / pixels
    of_deviation = group_mean(a * products, policy) / pixels
    dx = _input_gradient(rounding)(dz, x, mean, a, -tf.square(r) * of_deviation, -r * of_mean, *noise)
    return dx, tf.reduce_sum(r * products, [0, 1, 2]), tf.reduce_sum(sums, [0, 1, 2])


def _pixel_mean(x: tf.Tensor) -> tf.Tensor:
    """[batch, 1, 1, channels]."""
    return tf.reduce_mean(x, axis=[1, 2], keepdims=True)
