"""Group norm and proxy norm, with the activation after the norm, and the gradients.

If the native kernels (emulator/native) are built, one operation computes norm, rounding and activation, and another one the
gradients. Otherwise XLA compiles the elementwise operations, and TensorFlow computes sums over pixels.

Notation: xhat = (x - mean) * r is the normalised input, z = gamma * xhat + beta, y = activation(z). M is the mean over the
pixels and channels of a group. Then:

    dz = dy * activation'(z),  dgamma = sum(dz * xhat),  dbeta = sum(dz)
    dx = r * (gamma * dz - M(gamma * dz) - xhat * M(gamma * dz * xhat))

Proxy norm returns (y - proxy mean) * inverse proxy deviation. The factor is optional.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import tensorflow.compat.v1 as tf

from base.gradient_rules import with_gradient
from base.tracing import TensorFunction, compiled
from emulator.layers.activations import ACTIVATIONS, Noise, activated, activation_gradient, exact
from emulator.layers.rounding import Rounding, kernel_attributes, widened
from emulator.native import library
from emulator.network.network import LINEAR
from Models._norms import GroupNorm

Proxy = tuple[tf.Tensor, tf.Tensor]


def group_norm(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    norm: GroupNorm,
    activation: str = LINEAR,
    rounding: Rounding | None = None,
    noise: Noise = (),
    *,
    proxy: Proxy = (),
    scaled: bool = False,
) -> tf.Tensor:
    """Return group normalisation (Wu and He, arXiv 1803.08494) of x [batch, height, width, channels], with an activation.

    `gamma` and `beta` have the shape [channels]. Groups are strided as on the IPU, group(c) = c mod groups, or contiguous,
    as `norm` specifies. With a rounding, the results of norm and activation and their gradients are rounded. If x has
    16 bits, the result may have 16 bits, too. `proxy` has the mean and inverse deviation of proxy norm [channels]; the
    deviation is used only if `scaled`. Raise ValueError if the groups do not divide the channels.
    """
    fault = norm.fault(x.shape[-1])
    if fault:
        raise ValueError(fault)
    kernels = library.load_for(x, library.STORED)
    if kernels:
        return _by_kernels(kernels, norm, activation, rounding, noise, scaled)(x, gamma, beta, *proxy)

    @with_gradient
    def apply(source: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *proxy: tf.Tensor) -> tuple[tf.Tensor, TensorFunction]:
        x = widened(source)
        mean, r = statistics(x, norm)
        factor = r * gamma
        shift = beta - mean * factor
        inverse = proxy[1] if proxy else None
        scale = [inverse if scaled else tf.ones_like(inverse)] if proxy else []
        value, slope = _kernels(activation, rounding, bool(proxy))
        y = value(x, factor, shift, *proxy[:1], *scale, *noise)

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            own, dy = widened(source, again=True), widened(dy)
            dz, product = slope(own, factor, shift, mean, dy, *scale, *noise)
            rows = _gradients(own, gamma, mean, r, dz, product, norm, rounding, noise)
            if not proxy:
                return rows
            of_scale = _channel_sum(dy * y) / inverse if scaled else tf.zeros_like(inverse)
            return *rows, -scale[0] * _channel_sum(dy), of_scale

        return y, gradient

    return apply(x, gamma, beta, *proxy)


def _by_kernels(
    kernels: ModuleType, norm: GroupNorm, activation: str, rounding: Rounding | None, noise: Noise, scaled: bool
) -> TensorFunction:
    """Return native group norm and activation as a function of (x, gamma, beta), or native proxy norm as a function of
    (x, gamma, beta, proxy mean, inverse proxy deviation)."""
    attributes = {
        "groups": norm.groups, "contiguous": norm.contiguous, "activation": activation, **kernel_attributes(rounding, noise)
    }  # fmt: skip

    @with_gradient
    def apply(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *proxy: tf.Tensor) -> tuple[tf.Tensor, TensorFunction]:
        centre, outer = proxy or ([], [])
        outer_used = outer if scaled or not proxy else tf.ones_like(outer)
        inputs = {"gamma": gamma, "beta": beta, "centre": centre, "outer": outer_used, "proxy": bool(proxy)}
        y, mean, r = kernels.emulator_group_norm(x=x, epsilon=norm.epsilon, two_pass=norm.two_pass, **inputs, **attributes)

        def gradient(dy: tf.Tensor) -> list[tf.Tensor]:
            dx, *per_sample = kernels.emulator_group_norm_gradient(
                x=x, dy=dy, mean=mean, inverse_deviation=r, V=x.dtype, **inputs, **attributes
            )
            rows = [tf.reduce_sum(each, 0) for each in per_sample[: 2 + len(proxy)]]
            return [dx, *rows[:3], tf.zeros_like(outer)] if proxy and not scaled else [dx, *rows]

        return y, gradient

    return apply


def group_mean(per_channel: tf.Tensor, norm: GroupNorm) -> tf.Tensor:
    """Return for each channel the mean over the channel's group. Argument and result have the shape [batch, 1, 1,
    channels]."""
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
def _kernels(activation: str, rounding: Rounding | None, proxy: bool) -> tuple[TensorFunction, TensorFunction]:
    """Return two compiled functions: (x, factor, shift, *noise) -> y = activation(x * factor + shift), and (x, factor,
    shift, mean, dy, *noise) -> dz, dz * (x - mean). The results of norm and activation are each rounded.

    For proxy norm, y is (activation - proxy mean) * scale. Then noise comes after (proxy mean, scale), or after scale.
    """
    rounded = rounding or exact

    def value(x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor, *rest: tf.Tensor) -> tf.Tensor:
        noise = rest[2 * proxy :]
        z = rounded(x * factor + shift, noise, 0)
        if proxy:
            return rounded((ACTIVATIONS[activation](z) - rest[0]) * rest[1], noise, 1)
        return activated(activation, z, rounded, noise)

    def slope(
        x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor, mean: tf.Tensor, dy: tf.Tensor, *rest: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        noise = rest[proxy:]
        z, dy = rounded(x * factor + shift, noise, 0), rounded(dy, noise, 2)
        dz = rounded(activation_gradient(activation, z, dy * rest[0] if proxy else dy), noise, 3)
        return dz, dz * (x - mean)

    return compiled(value), compiled(slope)


@cache
def _input_gradient(rounding: Rounding | None) -> TensorFunction:
    rounded = rounding or exact

    def gradient(
        dz: tf.Tensor, x: tf.Tensor, mean: tf.Tensor, a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, *noise: tf.Tensor
    ) -> tf.Tensor:
        return rounded(dz * a + (x - mean) * b + c, noise, 4)

    return compiled(gradient)


def _gradients(
    x: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, r: tf.Tensor, dz: tf.Tensor, product: tf.Tensor, norm: GroupNorm,
    rounding: Rounding | None, noise: Noise,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:  # fmt: skip
    """Return dx, dgamma, dbeta from dz and dz * (x - mean)."""
    pixels = x.shape[1] * x.shape[2]
    sums, products = (tf.reduce_sum(each, [1, 2], keepdims=True) for each in (dz, product))
    a = gamma * r
    of_mean = group_mean(gamma * sums, norm) / pixels
    of_deviation = group_mean(a * products, norm) / pixels
    dx = _input_gradient(rounding)(dz, x, mean, a, -tf.square(r) * of_deviation, -r * of_mean, *noise)
    return dx, tf.reduce_sum(r * products, [0, 1, 2]), tf.reduce_sum(sums, [0, 1, 2])


def _channel_sum(x: tf.Tensor) -> tf.Tensor:
    """Return the sum over batch and pixels, [channels]. A matrix product with ones is the fastest way."""
    rows = tf.reshape(x, [-1, x.shape[-1]])
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], x.dtype), rows)[0]


def _pixel_mean(x: tf.Tensor) -> tf.Tensor:
    """Return [batch, 1, 1, channels]."""
    return tf.reduce_mean(x, axis=[1, 2], keepdims=True)
