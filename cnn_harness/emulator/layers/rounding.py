"""Emulate narrow formats. Every operation computes in FP32 and rounds its result once to a number of the format.

Tensors between layers have the narrowest dtype that holds the format: half, bfloat16 or float32. Operations widen their
inputs to FP32, which is exact. The gradient of a 16-bit tensor has 16 bits if a native kernel rounded it, or 32.

FP32 has 24 significant bits and FP16 has 11, so sums, products, quotients and roots have the same bits as in real FP16. An
overflow becomes NaN in FP16, as on the IPU. With saturation, it becomes the largest number of the format.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base import draws
from cnn_harness.base.gradient_rules import Rule, by_rule, gradients, with_gradient
from cnn_harness.base.tracing import TensorFunction, compiled
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan.number_formats import BF16, FP16, UNSIGNED_ZERO, Format

FRACTION, BIAS, SIGN, EXPONENT = 23, 127, -0x80000000, 0x7F800000  # the layout of FP32
MOST_MOVED = BIAS - 1  # the largest exponent of a scale: the scale and its reciprocal must be normal FP32 numbers.
NARROW, UNSIGNED, SHORTENED = "narrow", "unsigned zero", "shortened"  # native kernels use the same names.
FORWARD, BACKWARD = 0, 1  # these salts give different random numbers in the forward and backward pass.
_STORAGE_DTYPES = {FP16: tf.half, BF16: tf.bfloat16}
Noise = tuple[tf.Tensor, ...]  # random bits (uint64 [batch, 1, ...] or []) of stochastic rounding, or () to round to nearest


def storage_dtype(number_format: Format, otherwise: tf.DType = tf.float32) -> tf.DType:
    """Return the 16-bit dtype that holds all numbers of a format, or `otherwise` if there is none."""
    return next((dtype for each, dtype in _STORAGE_DTYPES.items() if each.contains(number_format)), otherwise)


@dataclass(frozen=True)
class Rounding:
    """The rounding of FP32 results to a format: to nearest, ties to even, or with noise stochastically with the same mean.

    The code avoids functions like tf.abs and tf.floor. XLA compiles each as a separate kernel, in 14 ms for every shape.
    """

    saturate: bool = False
    trap: bool = False  # an overflow becomes infinity, so that checks can distinguish it from NaN.
    format: Format = FP16

    def __call__(self, x: tf.Tensor, noise: Noise = (), salt: int = 0) -> tf.Tensor:
        """Return x rounded, inside a function that XLA compiles. Random numbers depend on noise, `salt` and the element's
        index."""
        if x.dtype != tf.float32:
            raise TypeError(f"narrow formats are emulated in FP32, not in {x.dtype.name}")
        bits = tf.bitcast(x, tf.int32)
        size = tf.bitwise.bitwise_and(bits, ~SIGN)
        uniform = _uniform(x, noise[0], salt) if noise else None
        y = (self._shortened if self.kind == SHORTENED else self._narrowed)(size, uniform)
        signed = tf.bitwise.bitwise_or(tf.bitcast(y, tf.int32), tf.bitwise.bitwise_and(bits, SIGN))
        if self.kind == UNSIGNED:
            signed = tf.where_v2(tf.equal(y, 0.0), 0, signed)
        return tf.bitcast(signed, tf.float32)

    @property
    def kind(self) -> str:
        """The algorithm of rounding. SHORTENED uses integers, for formats like BF16 with the exponents of FP32, because FP32
        arithmetic may treat subnormal numbers as 0. UNSIGNED is for formats without a negative zero, NARROW for others."""
        if self.format.has_fp32_exponents:
            return SHORTENED
        return UNSIGNED if self.format.specials == UNSIGNED_ZERO else NARROW

    @property
    def beyond(self) -> float:
        """The absolute value that replaces an overflow."""
        return float("inf") if self.trap else self.format.largest if self.saturate else self.format.beyond

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of native operations that describe the format and its overflow."""
        own = self.format
        limits = {"fraction_bits": own.fraction_bits, "least_exponent": own.least_exponent, "largest": own.largest}
        return {**limits, "beyond": self.beyond, "kind": self.kind}

    def _narrowed(self, size: tf.Tensor, uniform: tf.Tensor | None) -> tf.Tensor:
        """Round an absolute value, given as the int32 bits of FP32. All numbers of the format must be normal in FP32."""
        exponent = tf.maximum(tf.bitwise.bitwise_and(size, EXPONENT), (BIAS + self.format.least_exponent) << FRACTION)
        beyond = (BIAS + self.format.top_exponent + 1) << FRACTION  # larger exponents would overflow in `shifter`.
        exponent, x = tf.minimum(exponent, beyond), tf.bitcast(size, tf.float32)
        if uniform is None:
            # After adding 2^(exponent + dropped), the last bit of an FP32 sum is the last bit of the format. So FP32 rounds.
            shifter = tf.bitcast(exponent + ((FRACTION - self.format.fraction_bits) << FRACTION), tf.float32)
            y = (x + shifter) - shifter
        else:
            step = tf.bitcast(exponent - (self.format.fraction_bits << FRACTION), tf.float32)
            steps = x / step  # the quotient is exact, because `step` is a power of two.
            below = tf.math.floordiv(x, step)
            y = (below + tf.cast(uniform < steps - below, tf.float32)) * step
        return tf.where_v2(y > self.format.largest, self.beyond, y)

    def _shortened(self, size: tf.Tensor, uniform: tf.Tensor | None) -> tf.Tensor:
        """Round an absolute value, given as the int32 bits of FP32, to a shorter fraction, using integers only. Keep NaN."""
        dropped = FRACTION - self.format.fraction_bits
        unit = 1 << dropped
        largest, beyond = _bits_of(self.format.largest), _bits_of(self.beyond)
        rest = tf.bitwise.bitwise_and(size, unit - 1)
        if uniform is None:
            even = tf.bitwise.bitwise_and(tf.bitwise.right_shift(size, dropped), 1)
            rounded_size = tf.bitwise.bitwise_and(size + (unit // 2 - 1) + even, ~(unit - 1))
        else:
            up = uniform * float(unit) < tf.cast(rest, tf.float32)
            rounded_size = size - rest + tf.cast(up, tf.int32) * unit
        rounded_size = tf.where_v2(rounded_size > largest, beyond, rounded_size)
        return tf.bitcast(tf.where_v2(size > EXPONENT, size, rounded_size), tf.float32)

    def rounded(self, x: tf.Tensor, noise: Noise = (), salt: int = FORWARD, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """Return x rounded, in the given dtype, by the native kernel or by a function that XLA compiles."""
        kernels = library.load_for(x)
        if kernels is None:
            return _compiled(self, salt, dtype)(x, *noise)
        return kernels.emulator_rounding(x=x, salt=salt, T=dtype, **kernel_attributes(self, noise))

    def without_gradient(self, x: tf.Tensor, noise: Noise = ()) -> tf.Tensor:
        """Return x rounded. The result has no gradient."""
        return tf.reshape(self.rounded(tf.reshape(x, [-1]), noise), x.shape)

    def of_gradient(self, dy: tf.Tensor, noise: Noise = (), dtype: tf.DType = tf.float32) -> tf.Tensor:
        """Return a gradient rounded, in the given dtype."""
        return self.rounded(widened(dy), noise, BACKWARD, dtype)

    def value(self, x: tf.Tensor, noise: Noise = (), dtype: tf.DType = tf.float32, rule: Rule | None = None) -> tf.Tensor:
        """Return x rounded, in the given dtype. Widen its gradient, or use another rule."""
        kind = "PartitionedCall" if library.load_for(x) is None else "EmulatorRounding"
        return by_rule(kind, lambda x: self.rounded(x, noise, dtype=dtype), x, rule=rule or widened)

    def gradient(self, x: tf.Tensor, noise: Noise = ()) -> tf.Tensor:
        """Return x. In the backward pass, round the gradient."""
        return by_rule("Identity", tf.identity, x, rule=lambda dy: self.of_gradient(dy, noise, x.dtype))

    def scaled_value(self, x: tf.Tensor, largest: tf.Tensor, noise: Noise = ()) -> tf.Tensor:
        """Return x, scaled by `range_factor`, rounded, and scaled back. Do not change the gradient of x."""
        factor, scaled = range_factor(largest, self.format), _scaled(self, FORWARD)
        return by_rule("PartitionedCall", lambda x: scaled(x, factor, *noise), x, rule=lambda dy: dy)

    def scaled_gradient(self, x: tf.Tensor, largest: tf.Tensor, noise: Noise = ()) -> tf.Tensor:
        """Return x. In the backward pass, scale the gradient by `range_factor`, round it, and scale it back."""
        factor, scaled = range_factor(largest, self.format), _scaled(self, BACKWARD)
        return by_rule("Identity", tf.identity, x, rule=lambda dy: scaled(dy, factor, *noise))

    def pixel_mean(self, x: tf.Tensor, noise: Noise = ()) -> tf.Tensor:
        """Return the mean over pixels [batch, 1, 1, channels] in FP32. All pixels get the same rounded gradient."""

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return tf.broadcast_to(self.rounded(dy / (x.shape[1] * x.shape[2]), noise, BACKWARD), tf.shape(x))

        return by_rule("Mean", lambda x: tf.reduce_mean(x, axis=[1, 2], keepdims=True), x, rule=gradient)


@cache
def _compiled(rounding: Rounding, salt: int, dtype: tf.DType) -> TensorFunction:
    return compiled(lambda x, *noise: tf.cast(rounding(x, noise, salt), dtype))


@cache
def _scaled(rounding: Rounding, salt: int) -> TensorFunction:
    return compiled(lambda x, factor, *noise: rounding(x * factor, noise, salt) / factor)


def _uniform(x: tf.Tensor, noise: tf.Tensor, salt: int) -> tf.Tensor:
    """Return a random float32 in [0, 1) for each element of x."""
    # Elements are counted within each sample, so the division of a batch into micro-batches does not change the results.
    own = x.shape[1:] if noise.shape.rank else x.shape
    place = tf.reshape(tf.range(own.num_elements(), dtype=tf.int32), [*([1] if noise.shape.rank else []), *own])
    return draws.uniform_of_words(draws.bits(salt, noise), place)


def _bits_of(x: float) -> int:
    return int(np.float32(x).view(np.int32))


def widened(x: tf.Tensor, again: bool = False) -> tf.Tensor:
    """Return x, whose gradient may be FP32, in FP32. Gradient rules widen `again`, so that only the 16-bit tensor stays in
    memory until the backward pass."""
    if x.dtype not in _STORAGE_DTYPES.values():
        return x
    kernels = library.load_for(x, library.STORED)
    if kernels is None:
        return by_rule("Cast", lambda x: tf.cast(x, tf.float32), x, rule=lambda dy: dy)
    return by_rule("EmulatorWidening", lambda x: kernels.emulator_widening(x=x, again=again), x, rule=lambda dy: dy)


def recomputed(function: TensorFunction) -> TensorFunction:
    """Return the function, for a first argument of FP32 or 16 bits, which it gets in FP32. If it has 16 bits, the gradient
    rule computes the function again. TensorFlow does not run those operations whose results the gradient does not need."""

    @with_gradient
    def apply(source: tf.Tensor, *others: tf.Tensor) -> tuple[tf.Tensor, TensorFunction]:
        def rule(dy: tf.Tensor) -> list[tf.Tensor | None]:
            arguments = [widened(source, again=True), *others]
            return gradients(function(*arguments), arguments, dy)

        return function(widened(source), *others), rule

    return lambda x, *others: (apply if x.dtype in _STORAGE_DTYPES.values() else function)(x, *others)


def kernel_attributes(rounding: Rounding | None, noise: Noise = ()) -> dict[str, Any]:
    """Return the arguments that tell a native operation how to round its results."""
    if rounding is None:
        return {"rounding": "none", "noise": ()}
    return {"rounding": "random" if noise else "nearest", "noise": noise, **rounding.attributes}


def range_factor(largest: tf.Tensor, number_format: Format) -> tf.Tensor:
    """Return the power of two by which a tensor is multiplied before rounding. `largest` is the tensor's largest value.

    The scaled largest value is between a quarter and a half of the format's largest number, so numbers twice as large still
    fit. The factor is 1 if `largest` is 0, subnormal in FP32 or not finite.
    """
    bits = tf.bitcast(largest, tf.int32)
    # The shift rounds down, so this is one octave less if `largest` has a greater fraction than the format's largest number.
    octaves = tf.bitwise.right_shift(_bits_of(number_format.largest) - bits, FRACTION)
    exponent = tf.clip_by_value(octaves - 1, -MOST_MOVED, MOST_MOVED)
    usual = tf.logical_and(bits >= 1 << FRACTION, bits < EXPONENT)
    return tf.where_v2(usual, tf.bitcast(tf.bitwise.left_shift(exponent + BIAS, FRACTION), tf.float32), 1.0)


@cache
def _adding(of_x: Rounding | None, of_sum: Rounding, count: int) -> TensorFunction:
    def add(total: tf.Tensor, x: tf.Tensor, *noise: tf.Tensor) -> tf.Tensor:
        share = of_sum((of_x(x, noise, salt=0) if of_x else x) / count, noise, salt=1)
        return of_sum(total + share, noise, salt=2)

    return compiled(add)


def add_rounded(
    total: tf.Tensor, x: tf.Tensor, count: int, of_x: Rounding | None, of_sum: Rounding, noise: Noise = ()
) -> tf.Tensor:
    """Return total + x / count. `of_x` rounds x; `of_sum` rounds the quotient and the sum."""
    flat = (tf.reshape(each, [-1]) for each in (total, x))
    return tf.reshape(_adding(of_x, of_sum, count)(*flat, *noise), total.shape)
