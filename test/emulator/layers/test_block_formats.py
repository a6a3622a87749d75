"""Block formats round as OCP's and NVIDIA's definitions say, checked with the element and scale formats of ml_dtypes and with
the blocks of gfloat. Products round each operand along the dimension that they sum."""

from __future__ import annotations

import math

import gfloat
import ml_dtypes
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from gfloat import formats as of_gfloat
from networks import built, evaluated, random

from cnn_harness.base.gradient_rules import gradients
from cnn_harness.emulator.layers.block_formats import Along, BlockRounding, rotated
from cnn_harness.emulator.plan import number_formats
from cnn_harness.emulator.plan.number_formats import BLOCKS, E4M3FN, FP16, FP32, FormatError
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.emulator.plan.precision import ALL, OFF, Operands, Precision, by_name

ELEMENTS = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn, "mxfp8_e5m2": ml_dtypes.float8_e5m2, "mxfp6_e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp6_e2m3": ml_dtypes.float6_e2m3fn, "mxfp4": ml_dtypes.float4_e2m1fn, "nvfp4": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
MX = [name for name in BLOCKS if name != "nvfp4"]
LEAST = np.float32(2.0**-126)  # smaller numbers are subnormal in FP32.
ROW = Along(-1)


def rounded(values: np.ndarray, name: str, along: Along = ROW, seed: int | None = None) -> np.ndarray:
    def build(x):
        noise = () if seed is None else (tf.constant(seed, tf.uint64),)
        return BlockRounding(BLOCKS[name]).rounded(x, along, noise)

    return evaluated(build, {"x": np.asarray(values, np.float32)})


def elements(name: str, values: np.ndarray) -> np.ndarray:
    """Cast with ml_dtypes. Overflow gives the largest number."""
    largest = float(ml_dtypes.finfo(ELEMENTS[name]).max)
    return np.clip(values, -largest, largest).astype(ELEMENTS[name]).astype(np.float32)


def codes(name: str) -> np.ndarray:
    """Return all finite numbers of the element format in order, with -0 and 0."""
    kind = ELEMENTS[name]
    found = np.arange(2 ** ml_dtypes.finfo(kind).bits, dtype=np.uint8).view(kind).astype(np.float64)
    found = found[np.isfinite(found)]
    return found[np.lexsort((~np.signbit(found), found))]


def reference(name: str, x: np.ndarray, tensor: np.ndarray | None = None) -> np.ndarray:
    """Return x with each row rounded as one block: by OCP's rule in float64, or NVIDIA's in FP32. `tensor` has the numbers
    of the tensor; the default is x."""
    x = np.where(np.abs(x) < LEAST, np.copysign(np.float32(0), x), np.float32(x))
    largest = np.abs(x).max(-1, keepdims=True)
    if name in MX:
        top = math.floor(math.log2(float(ml_dtypes.finfo(ELEMENTS[name]).max)))
        exponent = np.clip(np.floor(np.log2(np.maximum(largest, LEAST, dtype=np.float64))) - top, -127, 127)
        return np.float32(elements(name, x / np.exp2(exponent)) * np.exp2(exponent))
    with np.errstate(all="ignore"):
        encode = np.minimum(np.float32(6 * 448) / np.abs(x if tensor is None else tensor).max(), np.float32(2.0**116))
        decode = 1 / encode
        scale = np.minimum(largest / np.float32(6) * encode, np.float32(448))
        scale = scale.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        factor = np.where(scale > 0, 1 / (scale * decode), np.float32(0))
    return elements(name, x * factor) * scale * decode


def in_blocks(name: str, x: np.ndarray, axis: int, parts: int = 1, tensors: int = 1) -> np.ndarray:
    """Return x rounded in blocks along an axis, by `reference`, in a loop over the blocks."""
    size, found = BLOCKS[name].size, np.empty(x.shape, np.float32)
    for tensor, result in zip(np.split(x, tensors), np.split(found, tensors)):
        inside = 1 if axis == 0 else parts  # micro-batches are the tensors.
        for part, place in zip(np.split(tensor, inside, axis), np.split(result, inside, axis)):
            rows, out = np.moveaxis(part, axis, -1), np.moveaxis(place, axis, -1)
            for first in range(0, rows.shape[-1], size):
                out[..., first : first + size] = reference(name, rows[..., first : first + size], tensor)
    return found


