"""Convolutions in groups of 16 channels, whose weights' gradient is a native kernel, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from base.gradient_rules import gradients
from emulator.layers import convolutions
from emulator.native import library
from emulator.program.runtime import new_graph

pytestmark = pytest.mark.skipif(
    not hasattr(library.load(), "emulator_group_conv_weights_gradient"),
    reason="the kernels are not built, or the processor has no AVX-512",
)
# batch, height, width, channels; kernel; stride: images that tiles and blocks of rows divide, and that they do not, smaller
# than the kernel, of one pixel, and more samples than one chunk of a weights' gradient has
CASES = [
    ((2, 14, 14, 32), 3, 1), ((1, 9, 23, 32), 3, 2), ((3, 7, 7, 48), 5, 1), ((2, 15, 8, 32), 5, 2), ((2, 8, 15, 32), 5, 3),
    ((2, 1, 1, 32), 5, 1), ((2, 2, 3, 32), 7, 2), ((1, 70, 131, 32), 3, 1), ((1, 64, 112, 32), 3, 2), ((5, 6, 6, 32), 1, 2),
    ((700, 4, 4, 32), 3, 1), ((3, 5, 5, 32), 2, 1), ((3, 6, 5, 32), 4, 2), ((2, 1, 30, 32), 3, 3),
]  # fmt: skip


def drawn(shape: tuple[int, ...], kernel: int, stride: int, seed: int = 0) -> dict[str, np.ndarray]:
    random, (batch, height, width, channels) = np.random.default_rng(seed), shape
    return {
        "x": random.normal(0.5, 1, shape), "weights": random.normal(0, 1, (kernel, kernel, 16, channels)),
        "dy": random.normal(0, 1, (batch, -(-height // stride), -(-width // stride), channels)),
    }  # fmt: skip


def outcome(inputs: dict[str, np.ndarray], stride: int, dtype: type) -> list[np.ndarray]:
    """y and the gradients of x and of the weights; in float64 by TensorFlow, group by group."""
    with new_graph().as_default() as graph:
        fed = {name: tf.placeholder(dtype, value.shape) for name, value in inputs.items()}
        x, weights, dy = fed.values()
        y = convolutions.convolve(x, weights, stride, winograd=False)
        outputs = [y, *gradients([y], [x, weights], [dy])]
        assert any("GroupConv" in operation.type for operation in graph.get_operations()) == (dtype == np.float32)
        with tf.Session(graph=graph) as session:
            return session.run(outputs, {tensor: inputs[name] for name, tensor in fed.items()})


@pytest.mark.parametrize(("shape", "kernel", "stride"), CASES)
def test_convolutions_and_gradients_are_those_of_float64(shape, kernel, stride):
    inputs = drawn(shape, kernel, stride)
    found, expected = outcome(inputs, stride, np.float32), outcome(inputs, stride, np.float64)
    for own, exact in zip(found, expected):
        assert own.shape == exact.shape
        np.testing.assert_allclose(own, exact, rtol=1e-4, atol=2e-6 * np.abs(exact).max())
    assert np.abs(found[2] - expected[2]).max() < 1e-6 * np.sqrt(inputs["dy"][..., 0].size) * np.abs(expected[2]).max()


def shared_work() -> list[np.ndarray]:
    """Results that several threads share."""
    return outcome(drawn((40, 40, 30, 48), 3, 1), 1, np.float32)[2:]


def test_a_number_that_is_not_finite_goes_where_it_belongs():
    inputs = drawn((2, 8, 8, 48), 3, 1)
    inputs["x"][1, 3, 4, 21] = np.nan
    dw = outcome(inputs, 1, np.float32)[2]
    expected = np.zeros(dw.shape, bool)
    expected[:, :, 5, 16:32] = True
    assert np.array_equal(np.isnan(dw), expected)
