"""Group norm and the activation after it as few passes over the data, with their gradient written out.

Element-wise passes are compiled by XLA into one loop each; sums over pixels are TensorFlow's. With xhat = (x - mean) * r
the normalised input, z = gamma * xhat + beta, y = activation(z), and M the mean over a group's channels and pixels:

    dz = dy * activation'(z),  dgamma = sum(dz * xhat),  dbeta = sum(dz)
    dx = r * (gamma * dz - M(gamma * dz) - xhat * M(gamma * dz * xhat))

Proxy norm gives (y - mean of the proxy) * inverse deviation of the proxy, the last factor only where it is wanted here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import tensorflow.compat.v1 as tf

from Models._layers import NormPolicy

LINEAR, RELU, RELU6, SWISH = "linear", "relu", "relu6", "swish"
Pass = Callable[..., Any]
Rows = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]


def _compiled(function: Pass) -> Pass:
    """The function, compiled by XLA for each combination of shapes that it is called with. The call itself goes through
    the concrete function: the other way leaves the context of a loop that it is made in."""
    traced = tf.function(function, jit_compile=True, autograph=False)

    @wraps(function)
    def call(*tensors: tf.Tensor) -> Any:
        return traced.get_concrete_function(*(tf.TensorSpec(x.shape, x.dtype) for x in tensors))(*tensors)

    return call


def _swish(x: tf.Tensor) -> tf.Tensor:
    return x * tf.sigmoid(x)


def _swish_gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    s = tf.sigmoid(x)
    return dy * s * (1 + x * (1 - s))


_swish_pass, _swish_gradient_pass = _compiled(_swish), _compiled(_swish_gradient)


@cache
def _passes(activation: str) -> tuple[Pass, Pass]:
    """Value and derivative of activation(x * factor + shift), compiled: (x, factor, shift) -> y, and
    (x, factor, shift, mean, dy) -> dz and dz * (x - mean)."""

    def value(x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
        z = x * factor + shift
        return {LINEAR: lambda x: x, RELU: tf.nn.relu, RELU6: tf.nn.relu6, SWISH: _swish}[activation](z)

    def slope(x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor, mean: tf.Tensor, dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
        z = x * factor + shift
        dz = dy
        if activation in (RELU, RELU6):
            passes = z > 0 if activation == RELU else tf.logical_and(z > 0, z < 6)
            dz = tf.where_v2(passes, dy, tf.zeros_like(dy))
        elif activation == SWISH:
            dz = _swish_gradient(z, dy)
        return dz, dz * (x - mean)

    return _compiled(value), _compiled(slope)


@_compiled
def _input_gradient(dz: tf.Tensor, x: tf.Tensor, mean: tf.Tensor, a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
    return dz * a + (x - mean) * b + c


@tf.custom_gradient
def swish(x: tf.Tensor) -> tuple[tf.Tensor, Pass]:
    """x * sigmoid(x); backward it needs x alone."""
    return _swish_pass(x), lambda dy: _swish_gradient_pass(x, dy)


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
    x: tf.Tensor, gamma: tf.Tensor | None, beta: tf.Tensor | None, policy: NormPolicy, activation: str = LINEAR
) -> tf.Tensor:
    """Group normalisation (Wu and He, arXiv 1803.08494) and an activation; x [batch, height, width, channels].

    The IPU's strided groups, group(c) = c mod groups, or neighbouring channels where the policy says so. Without gamma the
    scale is 1, without beta the offset 0.
    """
    channels = x.shape[-1]
    if channels % policy.groups:
        raise ValueError(f"group norm: {channels} channels do not divide into {policy.groups} groups")
    ones, zeros = tf.ones([channels], x.dtype), tf.zeros([channels], x.dtype)

    @tf.custom_gradient
    def apply(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple[tf.Tensor, Pass]:
        mean, r = statistics(x, policy)
        factor = r * gamma
        shift = beta - mean * factor
        value, slope = _passes(activation)

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dz, product = slope(x, factor, shift, mean, dy)
            return _gradients(x, gamma, mean, r, dz, product, policy)

        return value(x, factor, shift), gradient

    return apply(x, ones if gamma is None else gamma, zeros if beta is None else beta)


def proxy_norm(x: tf.Tensor, proxy: Rows, policy: NormPolicy, activation: str, *, scaled: bool) -> tf.Tensor:
    """Group norm, then activation(gamma * xhat + beta) less the proxy's mean, times its inverse deviation if `scaled`.

    `proxy`: beta, gamma, mean, inverse deviation, [channels] each.
    """

    @tf.custom_gradient
    def apply(
        x: tf.Tensor, beta: tf.Tensor, gamma: tf.Tensor, proxy_mean: tf.Tensor, inverse: tf.Tensor
    ) -> tuple[tf.Tensor, Pass]:
        mean, r = statistics(x, policy)
        factor = r * gamma
        shift = beta - mean * factor
        scale = inverse if scaled else tf.ones_like(inverse)
        value, slope = _proxy_passes(activation)
        y = value(x, factor, shift, proxy_mean, scale)

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dx, dgamma, dbeta = _gradients(x, gamma, mean, r, *slope(x, factor, shift, mean, dy, scale), policy)
            of_scale = _channel_sum(dy * y) / inverse if scaled else tf.zeros_like(inverse)  # y = (...) * inverse
            return dx, dbeta, dgamma, -scale * _channel_sum(dy), of_scale

        return y, gradient

    return apply(x, *proxy)


@cache
def _proxy_passes(activation: str) -> tuple[Pass, Pass]:
    """Like `_passes`, with the proxy's correction: (x, factor, shift, proxy mean, scale) -> y, and
    (x, factor, shift, mean, dy, scale) -> dz and dz * (x - mean)."""
    plain_value, plain_slope = (function.__wrapped__ for function in _passes(activation))

    def value(x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor, proxy_mean: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        return (plain_value(x, factor, shift) - proxy_mean) * scale

    def slope(
        x: tf.Tensor, factor: tf.Tensor, shift: tf.Tensor, mean: tf.Tensor, dy: tf.Tensor, scale: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        return plain_slope(x, factor, shift, mean, dy * scale)

    return _compiled(value), _compiled(slope)


def _channel_sum(x: tf.Tensor) -> tf.Tensor:
    """[batch, height, width, channels] -> [channels]; as a product with ones it is the fastest."""
    rows = tf.reshape(x, [-1, x.shape[-1]])
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], x.dtype), rows)[0]


def _gradients(
    x: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, r: tf.Tensor, dz: tf.Tensor, product: tf.Tensor, policy: NormPolicy
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """dx, dgamma, dbeta from dz and dz * (x - mean)."""
    pixels = x.shape[1] * x.shape[2]
    sums, products = (tf.reduce_sum(each, [1, 2], keepdims=True) for each in (dz, product))
    a = gamma * r
    of_mean = group_mean(gamma * sums, policy) / pixels
    of_deviation = group_mean(a * products, policy) / pixels
    dx = _input_gradient(dz, x, mean, a, -tf.square(r) * of_deviation, -r * of_mean)
    return dx, tf.reduce_sum(r * products, [0, 1, 2]), tf.reduce_sum(sums, [0, 1, 2])


def _pixel_mean(x: tf.Tensor) -> tf.Tensor:
    """[batch, 1, 1, channels]."""
    return tf.reduce_mean(x, axis=[1, 2], keepdims=True)
