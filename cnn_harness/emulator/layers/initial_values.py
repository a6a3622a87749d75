"""The initial values of variables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from cnn_harness.base import draws
from cnn_harness.emulator.layers import proxy_norm
from cnn_harness.Models._layers import Initial, Variable


def initial_value(variable: Variable, seed: draws.Seed, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Return the initial value of a variable. Random values depend on seed and name only."""
    if variable.proxy:
        return proxy_norm.initial(variable.proxy, variable.shape[-1], dtype)
    if not isinstance(variable.initial, Initial):
        return filled(variable.shape, variable.initial, dtype)
    fan_in, fan_out = variable.fans
    fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2, "fixed": 1}
    deviation = math.sqrt(variable.initial.scale / max(fans[variable.initial.mode], 1))
    key = tf.convert_to_tensor(draws.stateless_seed(seed, f"initial/{variable.name}"), tf.int32) + _unknown_zero(tf.int32)
    if variable.initial.distribution == "uniform":
        limit = math.sqrt(3.0) * deviation
        values = tf.random.stateless_uniform(variable.shape, key, -limit, limit)
    else:
        # Truncation at two deviations multiplies the deviation of a normal distribution by 0.8796.
        values = tf.random.stateless_truncated_normal(variable.shape, key, stddev=deviation / 0.87962566103423978)
    return tf.cast(values, dtype)


def filled(shape: Sequence[int], value: float, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Return a tensor that has the same value everywhere."""
    return tf.fill(shape, tf.constant(value, dtype) + tf.cast(_unknown_zero(tf.float32), dtype))


def _unknown_zero(dtype: tf.DType) -> tf.Tensor:
    """Return a zero that TensorFlow does not know while it optimises a graph.

    Otherwise, TensorFlow would compute initial values in advance and keep them in memory as long as the session.
    """
    return tf.raw_ops.Empty(shape=[], dtype=dtype, init=True)
