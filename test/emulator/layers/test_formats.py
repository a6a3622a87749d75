"""Number formats round like ml_dtypes, or like gfloat for formats that ml_dtypes lacks.

Checked for every value, every midpoint with its neighbours, and a million FP32 bit patterns, in the native kernel, XLA
and NumPy.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from gfloat import Domain, FormatInfo, RoundMode, decode_float, round_float
from networks import same_bits as same

from cnn_harness.emulator.layers.rounding import Rounding, range_factor
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan import number_formats
from cnn_harness.emulator.plan.number_formats import BF16, E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ, FP16, FP32, Format, FormatError
from cnn_harness.emulator.program.runtime import new_graph, session_config

CASTS = {
    "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz, "e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    "e3m4": ml_dtypes.float8_e3m4, "e4m3": ml_dtypes.float8_e4m3, "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e2m1fn": ml_dtypes.float4_e2m1fn, "e2m3fn": ml_dtypes.float6_e2m3fn, "e3m2fn": ml_dtypes.float6_e3m2fn,
}  # fmt: skip
OTHERS = ("e4m3b10fnuz", "e5m2b13fnuz", "e5m3", "e6m9", "e5m10b12", "e5m22", "e2m5", "e4m4b9fn", "e8m3", "e7m8b60")


def codes_of(number_format: Format) -> np.ndarray:
    """Return every finite number of a format in float64, by definition; above 16 bits a sample with neighbours."""
    bits, codes = number_format.fraction_bits, np.arange(2 ** min(number_format.bits - 1, 15))
    if number_format.bits > 16:
        codes = np.random.default_rng(5).integers(0, 2 ** (number_format.bits - 1) - 1, 20_000)
        codes = np.unique([*range(1000), *codes, *codes + 1])
    exponent, fraction = np.divmod(codes, 2**bits)
    normal = exponent > 0
    scale = np.exp2(np.where(normal, exponent, 1) - float(number_format.bias))
    values = scale * (normal + fraction / 2**bits)
    return values[values <= number_format.largest]


def patterns(number_format: Format) -> np.ndarray:
    """Return the format's numbers, midpoints and their neighbours in FP32, and a million FP32 bit patterns."""
    values = codes_of(number_format)
    middle = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    edge = np.float32([number_format.largest, min(number_format.overflow, 3.4e38), 0, np.inf, np.nan])
    sizes = np.concatenate([values.astype(np.float32), middle, edge])
    near = [f(sizes, np.float32(to)) for f, to in ((np.nextafter, 0), (np.nextafter, np.inf))]
    anything = np.random.default_rng(1).integers(0, 1 << 32, 1_000_000, np.uint32).view(np.float32)
    usual = np.random.default_rng(2).normal(size=100_000).astype(np.float32) * np.float32(number_format.largest / 8)
    positive = np.concatenate([sizes, *near])
    return np.concatenate([positive, -positive, anything, usual])


def rounded(values: np.ndarray, rounding: Rounding, seed: int | None = None) -> np.ndarray:
    with new_graph().as_default(), tf.Session(config=session_config()) as session:
        noise = () if seed is None else (tf.constant(seed, tf.uint64),)
        x = tf.placeholder(tf.float32, values.shape)
        return session.run(rounding.without_gradient(x, noise), {x: values})


def cast(name: str, values: np.ndarray) -> np.ndarray:
    """Cast with ml_dtypes or NumPy. FP16 overflow becomes NaN, as on the IPU; NaN stays NaN even in formats without one."""
    with np.errstate(all="ignore"):
        found = values.astype(CASTS[name]).astype(np.float32)
    if name == "fp16":
        found = np.where(np.isinf(found), np.float32(np.nan), found)
    return found if number_formats.by_name(name).has_nan else np.where(np.isnan(values), values, found)


@pytest.fixture(params=("kernels", "xla"))
def way(request, monkeypatch):
    if request.param == "xla":
        monkeypatch.setenv(library.SWITCH, "0")
    elif not library.identity():
        pytest.skip("the kernels are not built")
    return request.param


@pytest.mark.parametrize("name", CASTS)
def test_every_format_matches_ml_dtypes(name, way):
    number_format = number_formats.by_name(name)
    values = patterns(number_format)
    expected = cast(name, values)
    assert same(rounded(values, Rounding(format=number_format)), expected)
    if way == "xla":
        assert same(number_format.rounded(values), expected)


