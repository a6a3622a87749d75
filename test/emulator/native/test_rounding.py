"""The native kernel rounds to FP16 with the bits of the fallback, which also works without kernels."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cnn_harness.base.gradient_rules import gradients
from cnn_harness.emulator.layers import activations, batch_norm, group_norm
from cnn_harness.emulator.layers.rounding import Rounding
from cnn_harness.emulator.native import library
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.Models._norms import GroupNorm

needs_kernels = pytest.mark.skipif(not library.identity(), reason="the kernels are not built: there is no C++ compiler")


def samples() -> np.ndarray:
    """Return float32 [3, 2, ...]: all of FP16, midpoints, their FP32 neighbours, and random bits.

    A sample has more numbers than a thread takes at once, and no multiple of that.
    """
    grid = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    sizes = np.sort(grid[np.isfinite(grid)])
    middles = np.concatenate([(sizes[1:] + sizes[:-1]) / 2, np.float32([65520, -65520, 65519.996, 131008])])
    exact = np.concatenate([grid, middles])
    with np.errstate(invalid="ignore"):  # of signalling NaNs
        beside = [np.nextafter(exact, np.float32(towards)) for towards in (-np.inf, np.inf)]
    drawn = np.random.default_rng(1).integers(0, 1 << 32, 1 << 20, dtype=np.uint32).view(np.float32)
    numbers = np.concatenate([exact, *beside, drawn])
    return numbers[: len(numbers) // 6 * 6].reshape(3, 2, 1, -1)


def noise_of(batch: int) -> tf.Tensor:
    words = np.random.default_rng(2).integers(0, 1 << 63, batch, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return tf.constant(words.reshape(batch, 1, 1, 1))


def without_kernels(monkeypatch, function):
    with monkeypatch.context() as patch:
        patch.setenv(library.SWITCH, "off")
        return function()


def assert_bits(native: list[tf.Tensor], fallback: list[tf.Tensor], inputs: dict[tf.Tensor, np.ndarray]) -> None:
    with tf.Session() as session:
        found, expected = session.run([native, fallback], inputs)
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own.view(np.uint32), other.view(np.uint32))


@needs_kernels
@pytest.mark.parametrize("rounding", [Rounding(), Rounding(saturate=True), Rounding(trap=True)], ids=str)
def test_bits_match_fallback(rounding, monkeypatch):
    """To nearest, and stochastically with a number per sample or one for all and another salt; x has other readers."""
    numbers = samples()
    with new_graph().as_default():
        x = tf.placeholder(tf.float32, numbers.shape)

        def in_all_ways() -> list[tf.Tensor]:
            ways = [(), (noise_of(3),), (tf.constant(7, tf.uint64),)]
            return [rounding.rounded(each, noise, salt) for each in (x, -x) for noise in ways for salt in (0, 1)]

        native = in_all_ways()
        assert {y.op.type for y in native} == {"EmulatorRounding"}
        assert_bits(native, without_kernels(monkeypatch, in_all_ways), {x: numbers})


@needs_kernels
@pytest.mark.parametrize("activation", ["linear", "relu6", "swish"])
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("norm", ["group", "proxy", "batch"])
def test_norms_round_like_fallback(norm, activation, stochastic, monkeypatch):
    """Values and gradients are on FP16's grid. They equal the fallback's except for the few that the last bit of a sum rounds the
    other way.
    """
    random, shape, rounding = np.random.default_rng(3), (4, 14, 14, 24), Rounding()
    with new_graph().as_default() as graph:
        x, dy = (tf.placeholder(tf.float32, shape) for _ in range(2))
        rows = [tf.constant(random.normal(1, 0.5, shape[-1]), tf.float32) for _ in range(4)]
        noise = (noise_of(4),) if stochastic else ()

        def outcome() -> list[tf.Tensor]:
            if norm != "batch":
                proxy = {"proxy": tuple(rows[2:]), "scaled": True} if norm == "proxy" else {}
                y = group_norm.group_norm(x, *rows[:2], GroupNorm(groups=4), activation, rounding, noise, **proxy)
            elif library.identity():
                y = batch_norm.native_batch_norm(x, *rows[:2], 2, 1e-3, activation, rounding, noise).y
            else:
                linear = batch_norm.local_batch_norm(x, *rows[:2], 2, 1e-3).y
                y = activations.rounded_activation(linear, activation, rounding, noise)
            return [y, *gradients([y], [x, *rows[: 4 if norm == "proxy" else 2]], [dy])]

        native = outcome()
        fallback = without_kernels(monkeypatch, outcome)
        inputs = {x: random.normal(0, 2, shape).astype(np.float16), dy: random.normal(0, 0.01, shape)}
        with tf.Session(graph=graph) as session:
            (y, dx, *rest), (y_there, dx_there, *rest_there) = session.run([native, fallback], inputs)
    halves = (y, dx, y_there) if norm == "batch" else (y, dx, y_there, dx_there)
    assert all(np.array_equal(each.astype(np.float16), each) for each in halves)
    dx_there = dx_there.astype(np.float16) if not stochastic else dx_there  # a reader rounds it there
    for own, other in ((y, y_there), (dx, dx_there)):
        equal = own == other
        random_input = norm == "batch" and stochastic and own is dx  # the fallback leaves this rounding to a reader
        assert random_input or equal.mean() > 0.99, equal.mean()
        np.testing.assert_allclose(own, other, rtol=2.0**-8, atol=2.0**-8 * np.abs(other).mean())
    for own, other in zip(rest, rest_there, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-3, atol=1e-3 * np.abs(other).max())