def of_gfloat_named(name: str) -> gfloat.BlockFormatInfo:
    return getattr(of_gfloat, f"format_info_{name}{'_e2m1' if name == 'mxfp4' else ''}")


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether values are bitwise equal, including signs of zeros; any NaN equals any other."""
    one, other = np.ascontiguousarray(one, np.float32), np.ascontiguousarray(other, np.float32)
    return bool(np.all((np.isnan(one) & np.isnan(other)) | (one.view(np.uint32) == other.view(np.uint32))))


# --- blocks ---


def test_table_is_that_of_specifications():
    for name in MX:
        own, other = BLOCKS[name], of_gfloat_named(name)
        assert (own.size, own.scale, own.tensor_scale) == (other.k, None, False) and other.stype.name == "ocp_e8m0"
        assert (own.element.largest, own.element.smallest) == (other.etype.max, other.etype.smallest)
        assert own.element.bits == other.etype.k
    assert BLOCKS["nvfp4"][2:] == (16, E4M3FN, True) and BLOCKS["nvfp4"].element == BLOCKS["mxfp4"].element


@pytest.mark.parametrize("name", MX)
def test_every_number_with_every_scale_stays(name):
    """All elements with all scales that a block of FP32 numbers can have, if the number is normal in FP32."""
    own, size = codes(name), BLOCKS[name].size
    own = np.append(own, np.full(-len(own) % (size - 1), own[-1])).reshape(-1, size - 1)
    blocks = np.concatenate([np.full((len(own), 1), own.max()), own], 1)  # the first number determines the scale.
    scales = np.exp2(np.arange(-127, 128 - math.floor(math.log2(own.max())), dtype=np.float64))
    numbers = (blocks * scales[:, None, None]).reshape(-1, size)
    numbers = np.where(np.abs(numbers) < LEAST, np.copysign(0, numbers), numbers)
    assert same(rounded(numbers, name), numbers)


def test_every_scale_of_nvfp4_is_used():
    """All elements with all scales of E4M3. The largest number of the tensor makes the tensor scale 1."""
    scales = np.arange(1, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    numbers = codes("nvfp4") * scales[:, None]
    assert numbers.shape[1] == BLOCKS["nvfp4"].size and numbers.max() == 6 * 448
    assert same(rounded(numbers, "nvfp4"), numbers)
    assert same(rounded(numbers * 2.0**-90, "nvfp4"), numbers * 2.0**-90)


@pytest.mark.parametrize("name", BLOCKS)
def test_rounding_matches_reference(name):
    """Midpoints of all elements with their neighbours, and blocks of every exponent and of narrow and wide spread."""
    draw, size = np.random.default_rng(1), BLOCKS[name].size
    own = np.unique(np.abs(codes(name)))
    middle = np.float32((own[1:] + own[:-1]) / 2)
    near = np.concatenate([np.nextafter(middle, np.float32(to)) for to in (0, np.inf)] + [middle, -middle])
    near = np.resize(near, (-(-len(near) // (size - 1)), size - 1))
    blocks = [np.concatenate([np.full((len(near), 1), own[-1], np.float32), near], 1)]
    for spread in (0, 3, 20):
        x = draw.normal(size=(4000, size)) * np.exp2(draw.integers(-spread, spread + 1, (4000, size)))
        blocks.append(x * np.exp2(draw.integers(-100, 100, (4000, 1))))
    for each in blocks:
        assert same(rounded(each, name), reference(name, np.float32(each)))
    exponents = np.exp2(np.arange(-130.0, 128.0))
    tensors = np.float32(draw.uniform(-1, 1, (len(exponents), 200, size)) * exponents[:, None, None])
    found = rounded(tensors.reshape(-1, size), name, Along(-1, 1, len(exponents)))
    assert same(found, np.concatenate([reference(name, each) for each in tensors]))


@pytest.mark.parametrize("name", MX)
def test_rounding_matches_gfloat(name):
    of_blocks = of_gfloat_named(name)
    x = random(2, 40, 32) * np.exp2(np.arange(-20, 20, dtype=np.float32))[:, None]
    expected = [gfloat.quantize_block(of_blocks, each, gfloat.compute_scale_amax) for each in np.float64(x)]
    assert same(rounded(x, name), np.float32(expected))


@pytest.mark.parametrize("name", BLOCKS)
def test_special_numbers(name):
    size, largest = BLOCKS[name].size, np.finfo(np.float32).max
    x = np.zeros((8, size), np.float32)
    x[0, 0], x[1, 0], x[2, 0] = np.inf, -np.inf, np.nan
    x[3, :4] = 1, -0.0, 1e-39, -1e-39
    x[4, :3] = 1e-39, -1e-39, 1e-45
    x[5], x[6, :2] = -0.0, (LEAST, -LEAST)
    finite = rounded(x[3:], name)
    assert np.signbit(finite[0, :4]).tolist() == [False, True, False, True] and finite[0, 0] > 0
    assert not finite[0, 1:].any() and not finite[1:3].any() and np.signbit(finite[2]).all()
    if name in MX:
        assert same(finite[3, :2], x[6, :2])
        found = rounded(x, name)
        assert np.isnan(found[:3]).all() and same(found[3:], finite)  # the scales of the first blocks are NaN.
    else:
        assert np.isnan(rounded(x, name)).all()  # the tensor's scale is NaN.
    top = rounded(np.array([[largest, -largest, LEAST] + [0.0] * (size - 3)]), name)
    assert np.isfinite(top).all() and 0.75 * largest <= top[0, 0] == -top[0, 1] and top[0, 2] == 0


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_run_along_axis(name):
    """Also with a remainder shorter than a block, in parts of the axis, and in parts of the batch."""
    x = random(3, 4, 3, 70, 10) * np.exp2(np.random.default_rng(4).integers(-9, 9, (4, 3, 70, 10)).astype(np.float32))
    for axis, parts, tensors in ((-1, 1, 1), (-1, 5, 2), (2, 1, 1), (2, 2, 4), (0, 2, 2), (1, 1, 1)):
        along = Along(axis, parts, tensors)
        assert same(rounded(x, name, along), in_blocks(name, x, axis % 4, parts, tensors)), along
    batch = random(5, 74, 3)
    assert same(rounded(batch, name, Along(0, 2, 2)), in_blocks(name, batch, 0, 2, 2))


@pytest.mark.parametrize("name", BLOCKS)
def test_stochastic_rounding_keeps_mean(name):
    """Each number becomes one of its two neighbours. Numbers of the format stay."""
    size, count = BLOCKS[name].size, 20_000
    own = np.unique(np.abs(codes(name)))[1:]
    draw = np.random.default_rng(6)
    start = draw.integers(0, len(own) - 1, size - 1)
    share = draw.uniform(size=size - 1).astype(np.float32)
    numbers = np.float32(own[start] + share * (own[start + 1] - own[start]))
    x = np.append(np.float32(own[-1]), -numbers) * np.float32(2.0**-5)
    found = rounded(np.tile(x, (count, 1)), name, seed=7) * 2.0**5
    exact = rounded(np.tile(np.append(own[-1], -own[start]), (50, 1)), name, seed=8)
    np.testing.assert_allclose(exact[:, 1:], np.tile(-own[start], (50, 1)), rtol=1e-6)
    assert (found[:, 0] == found[0, 0]).all()
    for column, below, above, number in zip(found[:, 1:].T, own[start], own[start + 1], numbers):
        up = np.isclose(-column, above, rtol=1e-6)
        assert (up | np.isclose(-column, below, rtol=1e-6)).all()
        expected = (float(number) - below) / (above - below)
        assert abs(up.mean() - expected) < 5 * math.sqrt(0.25 / count)


# --- products ---


PRODUCTS = {
    "pointwise": (6, 40, 24, 1, 1, 1),
    "window": (8, 48, 20, 3, 1, 1),
    "stride": (7, 36, 24, 3, 2, 1),
    "groups": (6, 48, 96, 3, 1, 2),
    "small groups": (6, 16, 16, 3, 1, 4),
    "depthwise": (6, 12, 12, 3, 2, 12),
}
PARTS, BATCH = 2, 34


def operands(side, channels, filters, kernel, stride, groups):
    x, weights = random(1, PARTS * BATCH, side, side, channels), random(2, kernel, kernel, channels // groups, filters)
    out = -(-side // stride)
    return x, weights, random(3, PARTS * BATCH, out, out, filters)


def conv(precision, x, weights, dy, kernel, stride, groups, **context):
    """Return a convolution and the gradients of x and the weights."""

    def build(x, weights, dy):
        make = lambda layers, x: layers.conv(x, weights.shape[-1], kernel, None, stride=stride, groups=groups)
        y, _ = built(make, {"conv/conv2d/kernel": weights}, x, precision=precision, **context)
        return y, *gradients(y, [x, weights], dy)

    return evaluated(build, {"x": x, "weights": weights, "dy": dy})


def in_format(number_format, **more):
    return by_name("32.32", operands=Operands.all_in(number_format), stochastic=OFF, **more)


@pytest.mark.parametrize(
    ("product", "name"), [*((each, "mxfp4") for each in PRODUCTS), ("window", "nvfp4"), ("groups", "nvfp4")]
)
def test_products_round_along_summed_dimension(product, name):
    """Each product equals that of FP32 with the operands that the reference rounded."""
    _, _, _, kernel, stride, groups = PRODUCTS[product]
    x, weights, dy = operands(*PRODUCTS[product])
    found = conv(in_format(BLOCKS[name]), x, weights, dy, kernel, stride, groups, norm_parts=PARTS)
    single, place = in_format(FP32), (kernel, stride, groups)
    along_channels = in_blocks(name, x, 3, groups, PARTS), in_blocks(name, dy, 3, groups, PARTS)
    along_images = in_blocks(name, x, 0, PARTS, PARTS), in_blocks(name, dy, 0, PARTS, PARTS)
    y, _, _ = conv(single, along_channels[0], in_blocks(name, weights, 2), dy, *place)
    _, dx, _ = conv(single, x, in_blocks(name, weights, 3, groups), along_channels[1], *place)
    _, _, dw = conv(single, along_images[0], weights, along_images[1], *place)
    for own, expected in zip(found, (y, dx, dw)):
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    exact = conv(single, x, weights, dy, *place)
    assert all(np.abs(own - other).max() > 1e-3 * np.abs(other).max() for own, other in zip(found, exact))


def test_dense_layer_rounds_along_summed_dimension():
    x, weights, dy = random(1, 34, 45), random(2, 45, 20), random(3, 34, 20)

    def build(x, weights, dy):
        named = {"dense/kernel": weights, "dense/bias": tf.zeros([20])}
        y, _ = built(lambda layers, x: layers.dense(x, 20), named, x, precision=in_format(BLOCKS["mxfp4"]))
        return y, *gradients(y, [x, weights], dy)

    y, dx, dw = evaluated(build, {"x": x, "weights": weights, "dy": dy})
    of = lambda x, axis: np.float64(in_blocks("mxfp4", x, axis))
    np.testing.assert_allclose(y, of(x, 1) @ of(weights, 0), rtol=0, atol=1e-4)
    np.testing.assert_allclose(dx, of(dy, 1) @ of(weights, 1).T, rtol=0, atol=1e-4)
    np.testing.assert_allclose(dw, of(x, 0).T @ of(dy, 0), rtol=0, atol=1e-4)


def test_single_operands_have_block_formats():
    """Other operands are rounded to their own formats once."""
    own = BLOCKS["mxfp6_e2m3"]
    x, weights, dy = operands(*PRODUCTS["window"])
    found = conv(by_name("32.32", operands=Operands(own, E4M3FN, FP32), stochastic=OFF), x, weights, dy, 3, 1, 1)
    narrow, single = E4M3FN.rounded(x), in_format(FP32)
    y, _, dw = conv(single, narrow, in_blocks(own.name, weights, 2), dy, 3, 1, 1)
    _, dx, _ = conv(single, narrow, in_blocks(own.name, weights, 3), dy, 3, 1, 1)
    for each, expected in zip(found, (y, dx, dw)):
        np.testing.assert_allclose(each, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("stochastic", [OFF, ALL])
def test_micro_batches_of_one_pass_are_separate(stochastic):
    """A pass over two micro-batches gives the bits of two passes; the gradients of weights are sums."""
    precision = by_name("16.16", operands=Operands.all_in(BLOCKS["nvfp4"]), stochastic=stochastic, hadamard=True)
    x, weights, dy = operands(*PRODUCTS["window"])
    x, dy = np.float32(np.float16(x)), np.float32(np.float16(dy))
    positions = np.arange(len(x))

    def called(rows, parts):
        def build(x, weights, dy):
            make = lambda layers, x: layers.conv(x, 20, 3, None)
            context = {"norm_parts": parts, "positions": tf.constant(positions[rows]), "seed": 9}
            y, _ = built(make, {"conv/conv2d/kernel": weights}, x, precision=precision, **context)
            return y, *gradients(y, [x, weights], dy)

        return evaluated(build, {"x": x[rows], "weights": weights, "dy": dy[rows]})

    whole, *halves = called(slice(None), 2), called(slice(0, BATCH), 1), called(slice(BATCH, None), 1)
    assert same(whole[0], np.concatenate([half[0] for half in halves]))
    assert same(whole[1], np.concatenate([half[1] for half in halves]))
    np.testing.assert_allclose(whole[2], sum(half[2] for half in halves), rtol=0, atol=1e-5 * np.abs(whole[2]).max())


# --- the Hadamard transform ---


def matrix(size: int) -> np.ndarray:
    """Return Sylvester's matrix, divided by the root of its size."""
    found = np.ones((1, 1))
    while len(found) < size:
        found = np.block([[found, found], [found, -found]])
    return found / math.sqrt(size)


