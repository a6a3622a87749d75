"""Native convolutions and their gradients agree with float64: for FP32 and 16-bit tensors, by kernels for the gradient of
weights alone, and for 3x3 convolutions by Winograd's minimal filtering. Results round as EmulatorRounding does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from networks import built

from cnn_harness.base.gradient_rules import gradients
from cnn_harness.emulator.lowering.lists import prepared
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.recorder import record_layers
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.emulator.plan.precision import SINGLE, Precision
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.Models._layers import GLOROT

pytestmark = pytest.mark.skipif(library.load() is None, reason="the kernels are not built")
# batch, height, width, channels; kernel; stride; channels per group; filters.
# Depths are above and below a strip; rows do not fill a tile, nor filters a vector or panel. There are groups, images smaller
# than the kernel, strides above it, and no images.
CASES = [
    ((2, 7, 7, 16), 3, 1, 16, 16), ((1, 5, 6, 3), 3, 2, 3, 8), ((3, 9, 8, 20), 5, 2, 5, 12), ((2, 14, 14, 64), 1, 1, 64, 96),
    ((2, 13, 12, 32), 1, 2, 32, 32), ((1, 1, 1, 5), 3, 1, 5, 7), ((2, 8, 8, 300), 3, 1, 300, 260), ((2, 6, 6, 48), 3, 1, 16, 48),
    ((1, 4, 3, 2), 7, 3, 2, 2), ((1, 2, 2, 8), 3, 3, 4, 16), ((2, 30, 31, 4), 7, 2, 4, 24), ((70, 12, 12, 4), 3, 1, 4, 40),
    ((0, 8, 8, 16), 3, 1, 16, 16), ((3, 5, 5, 6), 2, 1, 1, 12),
]  # fmt: skip
TYPES = [("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32"), ("float16", "float32")]
# For kernels of the weights' gradient: images divisible by tiles and blocks of rows and not, smaller than the kernel, of one
# pixel, and more samples than one chunk; then ungrouped: few channels, channels whole memory pages apart, several panels for
# one thread, and strides above the kernel size.
GRADIENT_CASES = [
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
# For minimal filtering: images of whole and partial tiles, and smaller than a tile. There are more tiles than a block and than
# a part of the batch, products of one vector and of two, and several pieces of inputs.
WINOGRAD_CASES = [
    ((2, 8, 8, 16), 3, 1, 16, 16), ((1, 7, 9, 32), 3, 1, 32, 16), ((3, 5, 6, 16), 3, 1, 16, 48), ((2, 1, 1, 16), 3, 1, 16, 32), ((1, 1, 8, 32), 3, 1, 32, 32),
    ((2, 2, 1, 16), 3, 1, 16, 16), ((4, 6, 5, 64), 3, 1, 16, 64), ((2, 9, 4, 96), 3, 1, 32, 96), ((1, 4, 4, 64), 3, 1, 32, 32), ((90, 14, 15, 32), 3, 1, 32, 32),
    ((5, 30, 31, 48), 3, 1, 48, 64), ((2, 6, 6, 256), 3, 1, 256, 256), ((3, 5, 5, 144), 3, 1, 144, 16), ((0, 4, 4, 16), 3, 1, 16, 16),
    # joined groups, and groups of as many channels that cannot be joined
    ((2, 9, 8, 32), 3, 1, 4, 32), ((3, 12, 13, 48), 3, 1, 8, 48), ((2, 5, 6, 64), 3, 1, 4, 64), ((0, 4, 4, 16), 3, 1, 8, 16),
    # more weights than are read for every block: fewer tiles than one thread multiplies, more than one block and one part
    ((1, 1, 1, 512), 3, 1, 512, 144), ((3, 9, 8, 544), 3, 1, 272, 544), ((3, 52, 60, 272), 3, 1, 272, 256), ((0, 4, 4, 512), 3, 1, 512, 256),
]  # fmt: skip

OWN_GRADIENTS = {"EmulatorConvWeightsGradient", "EmulatorDepthwiseWeightsGradient"}
WINOGRAD = {f"EmulatorWinogradConv2D{which}" for which in ("", "BackpropInput", "BackpropFilter")}


def drawn(shape: tuple[int, ...], kernel: int, stride: int, of_group: int, filters: int) -> dict[str, np.ndarray]:
    random, (batch, height, width, _) = np.random.default_rng(0), shape
    return {
        "x": random.normal(0.5, 1, shape), "weights": random.normal(0, 1, (kernel, kernel, of_group, filters)),
        "dy": random.normal(0, 1, (batch, -(-height // stride), -(-width // stride), filters)),
    }  # fmt: skip


def convolution(x: tf.Tensor, weights: tf.Tensor, stride: int, filtered: bool) -> tf.Tensor:
    """Return a convolution in training, with or without minimal filtering, which has its own gradients."""
    (kernel, _, of_group, filters), channels = weights.shape.as_list(), x.shape[-1]
    options = {"stride": stride, "groups": channels // of_group}
    network = record_layers(lambda layers, x: layers.conv(x, filters, kernel, GLOROT, **options), tuple(x.shape[1:]))
    policy = PrecisionPolicy(SINGLE, dtype=x.dtype)
    target = policy.target("/cpu:0")
    if not filtered:  # Choose kernels as on processors with wide vectors, because on others, groups use oneDNN.
        target = replace(target, native=frozenset(target.native) - {"emulator_winograd_conv2d"}, is_wide=True)
    return policy.lowering({"conv/conv2d/kernel": weights}, target).run(prepared(network, SINGLE, target), x)


def outcome(
    inputs: dict[str, np.ndarray], stride: int, dtype: type = np.float32, filtered: bool = False
) -> list[np.ndarray]:
    """Return y and the gradients of x and of the weights; in float64 by TensorFlow, group by group."""
    with new_graph().as_default() as graph:
        fed = {name: tf.placeholder(dtype, value.shape) for name, value in inputs.items()}
        x, weights, dy = fed.values()
        y = convolution(x, weights, stride, filtered)
        outputs = [y, *gradients([y], [x, weights], [dy])]
        own = {op.type for op in graph.get_operations()} & (OWN_GRADIENTS | WINOGRAD)
        assert len(own) == (dtype == np.float32) * (3 if filtered else 1)
        with tf.Session(graph=graph) as session:
            return session.run(outputs, {tensor: inputs[name] for name, tensor in fed.items()})


@pytest.mark.parametrize("in_units", [False, True], ids=["vectors", "units"])
@pytest.mark.parametrize(("types"), TYPES, ids=" ".join)
@pytest.mark.parametrize(("shape", "kernel", "stride", "of_group", "filters"), CASES)
def test_products_match_float64(shape, kernel, stride, of_group, filters, types, in_units):
    kernels, draw = library.load(), np.random.default_rng(0)
    batch, height, width, channels = shape
    inputs = drawn(shape, kernel, stride, of_group, filters)
    for name, kind in zip(("x", "weights", "dy"), (types[0], "float32", types[1])):
        inputs[name] = inputs[name].astype(tf.as_dtype(kind).as_numpy_dtype)
    x, weights, dy = inputs.values()
    noise = draw.integers(0, 2**63, size=(batch, 1, 1, 1)).astype(np.uint64)
    sizes = {"stride": stride, "groups": channels // of_group, "in_units": in_units}
    of_input = {"dy": dy, "weights": weights, "rows": height, "columns": width, **sizes}
    wide = {name: value.astype(np.float64) for name, value in inputs.items()}
    wanted = outcome(wide, stride, np.float64) if batch else [wide["dy"], wide["x"], 0 * wide["weights"]]
    with new_graph().as_default(), tf.Session() as session:
        y = kernels.emulator_convolution(x=x, weights=weights, noise=(), **sizes)
        dx = kernels.emulator_convolution_input_gradient(noise=(), **of_input)
        dw = kernels.emulator_convolution_weights_gradient(x=x, dy=dy, kernel=kernel, **sizes)
        exact = session.run([y, dx, dw])
        for found, each in zip(exact, wanted):
            np.testing.assert_allclose(found, each, rtol=0, atol=3e-6 * np.abs(each).max(initial=1))
        for rounding, words, dtype in (
            ("nearest", (), tf.half),
            ("random", (noise,), tf.half),
            ("random", (noise,), tf.float32),
        ):
            ways = {"rounding": rounding, "noise": words, "salt": 1, "V": dtype}
            together = [
                kernels.emulator_convolution(x=x, weights=weights, **sizes, **ways),
                kernels.emulator_convolution_input_gradient(**of_input, **ways),
            ]
            apart = [
                kernels.emulator_rounding(x=each, rounding=rounding, noise=words, salt=1, T=dtype) for each in exact[:2]
            ]
            for one, other in zip(*session.run((together, apart))):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("in_units", [False, True], ids=["vectors", "units"])
@pytest.mark.parametrize("dtype", [tf.half, tf.bfloat16], ids=["float16", "bfloat16"])
def test_products_of_narrow_numbers_are_exact(dtype, in_units):
    """A result with one term is the FP32 product, for all numbers of a format and subnormal FP16 numbers. Infinity stays
    infinite in vectors, and becomes infinity or NaN in units."""
    draw, narrow = np.random.default_rng(1), dtype.as_numpy_dtype
    x, weights = (draw.integers(0, 2**16, n).astype(np.uint16).view(narrow).astype(np.float32) for n in (4096, 70))
    x[:2], weights[:2] = (np.inf, -1), (1, np.nan)
    if dtype == tf.bfloat16:  # BF16 units do not compute with FP32's subnormal numbers
        x, weights = (np.where((abs(each) > 1e-18) & (abs(each) < 1e18), each, 1) for each in (x, weights))
    with new_graph().as_default(), tf.Session() as session, np.errstate(all="ignore"):
        images, kernel = tf.cast(x.reshape(1, 64, 64, 1), dtype), weights.reshape(1, 1, 1, 70)
        y = library.load().emulator_convolution(x=images, weights=kernel, noise=(), stride=1, groups=1, in_units=in_units)
        found, wanted = session.run(y).reshape(4096, 70), np.outer(x, weights)
    compared = np.isfinite(wanted) if in_units else np.full(wanted.shape, True)
    np.testing.assert_array_equal(found[compared], wanted[compared])
    assert not np.isfinite(found[~compared]).any()


ALL = [(False, *case) for case in GRADIENT_CASES] + [(True, *case) for case in WINOGRAD_CASES]


@pytest.mark.parametrize(("filtered", "shape", "kernel", "stride", "of_group", "filters"), ALL)
def test_convolutions_and_gradients_match_float64(filtered, shape, kernel, stride, of_group, filters):
    inputs = drawn(shape, kernel, stride, of_group, filters)
    found = outcome(inputs, stride, filtered=filtered)
    if not shape[0]:
        assert found[2].shape == inputs["weights"].shape and not found[2].any()
        assert not filtered or (found[0].shape, found[1].shape) == (inputs["dy"].shape, shape)
        return
    expected = outcome(inputs, stride, np.float64)
    # errors of filtering are twice to four times the size of those of direct products
    rtol, atol = (0, 4e-6) if filtered else (1e-4, 2e-6)
    for own, exact in zip(found, expected):
        assert own.shape == exact.shape
        np.testing.assert_allclose(own, exact, rtol=rtol, atol=atol * np.abs(exact).max())
    most = 1e-6 * np.sqrt(inputs["dy"][..., 0].size) * np.abs(expected[2]).max()
    assert filtered or np.abs(found[2] - expected[2]).max() < most


def test_empty_images_give_zero_gradients():
    kernels = library.load()
    with new_graph().as_default() as graph, tf.Session(graph=graph) as session:
        empty = tf.zeros((2, 3, 0, 5))
        dw = session.run(kernels.emulator_depthwise_weights_gradient(x=empty, dy=empty, stride=1, kernel=3))
    assert dw.shape == (3, 3, 5, 1) and not dw.any()


def shared_work() -> list[np.ndarray]:
    """Return results that several threads share."""
    own = [((40, 40, 30, 48), 3, 1, 16, 48), ((20, 30, 31, 72), 3, 1, 1, 72), ((2, 9, 9, 400), 5, 1, 1, 400)]
    own.append(((40, 41, 30, 72), 3, 2, 72, 96))
    filtered = [((40, 13, 14, 48), 48, 32), ((3, 9, 10, 96), 32, 96), ((9, 14, 14, 272), 272, 256)]
    done = [outcome(drawn(*case), case[2])[2] for case in own]
    return done + [each for shape, *rest in filtered for each in outcome(drawn(shape, 3, 1, *rest), 1, filtered=True)]


def test_other_samples_change_no_bit():
    inputs = drawn((40, 13, 14, 48), 3, 1, 48, 32)
    some = {name: value if name == "weights" else value[7:12] for name, value in inputs.items()}
    for whole, part in zip(outcome(inputs, 1, filtered=True)[:2], outcome(some, 1, filtered=True)):
        assert np.array_equal(part, whole[7:12])


@pytest.mark.parametrize(("filtered", "of_group", "own"), [
    (False, 16, np.s_[:, :, 5, 16:32]), (False, 1, np.s_[:, :, 0, 21]), (True, 16, np.s_[:, :, 5, 16:32]),
])  # fmt: skip
def test_non_finite_numbers_stay_in_their_group(filtered, of_group, own):
    inputs = drawn((2, 8, 8, 48), 3, 1, of_group, 48)
    inputs["x"][1, 3, 4, 21] = np.nan
    dw = outcome(inputs, 1, filtered=filtered)[2]
    expected = np.zeros(dw.shape, bool)
    expected[own] = True
    assert np.array_equal(np.isnan(dw), expected)


@pytest.mark.parametrize(("side", "of_rows", "of_columns"), [(10, slice(2, 6), slice(2, 6)), (12, slice(0, 8), slice(0, 8))])
def test_non_finite_numbers_stay_in_their_tiles(side, of_rows, of_columns):
    """For results in tiles of two, and of four."""
    inputs = drawn((2, side, side, 48), 3, 1, 16, 48)
    inputs["x"][1, 3, 4, 21] = np.nan
    wrong = np.isnan(outcome(inputs, 1, filtered=True)[0])
    assert wrong[1, 2:5, 3:6, 16:32].all()  # of the pixels that have it as an input
    wrong[1, of_rows, of_columns, 16:32] = False  # and of their tiles
    assert not wrong.any()


@pytest.mark.parametrize(("precision", "training", "native"), [("32.32", True, 1), ("32.32", False, 0), ("16.16", True, 0)])
def test_only_fp32_training_uses_winograd(precision, training, native):
    with new_graph().as_default() as graph:
        weights, x = {"conv/conv2d/kernel": tf.zeros([3, 3, 16, 16])}, tf.zeros([2, 8, 8, 16])
        use = {"training": training, "precision": Precision.of(DeviceOptions(precision=precision))}
        built(lambda layers, x: layers.conv(x, 16, 3, GLOROT), weights, x, positions=tf.zeros([2], tf.int64), **use)
        assert sum("Winograd" in operation.type for operation in graph.get_operations()) == native
