"""Half precision, emulated: FP32 tensors whose values lie on FP16's grid. Whatever an operation does inside, it does in
FP32, and rounds once.

With 24 bits of FP32 for the 11 of FP16 that is FP16's own result for sums, products, quotients and roots of FP16 numbers. A
result larger than 65504 after rounding becomes NaN, as the IPU has it, or 65504 where overflow is to saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow.compat.v1 as tf

from base import draws
from base.tracing import Kernel, compiled
from emulator.layers.gradient_rules import by_rule
from emulator.native import library
from emulator.plan.precision import FP16

SMALLEST_EXPONENT = 127 - 14  # of FP16's normal numbers, as FP32 keeps it; below, the grid is as fine as there
BEYOND_EXPONENT = 127 + 16  # of numbers that are too large for FP16
FRACTION, SIGN, EXPONENT = 23, -0x80000000, 0x7F800000  # of FP32's bits
DROPPED = 13  # bits of the fraction that FP16 lacks
Asked = Callable[[], bool]


def always() -> bool:
    """Return True: a gradient is rounded where nothing is known of it."""
    return True


@dataclass(frozen=True)
class Rounding:
    """The rounding of FP32 results onto FP16's grid: to the nearest, ties to even, or at random so that the mean stays.

    tf.abs, tf.sign, tf.floor and their like are avoided: XLA, which compiles this for every shape, takes 14 ms longer for
    each of them, as each becomes a kernel of its own by way of MLIR.
    """

    stochastic: bool = False
    saturate: bool = False
    trap: bool = False  # overflow gives infinity, so that whoever checks can tell it from other NaNs

    def __call__(self, x: tf.Tensor, noise: tuple[tf.Tensor, ...] = (), salt: int = 0) -> tf.Tensor:
        """x on the grid. `noise`: uint64 [batch, 1, ...] or [], of which the random numbers are a function, with `salt` and
        the element's place; without it ties to even."""
        if x.dtype != tf.float32:
            raise TypeError(f"half precision is emulated in FP32, not in {x.dtype.name}")
        bits = tf.bitcast(x, tf.int32)
        size = tf.bitcast(tf.bitwise.bitwise_and(bits, ~SIGN), tf.float32)
        exponent = tf.maximum(tf.bitwise.bitwise_and(bits, EXPONENT), SMALLEST_EXPONENT << FRACTION)
        exponent = tf.minimum(exponent, BEYOND_EXPONENT << FRACTION)  # or steps and shifters would overflow themselves
        y = self._at_random(size, exponent, noise[0], salt) if noise else _to_nearest(size, exponent)
        y = tf.where_v2(y > FP16.largest, self.beyond, y)
        return tf.bitcast(tf.bitwise.bitwise_or(tf.bitcast(y, tf.int32), tf.bitwise.bitwise_and(bits, SIGN)), tf.float32)

    @property
    def beyond(self) -> float:
        """The size that a larger one than FP16's largest becomes."""
        return float("inf") if self.trap else FP16.largest if self.saturate else float("nan")

    @staticmethod
    def _at_random(size: tf.Tensor, exponent: tf.Tensor, noise: tf.Tensor, salt: int) -> tf.Tensor:
        """A neighbour of a size on the grid, the upper one as often as the size is near to it."""
        step = tf.bitcast(exponent - ((FRACTION - DROPPED) << FRACTION), tf.float32)
        steps = size / step  # exact: a power of two
        below = tf.math.floordiv(size, step)
        # a sample's elements are counted from 0, so that a micro-batch may be any part of a batch
        own = size.shape[1:] if noise.shape.rank else size.shape
        place = tf.reshape(tf.range(own.num_elements(), dtype=tf.int32), [*([1] if noise.shape.rank else []), *own])
        up = draws.uniform_of_words(draws.bits(salt, noise), place) < steps - below
        return (below + tf.cast(up, tf.float32)) * step


def _to_nearest(x: tf.Tensor, exponent: tf.Tensor) -> tf.Tensor:
    """FP32's own rounding, at a number so large that its last place is FP16's: 1.5 x 2^(exponent + 13)."""
    shifter = tf.bitcast(exponent + ((DROPPED << FRACTION) | (1 << (FRACTION - 1))), tf.float32)
    return (x + shifter) - shifter


FORWARD, BACKWARD = 0, 1  # salts


@cache
def _compiled(rounding: Rounding, salt: int) -> Kernel:
    return compiled(lambda x, *noise: rounding(x, noise, salt))


def rounded(x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = (), salt: int = FORWARD) -> tf.Tensor:
    """x on the grid, as `rounding` itself gives it, in one pass: by the native kernel, or compiled by XLA."""
    kernels = library.load_for(x)
    if kernels is None:
        return _compiled(rounding, salt)(x, *noise)
    return kernels.emulator_rounding(x=x, noise=noise, salt=salt, beyond=rounding.beyond)


def for_kernels(rounding: Rounding | None, noise: tuple[tf.Tensor, ...] = ()) -> dict[str, Any]:
    """The arguments of a native kernel's operation that say how it rounds its results; the noise is [batch, 1, ...]."""
    if rounding is None:
        return {"rounding": "none", "noise": ()}
    return {"rounding": "random" if noise else "nearest", "noise": noise, "beyond": rounding.beyond}


def value_and_gradient_rounded(
    x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = (), needs_rounding: Asked = always
) -> tf.Tensor:
    """x on FP16's grid; so is the gradient that is handed on, unless `needs_rounding`, asked in the backward pass, says that
    the incoming gradient is on that grid already."""
    kind = "PartitionedCall" if library.load_for(x) is None else "EmulatorRounding"

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        return rounded(dy, rounding, noise, BACKWARD) if needs_rounding() else dy

    return by_rule(kind, lambda x: rounded(x, rounding, noise), x, rule=gradient)


def gradient_rounded(
    x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = (), needs_rounding: Asked = always
) -> tf.Tensor:
    """x as it is; the gradient that is handed on is on FP16's grid, as `value_and_gradient_rounded` has it."""

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        return rounded(dy, rounding, noise, BACKWARD) if needs_rounding() else dy

    return by_rule("Identity", tf.identity, x, rule=gradient)


def pixel_mean(x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()) -> tf.Tensor:
    """The mean over the pixels in FP32, [batch, 1, 1, channels]; every pixel is handed back the same half."""

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        return tf.broadcast_to(rounded(dy / (x.shape[1] * x.shape[2]), rounding, noise, BACKWARD), tf.shape(x))

    return by_rule("Mean", lambda x: tf.reduce_mean(x, axis=[1, 2], keepdims=True), x, rule=gradient)


@cache
def _adding(rounding: Rounding, count: int) -> Kernel:
    def add(total: tf.Tensor, x: tf.Tensor, *noise: tf.Tensor) -> tf.Tensor:
        share = rounding(rounding(x, noise, salt=0) / count, noise, salt=1)
        return rounding(total + share, noise, salt=2)

    return compiled(add)


def added(total: tf.Tensor, x: tf.Tensor, count: int, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()) -> tf.Tensor:
    """total + x / count, where x, its share and the sum come onto FP16's grid one after another; of any shape."""
    flat = (tf.reshape(each, [-1]) for each in (total, x))
    return tf.reshape(_adding(rounding, count)(*flat, *noise), total.shape)


def on_grid(x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()) -> tf.Tensor:
    """x on FP16's grid, of any shape; nothing is differentiated."""
    return tf.reshape(rounded(tf.reshape(x, [-1]), rounding, noise), x.shape)
