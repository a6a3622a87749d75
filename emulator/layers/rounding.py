"""Emulates narrow formats by FP32 tensors whose values are numbers of the format (on its grid). Every operation computes in
FP32 and rounds its result once.

FP32 has 24 bits for the 11 of FP16, so sums, products, quotients and roots of FP16 numbers equal those of real FP16. A
result that overflows after rounding becomes the format's overflow value (NaN in FP16, as on the IPU), or the largest number
if overflow saturates.
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

FRACTION, BIAS, SIGN, EXPONENT = 23, 127, -0x80000000, 0x7F800000  # bits of FP32
MOST_MOVED = BIAS - 1  # in octaves: the power of two and its reciprocal must be normal FP32 numbers
NARROW, UNSIGNED, SHORTENED = "narrow", "unsigned zero", "shortened"  # kinds of formats, as kernels name them
Predicate = Callable[[], bool]


def always() -> bool:
    """Return True: without further knowledge, a gradient is rounded."""
    return True


@dataclass(frozen=True)
class Rounding:
    """The rounding of FP32 results to a format: to nearest, ties to even, or at random with the same mean.

    tf.abs, tf.sign, tf.floor and similar are avoided: XLA compiles this for every shape and needs 14 ms longer for each of
    them, because each becomes a separate MLIR kernel.
    """

    stochastic: bool = False
    saturate: bool = False
    trap: bool = False  # overflow gives infinity, so that checks can tell it from other NaNs
    format: Format = FP16

    def __call__(self, x: tf.Tensor, noise: tuple[tf.Tensor, ...] = (), salt: int = 0) -> tf.Tensor:
        """Return x rounded. `noise`: uint64 [batch, 1, ...] or []; the random numbers are a function of it, `salt` and the
        element's place. Without noise, round to nearest, ties to even."""
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
        """The way to round. SHORTENED: for FP32 with a shorter fraction; FP32 arithmetic may treat subnormal numbers as 0,
        so integers are used. UNSIGNED: for a format without a negative zero."""
        if self.format.has_fp32_exponents:
            return SHORTENED
        return UNSIGNED if self.format.specials == UNSIGNED_ZERO else NARROW

    @property
    def beyond(self) -> float:
        """The size that replaces sizes above the format's largest."""
        return float("inf") if self.trap else self.format.largest if self.saturate else self.format.beyond

    @property
    def _dropped(self) -> int:
        """The number of fraction bits that the format lacks."""
        return FRACTION - self.format.fraction_bits

    def _narrowed(self, size: tf.Tensor, uniform: tf.Tensor | None) -> tf.Tensor:
        """Round a size, given as the int32 bits of FP32, to a format whose numbers are all normal in FP32."""
        exponent = tf.maximum(tf.bitwise.bitwise_and(size, EXPONENT), (BIAS + self.format.least_exponent) << FRACTION)
        beyond = (BIAS + self.format.top_exponent + 1) << FRACTION  # otherwise steps and shifters would overflow
        exponent, x = tf.minimum(exponent, beyond), tf.bitcast(size, tf.float32)
        if uniform is None:
            # Let FP32 round: add a number so large, 2^(exponent + dropped), that its last place is the format's.
            shifter = tf.bitcast(exponent + (self._dropped << FRACTION), tf.float32)
            return (x + shifter) - shifter
        step = tf.bitcast(exponent - (self.format.fraction_bits << FRACTION), tf.float32)
        steps = x / step  # exact: a power of two
        below = tf.math.floordiv(x, step)
        return (below + tf.cast(uniform < steps - below, tf.float32)) * step

    def _bounded(self, y: tf.Tensor) -> tf.Tensor:
        return tf.where_v2(y > self.format.largest, self.beyond, y)

    def _shortened(self, size: tf.Tensor, uniform: tf.Tensor | None) -> tf.Tensor:
        """Round a size, given as the int32 bits of FP32, to a shorter fraction with integers only; NaN stays."""
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
    """Return float32 in [0, 1) for each element, which chooses between its two neighbours in the format."""
    # elements are counted within their sample, so results do not depend on how a batch is split into micro-batches
    own = x.shape[1:] if noise.shape.rank else x.shape
    place = tf.reshape(tf.range(own.num_elements(), dtype=tf.int32), [*([1] if noise.shape.rank else []), *own])
    return draws.uniform_of_words(draws.bits(salt, noise), place)