@pytest.mark.parametrize("name", OTHERS)
def test_other_formats_match_gfloat(name, way):
    number_format = number_formats.by_name(name)
    of_gfloat = FormatInfo(
        name, number_format.bits, number_format.fraction_bits + 1, bias=number_format.bias, is_signed=True,
        has_nz=number_format.specials != number_formats.UNSIGNED_ZERO,
        domain=Domain.Extended if number_format.specials == number_formats.IEEE else Domain.Finite,
        num_high_nans=0 if number_format.specials == number_formats.UNSIGNED_ZERO else
        (2**number_format.fraction_bits - 1 if number_format.specials == number_formats.IEEE else 1),
        has_subnormals=True, is_twos_complement=False,
    )  # fmt: skip
    top = 2 ** (number_format.bits - 1) - 1
    decoded = [decode_float(of_gfloat, code).fval for code in range(0, top + 1, max(1, top // 3000))]
    finite = {value for value in decoded if math.isfinite(value)}
    assert number_format.largest == of_gfloat.max
    if number_format.bits <= 16:  # longer formats have too many values
        assert finite <= {*codes_of(number_format)} and max(codes_of(number_format)) == number_format.largest
    assert same(number_format.rounded(np.array([*finite], np.float32)), np.array([*finite], np.float32))
    values = np.random.default_rng(3).choice(patterns(number_format), 4000)
    values = values[np.isfinite(values)]
    expected = [round_float(of_gfloat, float(x), RoundMode.TiesToEven) for x in values]
    expected = np.where(np.isinf(expected), np.copysign(number_format.beyond, values), expected).astype(np.float32)
    assert same(rounded(values, Rounding(format=number_format)), expected)
    assert same(number_format.rounded(values), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fnuz", "e5m2", "e2m5"])
def test_stochastic_rounding_keeps_mean(name, way):
    number_format, draw = number_formats.by_name(name), np.random.default_rng(4)
    steps = codes_of(number_format)
    steps = steps[(steps >= 2.0**-100) & (steps < 2.0**100)]
    start = draw.integers(0, len(steps) - 1, 50)
    for below, above in zip(steps[start], steps[start + 1]):
        share = draw.uniform()
        x = np.full(20_000, below + share * (above - below), np.float32)
        share = (float(x[0]) - below) / (above - below)  # in FP32
        found = rounded(-x, Rounding(format=number_format), 5)
        assert {*found} <= {-np.float32(below), -np.float32(above)}
        assert abs(np.mean(found == -np.float32(above)) - share) < 5 * math.sqrt(0.25 / x.size)
    exact = np.concatenate([steps, -steps]).astype(np.float32)
    assert same(rounded(exact, Rounding(format=number_format), 6), exact)


def test_kernels_and_xla_draw_same(monkeypatch):
    """The values include subnormal FP32 numbers and numbers that overflow."""
    if not library.identity():
        pytest.skip("the kernels are not built")
    for name, saturate in (("bf16", False), ("bf16", True), ("e4m3fnuz", False), ("e5m2", True), ("e6m9", False)):
        number_format = number_formats.by_name(name)
        values = np.concatenate([patterns(number_format)[:300_000], np.float32([3e38, np.inf, -np.inf, np.nan])])
        rounding = Rounding(saturate=saturate, format=number_format)
        by_kernels = rounded(values, rounding, 7)
        monkeypatch.setenv(library.SWITCH, "0")
        assert same(rounded(values, rounding, 7), by_kernels)
        monkeypatch.delenv(library.SWITCH)


def test_rounding_keeps_numbers_below_fp32_normals():
    """Sums and products may take them as 0, which docs/number-formats.md says; it depends on the thread that computes."""
    small = np.full((4, 4), 1e-39, np.float32)
    assert (rounded(small, Rounding(format=BF16)) > 0).all()


def test_overflow_depends_on_format():
    values = np.float32([1e30, -1e30, np.inf])
    for number_format, beyond in ((E4M3FN, np.nan), (E5M2, np.inf), (E5M2FNUZ, np.nan), (FP16, np.nan)):
        assert same(rounded(values, Rounding(format=number_format)), np.float32([beyond, -beyond, beyond]))
        largest = np.float32(number_format.largest)
        assert same(rounded(values, Rounding(saturate=True, format=number_format)), np.float32([largest, -largest, largest]))


@pytest.mark.parametrize("name", ["e4m3fnuz", "e5m2fnuz", "e4m3fn", "e5m2", "e2m1fn", "e3m4", "bf16", "e4m3b11fnuz"])
def test_adaptive_format_has_room_for_doubling(name):
    """Fractions on either side of that of the format's maximum, for all exponents whose factor is an FP32 number."""
    number_format = number_formats.by_name(name)
    top = math.frexp(number_format.largest)[0] * 2
    fractions = np.unique(np.float32([1, 1.25, np.nextafter(np.float32(top), 0), top, 1.8, 1.9, 1.99, np.nextafter(2, 1)]))
    sizes = np.outer(np.exp2(np.arange(number_format.top_exponent - 126, 40)), fractions).ravel().astype(np.float32)
    odd = np.float32([0, 1e-40, np.inf, np.nan])
    with new_graph().as_default(), tf.Session(config=session_config()) as session:
        factors = np.float64(session.run(range_factor(tf.constant(np.concatenate([sizes, odd])), number_format)))
    assert (factors[-len(odd) :] == 1).all() and (np.frexp(factors)[0] == 0.5).all()
    moved = factors[: -len(odd)] * sizes
    assert np.isfinite(number_format.rounded(2 * moved)).all() and (2 * moved <= number_format.largest).all()
    kept = np.float32(sizes) > number_format.largest * 2.0**-126  # FP32 limits the shift of smaller ones
    assert (4 * moved > number_format.largest)[kept].all()


def test_format_names_are_parsed_or_rejected():
    assert [number_formats.by_name(name) for name in ("FP16", "half", "e5m10", "float16")] == [FP16] * 4
    others = ("bfloat16", "e8m7", "float8_e4m3fnuz")
    assert [number_formats.by_name(name) for name in others] == [BF16, BF16, E4M3FNUZ]
    assert number_formats.by_name("e4m3fnuz").with_bias(10).name == "e4m3b10fnuz" and E4M3FNUZ.with_bias(8) is E4M3FNUZ
    assert E4M3FNUZ.with_bias(9).largest == E4M3FNUZ.largest / 2
    assert [FP16.contains(each) for each in (E4M3FNUZ, E5M2, E5M2FNUZ, BF16, FP32)] == [True, True, True, False, False]
    for name, words in {
        "fp8": "is not", "e0m3": "no exponent bits", "e4m0": "no fraction bits", "e9m3": "9 exponent bits",
        "e4m3b400": "biases -90 to 124", "e8m3b100": "bias 127", "": "is not", "e4m3fn ": "is not",
        "e4m3b": "is not", "e+4m3": "is not",
    }.items():  # fmt: skip
        with pytest.raises(FormatError, match=words):
            number_formats.by_name(name)
    with pytest.raises(FormatError, match="with bias 999 has numbers from"):
        E5M2.with_bias(999)
