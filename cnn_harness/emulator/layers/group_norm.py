"""Group norm and proxy norm, with the activation after the norm, and the gradients.

Without the native kernels (emulator/native), XLA compiles elementwise operations, and TensorFlow computes sums over pixels.

Notation: xhat = (x - mean) * r is the normalised input, z = gamma * xhat + beta, y = activation(z). M is the mean over the
pixels and channels of a group. Then:

    dz = dy * activation'(z),  dgamma = sum(dz * xhat),  dbeta = sum(dz)
    dx = r * (gamma * dz - M(gamma * dz) - xhat * M(gamma * dz * xhat))

Proxy norm returns (y - proxy mean) * inverse proxy deviation. The factor is optional.
"""

from __future__ import annotations

from functools import cache

import tensorflow.compat.v1 as tf

from cnn_harness.base.gradient_rules import with_gradient
from cnn_harness.base.tracing import TensorFunction, compiled
from cnn_harness.emulator.layers.activations import ACTIVATIONS, activated_in_xla, exact
from cnn_harness.emulator.layers.rounding import Noise, Rounding, kernel_attributes, widened
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.network import LINEAR
from cnn_harness.Models._norms import GroupNorm


def group_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, norm: GroupNorm, activation: str = LINEAR,
    rounding: Rounding | None = None, noise: Noise = (), *, proxy: tuple[tf.Tensor, ...] = (), scaled: bool = False,
) -> tf.Tensor:  # fmt: skip
    """Return group normalisation (Wu and He, arXiv 1803.08494) of x [batch, height, width, channels], with an activation.

    `gamma` and `beta` have the shape [channels]. Groups are strided as on the IPU, group(c) = c mod groups, or contiguous.
    With a rounding, the results of norm and activation and their gradients are rounded. If x has 16 bits, the result may
    have 16 bits, too. `proxy` has the mean and inverse deviation of proxy norm [channels]; the deviation is used only if
    `scaled`.
    """
    function = _by_kernels if library.load_for(x, library.STORED) else _by_xla
    return function(norm, activation, rounding, noise, scaled)(x, gamma, beta, *proxy)


# Both ways return a function of (x, gamma, beta), and for proxy norm of its mean and inverse deviation.


def _by_kernels(norm: GroupNorm, activation: str, rounding: Rounding | None, noise: Noise, scaled: bool) -> TensorFunction:
    kernels = library.load()
    attributes = {
        "groups": norm.groups, "contiguous": norm.contiguous, "epsilon": norm.epsilon, "activation": activation,
        **kernel_attributes(rounding, noise),
    }  # fmt: skip

    @with_gradient
    def apply(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *proxy: tf.Tensor) -> tuple[tf.Tensor, TensorFunction]:
        used = proxy if scaled else [*proxy[:1], *map(tf.ones_like, proxy[1:])]
        inputs = {"gamma": gamma, "beta": beta, "proxy": used}
        y, mean, variance = kernels.emulator_norm(
            x=x, moments=(), shortcut=(), two_pass=norm.two_pass, **inputs, **attributes
        )

        def gradient(dy: tf.Tensor) -> list[tf.Tensor]:
            dx, dgamma, dbeta, dproxy = kernels.emulator_norm_gradient(
                x=x, dy=dy, mean=mean, variance=variance, V=x.dtype, **inputs, **attributes
            )
            rows = [tf.reduce_sum(each, 0) for each in (dgamma, dbeta, *dproxy)]
            return [dx, *rows] if scaled else [dx, *rows[:3], *map(tf.zeros_like, proxy[1:])]

        return y, gradient

    return apply


