"""Narrow formats, emulated: FP32 tensors whose values lie on a format's grid. Whatever an operation does inside, it does in
FP32, and rounds once.

With 24 bits of FP32 for the 11 of FP16 that is FP16's own result for sums, products, quotients and roots of FP16 numbers. A
result that is larger after rounding than the format's largest becomes what the format has beyond that (NaN in FP16, as the
IPU has it), or the largest itself where overflow is to saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from base import draws
from base.gradient_rules import by_rule
from base.tracing import TensorFunction, compiled
from emulator.native import library
from emulator.plan.number_formats import FP16, UNSIGNED_ZERO, Format

FRACTION, BIAS, SIGN, EXPONENT = 23, 127, -0x80000000, 0x7F800000  # of FP32's bits
MOST_MOVED = BIAS - 1  # octaves: the power of two and its reciprocal are normal numbers of FP32
NARROW, UNSIGNED, SHORTENED = "narrow", "unsigned zero", "shortened"  # formats by their arithmetic here, as kernels name it
Predicate = Callable[[], bool]


def always() -> bool:
    """Return True: a gradient is rounded where nothing is known of it."""
    return True


@dataclass(frozen=True)
class Rounding:
    """The rounding of FP32 results onto a format's grid: to the nearest, ties to even, or at random so that the mean stays.

    tf.abs, tf.sign, tf.floor and their like are avoided: XLA, which compiles this for every shape, takes 14 ms longer for
    each of them, as each becomes a kernel of its own by way of MLIR.
    """

    stochastic: bool = False
    saturate: bool = False
    trap: bool = False  # overflow gives infinity, so that whoever checks can tell it from other NaNs
    format: Format = FP16

    def __call__(self, x: tf.Tensor, noise: tuple[tf.Tensor, ...] = (), salt: int = 0) -> tf.Tensor:
        """x on the grid. `noise`: uint64 [batch, 1, ...] or [], of which the random numbers are a function, with `salt` and
        the element's place; without it ties to even."""
        if x.dtype != tf.float32:
            raise TypeError(f"narrow formats are emulated in FP32, not in {x.dtype.name}")
        bits = tf.bitcast(x, tf.int32)
        size = tf.bitwise.bitwise_and(bits, ~SIGN)
        uniform = _uniform(x, noise[0], salt) if noise else None
        y = self._shortened(size, uniform) if self.kind == SHORTENED else self._bounded(self._narrowed(size, uniform))
        signed = tf.bitwise.bitwise_or(tf.bitcast(y, tf.int32), tf.bitwise.bitwise_and(bits, SIGN))
        if self.kind == UNSIGNED:
            signed = tf.where_v2(tf.equal(y, 0.0), 0, signed)
        return tf.bitcast(signed, tf.float32)

    @property
    def kind(self) -> str:
        """The way to round to the format: SHORTENED for FP32 with a shorter fraction, whose subnormal numbers FP32's own
        arithmetic may take for 0; UNSIGNED for a format without a zero below 0."""
        if self.format.has_fp32_exponents:
            return SHORTENED
        return UNSIGNED if self.format.specials == UNSIGNED_ZERO else NARROW

    @property
    def beyond(self) -> float:
        """The size that a larger one than the format's largest becomes."""
        return float("inf") if self.trap else self.format.largest if self.saturate else self.format.beyond

    @property
    def _dropped(self) -> int:
        """The bits of the fraction that the format lacks."""
        return FRACTION - self.format.fraction_bits

    def _narrowed(self, size: tf.Tensor, uniform: tf.Tensor | None) -> tf.Tensor:
        """A size, int32 as FP32 has it, on the grid of a format whose numbers are all normal in FP32."""
        exponent = tf.maximum(tf.bitwise.bitwise_and(size, EXPONENT), (BIAS + self.format.least_exponent) << FRACTION)
        beyond = (BIAS + self.format.top_exponent + 1) << FRACTION  # or steps and shifters would overflow themselves
        exponent, x = tf.minimum(exponent, beyond), tf.bitcast(size, tf.float32)
        if uniform is None:
            # FP32's own rounding, beside a number so large that its last place is the format's: 2^(exponent + dropped)
            shifter = tf.bitcast(exponent + (self._dropped << FRACTION), tf.float32)
            return (x + shifter) - shifter
        step = tf.bitcast(exponent - (self.format.fraction_bits << FRACTION), tf.float32)
        steps = x / step  # exact: a power of two
        below = tf.math.floordiv(x, step)
        return (below + tf.cast(uniform < steps - below, tf.float32)) * step

    def _bounded(self, y: tf.Tensor) -> tf.Tensor:
        return tf.where_v2(y > self.format.largest, self.beyond, y)

    def _shortened(self, size: tf.Tensor, uniform: tf.Tensor | None) -> tf.Tensor:
        """A size, int32 as FP32 has it, with a shorter fraction, by whole numbers alone; NaN stays."""
        unit = 1 << self._dropped
        largest, beyond = (int(np.float32(number).view(np.int32)) for number in (self.format.largest, self.beyond))
        rest = tf.bitwise.bitwise_and(size, unit - 1)
        if uniform is None:
            even = tf.bitwise.bitwise_and(tf.bitwise.right_shift(size, self._dropped), 1)
            rounded_size = tf.bitwise.bitwise_and(size + (unit // 2 - 1) + even, ~(unit - 1))
        else:
            up = uniform * float(unit) < tf.cast(rest, tf.float32)
            rounded_size = size - rest + tf.cast(up, tf.int32) * unit
        rounded_size = tf.where_v2(rounded_size > largest, beyond, rounded_size)
        return tf.bitcast(tf.where_v2(size > EXPONENT, size, rounded_size), tf.float32)


def _uniform(x: tf.Tensor, noise: tf.Tensor, salt: int) -> tf.Tensor:
    """float32 in [0, 1) for each element, which decides between its neighbours on the grid."""
    # a sample's elements are counted from 0, so that a micro-batch may be any part of a batch
    own = x.shape[1:] if noise.shape.rank else x.shape
    place = tf.reshape(tf.range(own.num_elements(), dtype=tf.int32), [*([1] if noise.shape.rank else []), *own])
    return draws.uniform_of_words(draws.bits(salt, noise), place)


FORWARD, BACKWARD = 0, 1  # salts


@cache
def _compiled(rounding: Rounding, salt: int) -> TensorFunction:
    return compiled(lambda x, *noise: rounding(x, noise, salt))


def rounded(x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = (), salt: int = FORWARD) -> tf.Tensor:
    """x on the grid, as `rounding` itself gives it, in one pass: by the native kernel, or compiled by XLA."""
    kernels = library.load_for(x)
    if kernels is None:
        return _compiled(rounding, salt)(x, *noise)
    return kernels.emulator_rounding(x=x, noise=noise, salt=salt, **_attributes(rounding))


def kernel_attributes(rounding: Rounding | None, noise: tuple[tf.Tensor, ...] = ()) -> dict[str, Any]:
    """The arguments of a native kernel's operation that say how it rounds its results; the noise is [batch, 1, ...]."""
    if rounding is None:
        return {"rounding": "none", "noise": ()}
    return {"rounding": "random" if noise else "nearest", "noise": noise, **_attributes(rounding)}


def _attributes(rounding: Rounding) -> dict[str, Any]:
    """Return a format and its overflow as native kernels' operations name them."""
    return {
        "fraction_bits": rounding.format.fraction_bits,
        "least_exponent": rounding.format.least_exponent,
        "largest": rounding.format.largest,
        "beyond": rounding.beyond,
        "kind": rounding.kind,
    }


def value_and_gradient_rounded(
    x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = (), needs_rounding: Predicate = always
) -> tf.Tensor:
    """x on the grid; so is the gradient that is handed on, unless `needs_rounding`, asked in the backward pass, says that
    the incoming gradient is on that grid already."""
    kind = "PartitionedCall" if library.load_for(x) is None else "EmulatorRounding"

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        return rounded(dy, rounding, noise, BACKWARD) if needs_rounding() else dy

    return by_rule(kind, lambda x: rounded(x, rounding, noise), x, rule=gradient)


def value_rounded(x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()) -> tf.Tensor:
    """x on the grid; the gradient is handed on as it is, as if nothing had been rounded."""
    kind = "PartitionedCall" if library.load_for(x) is None else "EmulatorRounding"
    return by_rule(kind, lambda x: rounded(x, rounding, noise), x, rule=lambda dy: dy)


def range_factor(largest: tf.Tensor, number_format: Format) -> tf.Tensor:
    """The power of two by which numbers of this size are multiplied before they are rounded: the largest one after which
    numbers twice as large still fit, so that `largest` comes to between a quarter and a half of the format's largest number.
    1 for 0, for a subnormal number of FP32, and for what is not finite."""
    bits = tf.bitcast(largest, tf.int32)
    # the shift rounds down: one octave less where the fraction is longer than that of the format's largest number
    octaves = tf.bitwise.right_shift(_bits_of(number_format.largest) - bits, FRACTION)
    exponent = tf.clip_by_value(octaves - 1, -MOST_MOVED, MOST_MOVED)
    usual = tf.logical_and(bits >= 1 << FRACTION, bits < EXPONENT)
    return tf.where_v2(usual, tf.bitcast(tf.bitwise.left_shift(exponent + BIAS, FRACTION), tf.float32), 1.0)


def _bits_of(x: float) -> int:
    """Return the bits of an FP32 number above 0."""
    return int(np.float32(x).view(np.int32))


@cache
def _scaled(rounding: Rounding, salt: int) -> TensorFunction:
    return compiled(lambda x, factor, *noise: rounding(x * factor, noise, salt) / factor)


def scaled_value_rounded(
    x: tf.Tensor, factor: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()
) -> tf.Tensor:
    """As `value_rounded`, on the grid of numbers that are multiplied by a power of two."""
    scaled = _scaled(rounding, FORWARD)
    return by_rule("PartitionedCall", lambda x: scaled(x, factor, *noise), x, rule=lambda dy: dy)


def scaled_gradient_rounded(
    x: tf.Tensor, factor: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()
) -> tf.Tensor:
    """x as it is; the gradient that is handed on is on the grid of numbers that are multiplied by a power of two."""
    scaled = _scaled(rounding, BACKWARD)
    return by_rule("Identity", tf.identity, x, rule=lambda dy: scaled(dy, factor, *noise))


def gradient_rounded(
    x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = (), needs_rounding: Predicate = always
) -> tf.Tensor:
    """x as it is; the gradient that is handed on is on the grid, as `value_and_gradient_rounded` has it."""

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        return rounded(dy, rounding, noise, BACKWARD) if needs_rounding() else dy

    return by_rule("Identity", tf.identity, x, rule=gradient)


def rounded_pixel_mean(x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()) -> tf.Tensor:
    """The mean over the pixels in FP32, [batch, 1, 1, channels]; every pixel is handed back the same half."""

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        return tf.broadcast_to(rounded(dy / (x.shape[1] * x.shape[2]), rounding, noise, BACKWARD), tf.shape(x))

    return by_rule("Mean", lambda x: tf.reduce_mean(x, axis=[1, 2], keepdims=True), x, rule=gradient)


@cache
def _adding(of_x: Rounding | None, of_sum: Rounding, count: int) -> TensorFunction:
    def add(total: tf.Tensor, x: tf.Tensor, *noise: tf.Tensor) -> tf.Tensor:
        share = of_sum((of_x(x, noise, salt=0) if of_x else x) / count, noise, salt=1)
        return of_sum(total + share, noise, salt=2)

    return compiled(add)


def add_rounded(
    total: tf.Tensor, x: tf.Tensor, count: int, of_x: Rounding | None, of_sum: Rounding, noise: tuple[tf.Tensor, ...] = ()
) -> tf.Tensor:
    """total + x / count, where x comes onto one grid, and its share and the sum onto another, one after another; of any
    shape."""
    flat = (tf.reshape(each, [-1]) for each in (total, x))
    return tf.reshape(_adding(of_x, of_sum, count)(*flat, *noise), total.shape)


def round_without_gradient(x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()) -> tf.Tensor:
    """x on the grid, of any shape; nothing is differentiated."""
    return tf.reshape(rounded(tf.reshape(x, [-1]), rounding, noise), x.shape)
