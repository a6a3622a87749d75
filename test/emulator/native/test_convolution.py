"""The native convolution and its gradients agree with float64 for FP32 and 16-bit tensors, and round as EmulatorRounding
does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cnn_harness.emulator.native import library
from cnn_harness.emulator.program.runtime import new_graph

pytestmark = pytest.mark.skipif(library.load() is None, reason="the kernels are not built")
# batch, height, width, channels; kernel; stride; groups; filters. Depths are above and below a strip; rows do not fill a tile, nor
# filters a vector or panel. There are groups, images smaller than the kernel, strides above it, and no images.
CASES = [
    ((2, 7, 7, 16), 3, 1, 1, 16), ((1, 5, 6, 3), 3, 2, 1, 8), ((3, 9, 8, 20), 5, 2, 4, 12), ((2, 14, 14, 64), 1, 1, 1, 96),
    ((2, 13, 12, 32), 1, 2, 1, 32), ((1, 1, 1, 5), 3, 1, 1, 7), ((2, 8, 8, 300), 3, 1, 1, 260), ((2, 6, 6, 48), 3, 1, 3, 48),
    ((1, 4, 3, 2), 7, 3, 1, 2), ((1, 2, 2, 8), 3, 3, 2, 16), ((2, 30, 31, 4), 7, 2, 1, 24), ((70, 12, 12, 4), 3, 1, 1, 40),
    ((0, 8, 8, 16), 3, 1, 1, 16), ((3, 5, 5, 6), 2, 1, 6, 12),
]  # fmt: skip
TYPES = [("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32"), ("float16", "float32")]


def taps(
    shape: tuple[int, ...], kernel: int, stride: int
) -> tuple[np.ndarray, Iterator[tuple[int, int, tuple[slice, slice]]]]:
    """Return an empty padded image, its part that is the image, and for each tap the part of the padded image under it."""
    (height, width), before = shape[1:3], []
    for side in (height, width):
        out = -(-side // stride)
        before.append(max((out - 1) * stride + kernel - side, 0) // 2)
    rows, columns = (-(-side // stride) for side in (height, width))
    padded = np.zeros((shape[0], height + 2 * kernel + stride, width + 2 * kernel + stride, shape[3]))
    image = padded[:, before[0] : before[0] + height, before[1] : before[1] + width]

    def under(i: int, j: int) -> np.ndarray:
        return padded[:, i : i + rows * stride : stride, j : j + columns * stride : stride][:, :rows, :columns]

    return image, [(i, j, under(i, j)) for i in range(kernel) for j in range(kernel)]


def expected(x: np.ndarray, weights: np.ndarray, dy: np.ndarray, stride: int, groups: int) -> list[np.ndarray]:
    """Return y, dx and dw in float64."""
    x, weights, dy = (each.astype(np.float64) for each in (x, weights, dy))
    kernel, _, channels, filters = weights.shape
    y, dw = np.zeros(dy.shape), np.zeros(weights.shape)
    image, parts = taps(x.shape, kernel, stride)
    dx, gradient_parts = taps(x.shape, kernel, stride)
    image[:] = x
    for (i, j, part), (_, _, gradient) in zip(parts, gradient_parts):
        for g in range(groups):
            of_x, of_y = slice(g * channels, (g + 1) * channels), slice(g * filters // groups, (g + 1) * filters // groups)
            y[..., of_y] += part[..., of_x] @ weights[i, j, :, of_y]
            gradient[..., of_x] += dy[..., of_y] @ weights[i, j, :, of_y].T
            dw[i, j, :, of_y] = np.einsum("nhwc,nhwf->cf", part[..., of_x], dy[..., of_y])
    return [y, dx, dw]


@pytest.mark.parametrize("in_units", [False, True], ids=["vectors", "units"])
@pytest.mark.parametrize(("types"), TYPES, ids=" ".join)
@pytest.mark.parametrize(("shape", "kernel", "stride", "groups", "filters"), CASES)
def test_products_match_float64(shape, kernel, stride, groups, filters, types, in_units):
    kernels, draw = library.load(), np.random.default_rng(0)
    batch, height, width, channels = shape
    result = (batch, -(-height // stride), -(-width // stride), filters)
    x, dy = (draw.normal(size=s).astype(tf.as_dtype(t).as_numpy_dtype) for s, t in zip((shape, result), types))
    weights = draw.normal(size=(kernel, kernel, channels // groups, filters)).astype(np.float32)
    noise = draw.integers(0, 2**63, size=(batch, 1, 1, 1)).astype(np.uint64)
    sizes = {"stride": stride, "groups": groups, "in_units": in_units}
    of_input = {"dy": dy, "weights": weights, "rows": height, "columns": width, **sizes}
    with new_graph().as_default(), tf.Session() as session:
        y = kernels.emulator_convolution(x=x, weights=weights, noise=(), **sizes)
        dx = kernels.emulator_convolution_input_gradient(noise=(), **of_input)
        dw = kernels.emulator_convolution_weights_gradient(x=x, dy=dy, kernel=kernel, **sizes)
        exact = session.run([y, dx, dw])
        for found, wanted in zip(exact, expected(x, weights, dy, stride, groups)):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6 * np.abs(wanted).max(initial=1))
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
