"""A new norm needs a class in Models/_norms.py, a function and a row of NORMS. Half precision and exports then work without
further code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from networks import built

from cnn_harness.base.gradient_rules import gradients
from cnn_harness.emulator.layers.activations import activated
from cnn_harness.emulator.layers.rounding import widened
from cnn_harness.emulator.lowering import portable
from cnn_harness.emulator.lowering.tensorflow import NORMS, Lowering
from cnn_harness.emulator.network.network import Node
from cnn_harness.emulator.network.recorder import record_layers
from cnn_harness.emulator.plan.precision import OFF, SINGLE, by_name
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.Models._norms import Norm


@dataclass(frozen=True, kw_only=True)
class RootMeanSquareNorm(Norm):
    """RMS norm over a sample (Zhang and Sennrich, arXiv 1910.07467)."""

    scope = "rms_norm"


def rms_norm(low: Lowering, node: Node, x: tf.Tensor, *, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    """Stand in for a function in emulator/lowering/tensorflow.py."""
    x = widened(x)
    square = tf.reduce_mean(tf.square(x), axis=[1, 2, 3], keepdims=True)
    y = x * tf.math.rsqrt(square + node.norm.epsilon) * gamma + beta
    return low.result(node, activated(node.activation, y))


def half(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


def expected(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return RMS norm with ReLU and the gradient of x, in float64."""
    x, gamma, beta, dy = (each.astype(np.float64) for each in (x, gamma, beta, dy))
    r = (np.mean(x**2, axis=(1, 2, 3), keepdims=True) + 1e-5) ** -0.5
    y = x * r * gamma + beta
    dn = np.where(y > 0, dy, 0) * gamma
    return np.maximum(y, 0), r * dn - x * r**3 * np.mean(dn * x, axis=(1, 2, 3), keepdims=True)


@pytest.mark.parametrize("kind", ["single", "half", "portable"])
def test_new_norm_is_rounded_and_exported(kind, monkeypatch):
    monkeypatch.setitem(NORMS, RootMeanSquareNorm, rms_norm)
    draw = np.random.default_rng(3)
    x, dy = (half(draw.normal(1, 2, (2, 3, 3, 4))) for _ in range(2))
    gamma, beta = (half(draw.normal(1, 0.3, 4)) for _ in range(2))

    def network(layers, x):
        return layers.norm_activation(x, RootMeanSquareNorm(), "relu")

    with new_graph().as_default(), tf.Session() as session:
        weights = {"rms_norm/gamma": tf.constant(gamma), "rms_norm/beta": tf.constant(beta)}
        source = tf.constant(x)
        if kind == "portable":
            y = portable.logits(record_layers(network, x.shape[1:]), weights, source)
        else:
            precision = by_name("16.16", stochastic=OFF) if kind == "half" else SINGLE
            y, _ = built(network, weights, source, precision=precision)
        found = session.run([y, gradients(y, [source], tf.constant(dy, y.dtype))[0]])
    tolerance = 2e-3 if kind == "half" else 1e-5
    for own, other in zip(found, expected(x, gamma, beta, dy), strict=True):
        np.testing.assert_allclose(own, other, rtol=tolerance, atol=tolerance)
        assert np.array_equal(own, half(own)) == (kind == "half")