@pytest.mark.parametrize(("batch", "parts", "size"), [(64, 2, 16), (24, 1, 8), (24, 2, 4), (6, 2, 1), (16, 1, 16)])
def test_images_are_rotated_in_groups(batch, parts, size):
    word = 0b1011_0010_0111_0001
    x, other = random(1, batch, 2, 3), random(2, batch, 2, 3)
    signs = 1 - 2 * (word >> np.arange(size) & 1) if size > 1 else np.ones(1)
    expected = np.einsum("ij,gjrc->girc", matrix(size) * signs, np.float64(x).reshape(-1, size, 2, 3)).reshape(x.shape)
    found, moved = evaluated(
        lambda **each: [rotated(value, parts, tf.constant(word, tf.uint64)) for value in each.values()],
        {"x": x, "other": other},
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose((found * moved).sum(0), (x * other).sum(0), rtol=0, atol=1e-5)


def test_rotation_changes_only_gradients_of_weights():
    """An outlier of one image takes less precision from the others."""
    x, weights, dy = operands(*PRODUCTS["pointwise"])
    x[3] *= 100
    plain, turned, exact = (
        conv(precision, x, weights, dy, 1, 1, 1)
        for precision in (in_format(BLOCKS["mxfp4"]), in_format(BLOCKS["mxfp4"], hadamard=True), in_format(FP32))
    )
    assert same(plain[0], turned[0]) and same(plain[1], turned[1]) and not same(plain[2], turned[2])
    assert np.abs(turned[2] - exact[2]).mean() < np.abs(plain[2] - exact[2]).mean()


# --- names ---


def test_block_formats_are_named_for_operands_alone():
    assert number_formats.operand_by_name("NVFP4") is BLOCKS["nvfp4"] and number_formats.operand_by_name("half") is FP16
    with pytest.raises(FormatError, match="block format"):
        number_formats.by_name("mxfp4")
    with pytest.raises(FormatError, match="nvfp4 or a name made of bits"):
        number_formats.operand_by_name("mxfp5")
    with pytest.raises(FormatError, match="--weight-bias 3: mxfp4 has no bias"):
        Precision.of(DeviceOptions(weight_format="mxfp4", weight_bias=3))
    precision = Precision.of(
        DeviceOptions(precision="16.16", format_for=("b=nvfp4",), format_scaling="maximum"), kernels="ab"
    )
    assert precision.operands_of("b") == Operands.all_in(BLOCKS["nvfp4"]) and precision.operands_of("a").weight == FP16
    assert not precision.scaled_kernels and precision.rounds_operands and precision.gradients_of("b") == (FP16,)
