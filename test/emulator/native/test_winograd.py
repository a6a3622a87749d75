"""3x3 training convolutions by Winograd's minimal filtering agree with float64, and no other sample changes a bit."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from networks import built

from cnn_harness.base.gradient_rules import gradients
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.emulator.plan.precision import Precision
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.Models._layers import GLOROT

pytestmark = pytest.mark.skipif(library.load() is None, reason="the kernels are not built")
# batch, height, width, channels; channels per group; filters: images of whole and partial tiles. Some are smaller than a tile,
# more tiles than a block and than a part of the batch, products of one vector and of two, several pieces of inputs
CASES = [
    ((2, 8, 8, 16), 16, 16), ((1, 7, 9, 32), 32, 16), ((3, 5, 6, 16), 16, 48), ((2, 1, 1, 16), 16, 32), ((1, 1, 8, 32), 32, 32),
    ((2, 2, 1, 16), 16, 16), ((4, 6, 5, 64), 16, 64), ((2, 9, 4, 96), 32, 96), ((1, 4, 4, 64), 32, 32), ((90, 14, 15, 32), 32, 32),
    ((5, 30, 31, 48), 48, 64), ((2, 6, 6, 256), 256, 256), ((3, 5, 5, 144), 144, 16), ((0, 4, 4, 16), 16, 16),
    # joined groups, and groups of as many channels that cannot be joined
    ((2, 9, 8, 32), 4, 32), ((3, 12, 13, 48), 8, 48), ((2, 5, 6, 64), 4, 64), ((0, 4, 4, 16), 8, 16),
    # more weights than are read for every block: fewer tiles than one thread multiplies, more than one block and one part
    ((1, 1, 1, 512), 512, 144), ((3, 9, 8, 544), 272, 544), ((3, 52, 60, 272), 272, 256), ((0, 4, 4, 512), 512, 256),
]  # fmt: skip


def drawn(shape: tuple[int, ...], of_group: int, filters: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "x": random.normal(0.5, 1, shape), "weights": random.normal(0, 1, (3, 3, of_group, filters)),
        "dy": random.normal(0, 1, (*shape[:3], filters)),
    }  # fmt: skip


def outcome(inputs: dict[str, np.ndarray], dtype: type = np.float32) -> list[np.ndarray]:
    """Return y and the gradients of x and of the weights; in float64 by TensorFlow, group by group."""
    with new_graph().as_default() as graph:
        fed = {name: tf.placeholder(dtype, value.shape) for name, value in inputs.items()}
        x, weights, dy = fed.values()
        groups, filters = x.shape[-1] // weights.shape[2], weights.shape[3]
        y, _ = built(lambda layers, x: layers.conv(x, filters, 3, GLOROT, groups=groups), {"conv/conv2d/kernel": weights}, x)
        outputs = [y, *gradients([y], [x, weights], [dy])]
        assert sum("Winograd" in operation.type for operation in graph.get_operations()) == (3 if dtype == np.float32 else 0)
        with tf.Session(graph=graph) as session:
            return session.run(outputs, {tensor: inputs[name] for name, tensor in fed.items()})


@pytest.mark.parametrize(("shape", "of_group", "filters"), CASES)
def test_convolutions_and_gradients_match_float64(shape, of_group, filters):
    inputs = drawn(shape, of_group, filters)
    found = outcome(inputs)
    if not shape[0]:
        assert [each.shape for each in found] == [inputs["dy"].shape, shape, inputs["weights"].shape]
        assert not found[2].any()
        return
    for own, exact in zip(found, outcome(inputs, np.float64)):
        assert own.shape == exact.shape
        # twice to four times the size of direct products
        np.testing.assert_allclose(own, exact, rtol=0, atol=4e-6 * np.abs(exact).max())


def shared_work() -> list[np.ndarray]:
    """Return results that several threads share."""
    return (
        outcome(drawn((40, 13, 14, 48), 48, 32))
        + outcome(drawn((3, 9, 10, 96), 32, 96))
        + outcome(drawn((9, 14, 14, 272), 272, 256))
    )


def test_other_samples_change_no_bit():
    inputs = drawn((40, 13, 14, 48), 48, 32)
    alone = outcome(inputs)
    some = outcome({name: value if name == "weights" else value[7:12] for name, value in inputs.items()})
    assert np.array_equal(some[0], alone[0][7:12]) and np.array_equal(some[1], alone[1][7:12])


@pytest.mark.parametrize(("side", "of_rows", "of_columns"), [(10, slice(2, 6), slice(2, 6)), (12, slice(0, 8), slice(0, 8))])
def test_non_finite_numbers_stay_in_their_tiles(side, of_rows, of_columns):
    """For results in tiles of two, and of four."""
    inputs = drawn((2, side, side, 48), 16, 48)
    inputs["x"][1, 3, 4, 21] = np.nan
    y, _, dw = outcome(inputs)
    wrong = np.isnan(y)
    assert wrong[1, 2:5, 3:6, 16:32].all()  # of the pixels that have it as an input
    wrong[1, of_rows, of_columns, 16:32] = False  # and of their tiles
    assert not wrong.any()
    expected = np.zeros(dw.shape, bool)
    expected[:, :, 5, 16:32] = True
    assert np.array_equal(np.isnan(dw), expected)


@pytest.mark.parametrize(("precision", "training", "native"), [("32.32", True, 1), ("32.32", False, 0), ("16.16", True, 0)])
def test_only_fp32_training_uses_winograd(precision, training, native):
    with new_graph().as_default() as graph:
        weights, x = {"conv/conv2d/kernel": tf.zeros([3, 3, 16, 16])}, tf.zeros([2, 8, 8, 16])
        use = {"training": training, "precision": Precision.of(DeviceOptions(precision=precision))}
        built(lambda layers, x: layers.conv(x, 16, 3, GLOROT), weights, x, positions=tf.zeros([2], tf.int64), **use)
        assert sum("Winograd" in operation.type for operation in graph.get_operations()) == native
