"""Convolutions with a native kernel for the gradient of weights agree with float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cnn_harness.base.gradient_rules import gradients
from cnn_harness.emulator.lowering.lists import prepared
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.recorder import record_layers
from cnn_harness.emulator.plan.precision import SINGLE
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.Models._layers import GLOROT

pytestmark = pytest.mark.skipif(library.load() is None, reason="the kernels are not built")
# batch, height, width, channels; kernel; stride; channels per group; filters. Images divisible by tiles and blocks of rows and
# not, smaller than the kernel, of one pixel, and more samples than one chunk of a weights' gradient; then ungrouped: few channels,
# channels whole memory pages apart, several panels for one thread, and strides above the kernel size
CASES = [
    ((2, 14, 14, 32), 3, 1, 16, 32), ((1, 9, 23, 32), 3, 2, 16, 32), ((3, 7, 7, 48), 5, 1, 16, 48), ((2, 15, 8, 32), 5, 2, 16, 32),
    ((2, 8, 15, 32), 5, 3, 16, 32), ((2, 1, 1, 32), 5, 1, 16, 32), ((2, 2, 3, 32), 7, 2, 16, 32), ((1, 70, 131, 32), 3, 1, 16, 32),
    ((1, 64, 112, 32), 3, 2, 16, 32), ((5, 6, 6, 32), 1, 2, 16, 32), ((700, 4, 4, 32), 3, 1, 16, 32), ((3, 5, 5, 32), 2, 1, 16, 32),
    ((3, 6, 5, 32), 4, 2, 16, 32), ((2, 1, 30, 32), 3, 3, 16, 32), ((0, 8, 8, 32), 3, 2, 16, 32),
    ((3, 23, 31, 3), 7, 2, 3, 64), ((9, 32, 33, 3), 3, 2, 3, 48), ((2, 7, 9, 1), 5, 2, 1, 16), ((2, 9, 8, 13), 3, 2, 13, 32),
    ((2, 14, 15, 128), 3, 2, 128, 160), ((9, 8, 8, 256), 3, 2, 256, 544), ((3, 3, 2, 70), 5, 3, 70, 16), ((2, 9, 9, 72), 2, 3, 72, 32),
    ((2, 9, 8, 64), 3, 2, 4, 64), ((3, 7, 7, 32), 5, 1, 8, 32), ((0, 8, 8, 32), 3, 2, 8, 32),  # joined groups
    ((40, 30, 30, 8), 3, 2, 8, 32), ((1, 5, 5, 300), 3, 2, 300, 96), ((0, 8, 8, 8), 3, 2, 8, 32),
    # depthwise: channels that do not fill a vector or panel, in tiles that divide rows and columns and in others
    ((2, 14, 15, 32), 3, 1, 1, 32), ((3, 9, 70, 50), 3, 1, 1, 50), ((2, 33, 35, 24), 5, 1, 1, 24), ((2, 56, 10, 40), 5, 2, 1, 40),
    ((1, 13, 112, 32), 3, 2, 1, 32), ((4, 1, 1, 20), 5, 1, 1, 20), ((2, 2, 3, 5), 5, 2, 1, 5), ((2, 3, 2, 16), 3, 3, 1, 16),
    ((70, 12, 12, 48), 3, 1, 1, 48), ((1, 100, 9, 2), 5, 1, 1, 2), ((2, 9, 40, 17), 3, 4, 1, 17), ((0, 8, 8, 32), 3, 1, 1, 32),
]  # fmt: skip
KERNELS = {"EmulatorConvWeightsGradient", "EmulatorDepthwiseWeightsGradient"}


def drawn(shape: tuple[int, ...], kernel: int, stride: int, of_group: int, filters: int) -> dict[str, np.ndarray]:
    random, (batch, height, width, _) = np.random.default_rng(0), shape
    return {
        "x": random.normal(0.5, 1, shape), "weights": random.normal(0, 1, (kernel, kernel, of_group, filters)),
        "dy": random.normal(0, 1, (batch, -(-height // stride), -(-width // stride), filters)),
    }  # fmt: skip


def convolution(x: tf.Tensor, weights: tf.Tensor, stride: int) -> tf.Tensor:
    """Return a convolution in training, without minimal filtering, which has its own gradients."""
    (kernel, _, of_group, filters), channels = weights.shape.as_list(), x.shape[-1]
    options = {"stride": stride, "groups": channels // of_group}
    network = record_layers(lambda layers, x: layers.conv(x, filters, kernel, GLOROT, **options), tuple(x.shape[1:]))
    policy = PrecisionPolicy(SINGLE, dtype=x.dtype)
    target = policy.target("/cpu:0")
    # Choose kernels as on processors with wide vectors, because on others, groups use oneDNN.
    target = replace(target, native=frozenset(target.native) - {"emulator_winograd_conv2d"}, is_wide=True)
    return policy.lowering({"conv/conv2d/kernel": weights}, target).run(prepared(network, SINGLE, target), x)


def outcome(inputs: dict[str, np.ndarray], stride: int, dtype: type) -> list[np.ndarray]:
    """Return y and the gradients of x and of the weights; in float64 by TensorFlow, group by group."""
    with new_graph().as_default() as graph:
        fed = {name: tf.placeholder(dtype, value.shape) for name, value in inputs.items()}
        x, weights, dy = fed.values()
        y = convolution(x, weights, stride)
        outputs = [y, *gradients([y], [x, weights], [dy])]
        assert bool(KERNELS & {operation.type for operation in graph.get_operations()}) == (dtype == np.float32)
        with tf.Session(graph=graph) as session:
            return session.run(outputs, {tensor: inputs[name] for name, tensor in fed.items()})


@pytest.mark.parametrize(("shape", "kernel", "stride", "of_group", "filters"), CASES)
def test_convolutions_and_gradients_match_float64(shape, kernel, stride, of_group, filters):
    inputs = drawn(shape, kernel, stride, of_group, filters)
    found = outcome(inputs, stride, np.float32)
    if not shape[0]:
        assert found[2].shape == inputs["weights"].shape and not found[2].any()
        return
    expected = outcome(inputs, stride, np.float64)
    for own, exact in zip(found, expected):
        assert own.shape == exact.shape
        np.testing.assert_allclose(own, exact, rtol=1e-4, atol=2e-6 * np.abs(exact).max())
    assert np.abs(found[2] - expected[2]).max() < 1e-6 * np.sqrt(inputs["dy"][..., 0].size) * np.abs(expected[2]).max()


def test_empty_images_give_zero_gradients():
    kernels = library.load()
    with new_graph().as_default() as graph, tf.Session(graph=graph) as session:
        empty = tf.zeros((2, 3, 0, 5))
        dw = session.run(kernels.emulator_depthwise_weights_gradient(x=empty, dy=empty, stride=1, kernel=3))
    assert dw.shape == (3, 3, 5, 1) and not dw.any()


def shared_work() -> list[np.ndarray]:
    """Return results that several threads share."""
    grouped = outcome(drawn((40, 40, 30, 48), 3, 1, 16, 48), 1, np.float32)
    depthwise = outcome(drawn((20, 30, 31, 72), 3, 1, 1, 72), 1, np.float32) + outcome(
        drawn((2, 9, 9, 400), 5, 1, 1, 400), 1, np.float32
    )
    return grouped[2:] + outcome(drawn((40, 41, 30, 72), 3, 2, 72, 96), 2, np.float32)[2:] + depthwise[2::3]


@pytest.mark.parametrize(("of_group", "own"), [(16, np.s_[:, :, 5, 16:32]), (1, np.s_[:, :, 0, 21])])
def test_non_finite_numbers_stay_in_their_group(of_group, own):
    inputs = drawn((2, 8, 8, 48), 3, 1, of_group, 48)
    inputs["x"][1, 3, 4, 21] = np.nan
    dw = outcome(inputs, 1, np.float32)[2]
    expected = np.zeros(dw.shape, bool)
    expected[own] = True
    assert np.array_equal(np.isnan(dw), expected)
