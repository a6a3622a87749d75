"""Convolutions, subsampling and pooling match NumPy, forward and backward."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from networks import built, evaluated, random

from cnn_harness.base.gradient_rules import gradients
from cnn_harness.emulator.lowering import policy as policies
from cnn_harness.emulator.lowering import portable
from cnn_harness.emulator.network.recorder import record_layers
from cnn_harness.emulator.plan.precision import OFF, SINGLE, by_name
from cnn_harness.Models._layers import GLOROT
from cnn_harness.Models._norms import BatchNorm


def padded(x, kernel, stride, value=0.0):
    """Pad as in SAME: the odd row and column go to the bottom and the right."""
    amounts = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[1:3]]
    return np.pad(x, [(0, 0), *((a // 2, a - a // 2) for a in amounts), (0, 0)], constant_values=value)


def windows(x, kernel, stride, value=0.0):
    """Return [batch, rows, columns, channels, kernel, kernel] of the padded x."""
    every = np.lib.stride_tricks.sliding_window_view(padded(x, kernel, stride, value), (kernel, kernel), (1, 2))
    return every[:, ::stride, ::stride]


def numpy_conv(x, weights, stride=1, groups=1):
    """Return a SAME convolution in float64; output channels of one group are adjacent."""
    x, weights = x.astype(np.float64), weights.astype(np.float64)
    parts = zip(np.split(x, groups, -1), np.split(weights, groups, -1))
    return np.concatenate(
        [np.einsum("nxycij,ijco->nxyo", windows(part, len(w), stride), w, optimize=True) for part, w in parts], -1
    )


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    "side, kernel, stride, channels, filters, groups",
    [
        (8, 3, 1, 4, 6, 1),
        (8, 3, 2, 4, 6, 1),
        (9, 3, 2, 4, 6, 1),
        (8, 1, 2, 4, 6, 1),
        (14, 7, 2, 3, 8, 1),
        (8, 5, 2, 12, 12, 12),  # depthwise
        (8, 3, 1, 12, 12, 3),
        (8, 3, 2, 8, 16, 4),
        (7, 5, 1, 8, 4, 2),
        (8, 3, 1, 4, 8, 4),  # one input channel and two outputs per group
    ],
)
def test_conv_matches_numpy(monkeypatch, split, side, kernel, stride, channels, filters, groups):
    """Forward against NumPy, backward against directional differences; native groups and split groups."""
    if split:  # as without oneDNN
        monkeypatch.setattr(policies, "_pywrap_util_port", SimpleNamespace(IsMklEnabled=lambda: False))
    x = random(1, 2, side, side, channels)
    w = random(2, kernel, kernel, channels // groups, filters) / kernel
    expected = numpy_conv(x, w, stride, groups)
    weight = random(3, *expected.shape)

    def make(x, w):
        def conv(layers, x):
            return layers.conv(x, filters, kernel, GLOROT, stride=stride, groups=groups)

        # Kernels must not read memory that they have not set: leave freed memory full of numbers.
        with tf.control_dependencies([tf.fill([size], 7.0) + x[0, 0, 0, 0] for size in (x.shape.num_elements(), 64, 512)]):
            y, _ = built(conv, {"conv/conv2d/kernel": w}, tf.identity(x))
        return y, tf.gradients(tf.reduce_sum(y * weight), [x, w])

    y, (dx, dw) = evaluated(make, {"x": x, "w": w})
    assert y.shape == expected.shape and np.abs(y - expected).max() < 1e-5
    along_x, along_w = random(4, *x.shape), random(5, *w.shape)
    # linear in x and in w: the derivative along a direction is the value there
    assert (dx * along_x).sum(dtype=np.float64) == pytest.approx(
        (weight * numpy_conv(along_x, w, stride, groups)).sum(), abs=2e-3
    )
    assert (dw * along_w).sum(dtype=np.float64) == pytest.approx(
        (weight * numpy_conv(x, along_w, stride, groups)).sum(), abs=2e-3
    )


def normed(layers, x, scope):
    """Return a batch norm that changes nothing, with the variables of `without_effect`."""
    with layers.scope(scope):
        return layers.norm(x, BatchNorm(epsilon=2.0**-10))


def without_effect(scope, channels):
    values = {"gamma": 1.0, "beta": 0.0, "moving_mean": 0.0, "moving_variance": 1 - 2.0**-10}
    return {f"{scope}/batch_norm/{name}": tf.fill([channels], value) for name, value in values.items()}


def portably(build, weights, x):
    return portable.logits(record_layers(build, tuple(x.shape[1:])), weights, x)


WAYS = {
    "training": lambda build, weights, x: built(build, weights, x)[0],
    "inference": lambda build, weights, x: built(build, weights, x, training=False)[0],
    "fused inference": lambda build, weights, x: built(
        lambda layers, x: normed(layers, build(layers, x), "after"), weights, x, training=False
    )[0],
    "portable": portably,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("side, kernel, groups", [(8, 3, 1), (9, 3, 1), (14, 7, 1), (8, 3, 12), (8, 5, 12), (7, 5, 12)])
def test_symmetric_padding_is_equal_on_both_sides(way, side, kernel, groups):
    x, w = random(1, 2, side, side, 12), random(2, kernel, kernel, 12 // groups, 12) / kernel
    rows = 2 * [(kernel // 2, kernel // 2)]
    expected = numpy_conv(np.pad(x, [(0, 0), *rows, (0, 0)]), w, 1, groups)[:, kernel // 2 :: 2, kernel // 2 :: 2]
    expected = expected[:, : (side + 1) // 2, : (side + 1) // 2]
    pooled = np.pad(abs(x), [(0, 0), (1, 1), (1, 1), (0, 0)])
    pooled = np.lib.stride_tricks.sliding_window_view(pooled, (3, 3), (1, 2))[:, ::2, ::2].max((-1, -2))

    def make(x, w):
        def conv(layers, x):
            return layers.conv(x, 12, kernel, GLOROT, stride=2, groups=groups, padding="SYMMETRIC")

        weights = {"conv/conv2d/kernel": w, **without_effect("after", 12)}
        pool = WAYS[way](lambda layers, x: layers.max_pool(x, 3, 2, padding="SYMMETRIC"), weights, abs(x))
        return WAYS[way](conv, weights, x), pool

    y, most = evaluated(make, {"x": x, "w": w})
    assert y.shape == expected.shape and np.abs(y - expected).max() < 1e-5
    assert np.array_equal(most, pooled)


def test_conv_bias_pooling_and_means_match_numpy():
    x = random(1, 2, 5, 6, 3)

    def make(x):
        weights = {"conv/conv2d/kernel": tf.zeros([1, 1, 3, 4]), "conv/conv2d/bias": tf.range(4.0)}
        layers = (
            lambda layers, x: layers.conv(x, 4, 1, GLOROT, bias=True),
            lambda layers, x: layers.max_pool(x, 3, 2),
            lambda layers, x: layers.global_mean(x),
        )
        return tuple(built(layer, weights, x, training=False)[0] for layer in layers)

    biased, pooled, mean = evaluated(make, {"x": x})
    assert np.array_equal(biased, np.broadcast_to(np.float32([0, 1, 2, 3]), (2, 5, 6, 4)))
    assert np.array_equal(pooled, windows(x, 3, 2, -np.inf).max((-1, -2)))
    assert np.abs(mean - x.mean((1, 2), keepdims=True)).max() < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("side", "stride"), [(6, 2), (5, 2), (9, 3), (4, 1)])
def test_subsample_has_right_values_and_gradients(dtype, side, stride):
    x, kept = random(2, 2, side, side, 3).astype(dtype), -(-side // stride)
    beyond = np.finfo(dtype).max if dtype == np.float16 else np.inf  # in FP16, an overflow is NaN
    x[0, 0, 0], x[1, stride % side, 0, 0] = (beyond, np.finfo(dtype).smallest_subnormal, -1), np.nan
    dy = random(3, 2, kept, kept, 8).astype(dtype)

    def both_ways(x, dy):
        precision = by_name("16.16", stochastic=OFF) if dtype == np.float16 else SINGLE
        y, _ = built(lambda layers, x: layers.subsample(x, stride, 8), {}, x, precision=precision)
        return y, gradients(y, [x], dy)[0]

    y, dx = evaluated(both_ways, {"x": x, "dy": dy})
    expected, expected_dx = np.zeros((2, kept, kept, 8), dtype), np.zeros_like(x)
    expected[..., 2:5] = x[:, ::stride, ::stride]
    expected_dx[:, ::stride, ::stride] = dy[..., 2:5]
    assert np.array_equal(y, expected, equal_nan=True) and np.array_equal(dx, expected_dx)
