"""Proxy normalisation (Labatie et al., arXiv 2106.03743), with the constants of Graphcore's harness.

A proxy variable [6, 1, 1, channels] has the rows beta, gamma, proxy mean, inverse proxy deviation, beta', gamma'. The proxy
mean and deviation are the statistics of the activation for a Gaussian channel, computed in FP32 over 200 quantiles q:

    value_q = activation(gamma * ((1 + gamma') * q + beta') + beta)
    mean = mean_q(value), inverse deviation = 1 / sqrt(variance_q(value) + epsilon)

After every update, both are recomputed from the other rows. The backward pass computes gradients of all six rows. Once per
update, `chain_gradient` propagates the gradients of the two statistics to the other rows.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base.gradient_rules import gradients
from cnn_harness.base.tracing import TensorFunction, traced
from cnn_harness.emulator.layers.activations import ACTIVATIONS
from cnn_harness.Models._layers import ProxyRule

ROWS = BETA, GAMMA, MEAN, INVERSE_DEVIATION, EXTRA_BETA, EXTRA_GAMMA = range(6)
SAMPLES = 200
QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / SAMPLES) for i in range(SAMPLES)])
DECAYED = (EXTRA_BETA, EXTRA_GAMMA)  # weight decay applies to these rows only.


def statistics(rule: ProxyRule, value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the proxy mean and the inverse proxy deviation [1, 1, channels], computed from the other rows of a variable."""
    beta, gamma, _, _, extra_beta, extra_gamma = tf.unstack(value)
    quantiles = tf.constant(QUANTILES.reshape(-1, 1, 1, 1), value.dtype)
    inner = (1 + extra_gamma) * quantiles + extra_beta
    activation = tf.nn.silu if rule.activation == "swish" else ACTIVATIONS[rule.activation].value
    values = activation(gamma * inner + beta)
    mean = tf.reduce_mean(values, 0)
    variance = tf.reduce_mean(tf.square(values - mean), 0)
    return mean, tf.math.rsqrt(variance + rule.epsilon)


def refreshed(rule: ProxyRule, value: tf.Tensor) -> tf.Tensor:
    """Return a proxy variable with recomputed statistics."""
    return _functions(rule)[0](value)


def with_statistics_of(value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Return the proxy variable `other` with the statistics of the proxy variable `value`."""
    return tf.where_v2(_mask((MEAN, INVERSE_DEVIATION), value.dtype) > 0, value, other)


def chain_gradient(rule: ProxyRule, value: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Return the gradient of the four trained rows, including their effect on the statistics, whose rows are zero."""
    return _functions(rule)[1](value, gradient)


@cache
def _functions(rule: ProxyRule) -> tuple[TensorFunction, TensorFunction]:
    """Return `refreshed` and `chain_gradient` as graph functions of a hundred operations, for all proxy variables."""

    def refresh(value: tf.Tensor) -> tf.Tensor:
        beta, gamma, _, _, extra_beta, extra_gamma = tf.unstack(value)
        return tf.stack([beta, gamma, *statistics(rule, value), extra_beta, extra_gamma])

    def chain(value: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        incoming = tf.unstack(gradient)
        (through,) = gradients(statistics(rule, value), [value], [incoming[MEAN], incoming[INVERSE_DEVIATION]])
        return (gradient + through) * _mask([row for row in ROWS if row not in (MEAN, INVERSE_DEVIATION)], value.dtype)

    return traced(refresh), traced(chain)


def rows_to_decay(value: tf.Tensor) -> tf.Tensor:
    """Return the variable with zeros in the rows to which weight decay does not apply."""
    return value * _mask(DECAYED, value.dtype)


def initial(rule: ProxyRule, channels: int, dtype: tf.DType) -> tf.Tensor:
    """Return the initial value of a proxy variable: offset 0, scale 1, no correction, and the statistics of these rows."""
    start = tf.reshape(tf.one_hot(GAMMA, len(ROWS), dtype=dtype), [len(ROWS), 1, 1, 1])
    return refreshed(rule, tf.tile(start, [1, 1, 1, channels]))


def _mask(rows: list[int] | tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    return tf.constant([float(row in rows) for row in ROWS], dtype, [len(ROWS), 1, 1, 1])