FORWARD, BACKWARD = 0, 1  # salts


@cache
def _compiled(rounding: Rounding, salt: int) -> TensorFunction:
    return compiled(lambda x, *noise: rounding(x, noise, salt))


def rounded(x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = (), salt: int = FORWARD) -> tf.Tensor:
    """Return x rounded, the same as `rounding` returns, in one pass: by the native kernel, or compiled by XLA."""
    kernels = library.load_for(x)
    if kernels is None:
        return _compiled(rounding, salt)(x, *noise)
    return kernels.emulator_rounding(x=x, noise=noise, salt=salt, **_attributes(rounding))


def kernel_attributes(rounding: Rounding | None, noise: tuple[tf.Tensor, ...] = ()) -> dict[str, Any]:
    """Return the arguments of a native operation that describe how it rounds its results; the noise is [batch, 1, ...]."""
    if rounding is None:
        return {"rounding": "none", "noise": ()}
    return {"rounding": "random" if noise else "nearest", "noise": noise, **_attributes(rounding)}


def _attributes(rounding: Rounding) -> dict[str, Any]:
    """Return a format and its overflow as attributes of native operations."""
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
    """Round x, and round its gradient in the backward pass. `needs_rounding` is called in the backward pass; if it returns
    False, the incoming gradient is already rounded."""
    kind = "PartitionedCall" if library.load_for(x) is None else "EmulatorRounding"

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        return rounded(dy, rounding, noise, BACKWARD) if needs_rounding() else dy

    return by_rule(kind, lambda x: rounded(x, rounding, noise), x, rule=gradient)


def value_rounded(x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()) -> tf.Tensor:
    """Round x; its gradient passes unchanged, as if nothing had been rounded."""
    kind = "PartitionedCall" if library.load_for(x) is None else "EmulatorRounding"
    return by_rule(kind, lambda x: rounded(x, rounding, noise), x, rule=lambda dy: dy)


def range_factor(largest: tf.Tensor, number_format: Format) -> tf.Tensor:
    """Return the power of two by which numbers of this size are multiplied before rounding.

    `largest` is scaled to between a quarter and a half of the format's largest number, so numbers twice as large still fit.
    The factor is 1 for 0, for subnormal FP32 numbers, and for values that are not finite.
    """
    bits = tf.bitcast(largest, tf.int32)
    # the shift rounds down: one octave less if the fraction is longer than that of the format's largest number
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
    """Like `value_rounded`, but numbers are rounded after multiplication by a power of two, and divided by it again."""
    scaled = _scaled(rounding, FORWARD)
    return by_rule("PartitionedCall", lambda x: scaled(x, factor, *noise), x, rule=lambda dy: dy)


def scaled_gradient_rounded(
    x: tf.Tensor, factor: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()
) -> tf.Tensor:
    """Return x; its gradient is rounded after multiplication by a power of two, and divided by it again."""
    scaled = _scaled(rounding, BACKWARD)
    return by_rule("Identity", tf.identity, x, rule=lambda dy: scaled(dy, factor, *noise))


def gradient_rounded(
    x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = (), needs_rounding: Predicate = always
) -> tf.Tensor:
    """Return x; its gradient is rounded as in `value_and_gradient_rounded`."""

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        return rounded(dy, rounding, noise, BACKWARD) if needs_rounding() else dy

    return by_rule("Identity", tf.identity, x, rule=gradient)


def rounded_pixel_mean(x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()) -> tf.Tensor:
    """Return the mean over the pixels in FP32, [batch, 1, 1, channels]. All pixels get the same rounded gradient."""

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
    """Return total + x / count, for any shape. x is rounded with `of_x`; then its share, and then the sum, with `of_sum`."""
    flat = (tf.reshape(each, [-1]) for each in (total, x))
    return tf.reshape(_adding(of_x, of_sum, count)(*flat, *noise), total.shape)


def round_without_gradient(x: tf.Tensor, rounding: Rounding, noise: tuple[tf.Tensor, ...] = ()) -> tf.Tensor:
    """Return x rounded, for any shape, without a gradient."""
    return tf.reshape(rounded(tf.reshape(x, [-1]), rounding, noise), x.shape)