def _by_xla(norm: GroupNorm, activation: str, rounding: Rounding | None, noise: Noise, scaled: bool) -> TensorFunction:
    @with_gradient
    def apply(source: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *proxy: tf.Tensor) -> tuple[tf.Tensor, TensorFunction]:
        x = widened(source)
        mean, r = statistics(x, norm)
        factor = r * gamma
        shift = beta - mean * factor
        value, slope, input_gradient = _kernels(activation, rounding, bool(proxy))
        inverse = proxy[1] if proxy else None
        scale = [inverse if scaled else tf.ones_like(inverse)] if proxy else []
        y = value(x, factor, shift, *proxy[:1], *scale, *noise)

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            x, dy = widened(source, again=True), widened(dy)
            dz, product = slope(x, factor, shift, mean, dy, *scale, *noise)
            pixels = x.shape[1] * x.shape[2]
            sums, products = (tf.reduce_sum(each, [1, 2], keepdims=True) for each in (dz, product))
            a = gamma * r
            of_mean = group_mean(gamma * sums, norm) / pixels
            of_deviation = group_mean(a * products, norm) / pixels
            dx = input_gradient(dz, x, mean, a, -tf.square(r) * of_deviation, -r * of_mean, *noise)
            rows = dx, tf.reduce_sum(r * products, [0, 1, 2]), tf.reduce_sum(sums, [0, 1, 2])
            if not proxy:
                return rows
            of_scale = _channel_sum(dy * y) / inverse if scaled else tf.zeros_like(inverse)
            return *rows, -scale[0] * _channel_sum(dy), of_scale

        return y, gradient

    return apply


def group_mean(per_channel: tf.Tensor, norm: GroupNorm) -> tf.Tensor:
    """Return for each channel the mean over the channel's group, [batch, 1, 1, channels] like the argument."""
    channels = per_channel.shape[-1]
    size = channels // norm.groups
    if norm.contiguous:
        means = tf.reduce_mean(tf.reshape(per_channel, [-1, norm.groups, size]), axis=2)
        spread = tf.repeat(means, size, axis=1)
    else:
        means = tf.reduce_mean(tf.reshape(per_channel, [-1, size, norm.groups]), axis=1)
        spread = tf.tile(means, [1, size])
    return tf.reshape(spread, [-1, 1, 1, channels])


def statistics(x: tf.Tensor, norm: GroupNorm) -> tuple[tf.Tensor, tf.Tensor]:
    """Return for each channel the mean and the inverse deviation of the channel's group, [batch, 1, 1, channels]."""
    mean = group_mean(_pixel_mean(x), norm)
    if norm.two_pass:
        variance = group_mean(_pixel_mean(tf.math.squared_difference(x, mean)), norm)
    else:
        variance = tf.maximum(group_mean(_pixel_mean(tf.square(x)), norm) - tf.square(mean), 0.0)
    return mean, tf.math.rsqrt(variance + norm.epsilon)


@cache
def _kernels(activation: str, rounding: Rounding | None, proxy: bool) -> tuple[TensorFunction, ...]:
    """Return compiled functions that round: activation(z) with z = x * factor + shift, its gradient dz with dz * (x - mean),
    and dx. Proxy norm is (activation(z) - proxy mean) * scale; these two arguments come before the noise."""
    rounded = rounding or exact

    def value(x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor, *rest: tf.Tensor) -> tf.Tensor:
        noise = rest[2 * proxy :]
        z = rounded(x * factor + shift, noise, 0)
        if proxy:
            return rounded((ACTIVATIONS[activation].in_xla(z) - rest[0]) * rest[1], noise, 1)
        return activated_in_xla(activation, z, rounded, noise)

    def slope(
        x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor, mean: tf.Tensor, dy: tf.Tensor, *rest: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        noise = rest[proxy:]
        z, dy = rounded(x * factor + shift, noise, 0), rounded(dy, noise, 2)
        dz = rounded(ACTIVATIONS[activation].gradient(z, dy * rest[0] if proxy else dy), noise, 3)
        return dz, dz * (x - mean)

    def input_gradient(
        dz: tf.Tensor, x: tf.Tensor, mean: tf.Tensor, a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, *noise: tf.Tensor
    ) -> tf.Tensor:
        return rounded(dz * a + (x - mean) * b + c, noise, 4)

    return compiled(value), compiled(slope), compiled(input_gradient)


def _channel_sum(x: tf.Tensor) -> tf.Tensor:
    """Return the sum over batch and pixels, [channels]. A matrix product with ones is the fastest way."""
    rows = tf.reshape(x, [-1, x.shape[-1]])
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], x.dtype), rows)[0]


def _pixel_mean(x: tf.Tensor) -> tf.Tensor:
    """Return [batch, 1, 1, channels]."""
    return tf.reduce_mean(x, axis=[1, 2], keepdims=True)
