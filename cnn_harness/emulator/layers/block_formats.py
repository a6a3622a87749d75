"""Emulate products whose operands have block formats. Blocks run along the dimension that a product sums:

* A result is a sum over input channels. Blocks run along the input channels of activations and weights.
* The gradient of the input is a sum over output channels. Blocks run along the output channels of gradients and weights.
* The gradient of the weights is a sum over pixels of images. Blocks run along the images of a micro-batch, at one pixel.

So each product rounds its operands itself. Windows and strides move pixels, but never across these blocks. A machine could
therefore add the products of elements, and multiply the sum for each pair of blocks by their scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cnn_harness.base.gradient_rules import gradients, with_gradient
from cnn_harness.base.tracing import TensorFunction, compiled
from cnn_harness.emulator.layers.rounding import BACKWARD, BIAS, EXPONENT, FORWARD, FRACTION, SIGN, Noise, Rounding
from cnn_harness.emulator.plan.number_formats import BlockFormat

ACROSS = 2  # this salt gives the operands of the weights' gradient random numbers of their own.
ROTATED = 16  # the Hadamard transform mixes so many images, as in NVIDIA's training in NVFP4 (arXiv 2509.25149).
_E8M0 = -127, 127  # the exponents of scales
_MOST = 2.0**116  # the largest factor of a tensor. So numbers and scales that are not 0 are normal numbers in FP32.
Multiply = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class Along(NamedTuple):
    """Blocks run along an axis, in each of `parts` equal parts of it: they cross no border of groups or micro-batches. The
    last block of a part may be shorter. `tensors` equal parts of the first axis have their own tensor scales."""

    axis: int
    parts: int = 1
    tensors: int = 1


@dataclass(frozen=True)
class BlockRounding:
    """The rounding of FP32 tensors to a block format, to nearest, or with noise stochastically.

    In a block with NaN or infinity, the scale is NaN and so are all numbers; with tensor scales, in the whole tensor. FP32
    arithmetic may take numbers below 2^-126 as 0, so they are taken as 0 in any case.
    """

    format: BlockFormat

    def __call__(self, x: tf.Tensor, along: Along, noise: Noise = (), salt: int = FORWARD) -> tf.Tensor:
        """Return x rounded, inside a function that XLA compiles."""
        own, x = self.format, _with_normals(x)
        size = tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), ~SIGN)
        blocks = _in_blocks(size, along, own.size)
        largest = tf.reduce_max(blocks, 3, keepdims=True)

        def for_each(of_block: tf.Tensor) -> tf.Tensor:
            whole = tf.broadcast_to(of_block, tf.shape(blocks))
            return _out_of_blocks(whole, x.shape, along)

        element = Rounding(saturate=True, format=own.element)
        if own.scale is None:
            exponent = tf.bitwise.right_shift(largest, FRACTION) - (BIAS + own.element.top_exponent)
            shift = BIAS - tf.clip_by_value(exponent, *_E8M0)
            factor = for_each(_or_nan(tf.bitcast(tf.bitwise.left_shift(shift, FRACTION), tf.float32), largest))
            return element(_with_normals(x * factor), noise, salt) / factor
        whole = self._factor_of_tensor(size, along.tensors)
        of_blocks = _in_blocks(tf.broadcast_to(whole, tf.shape(x)), along, own.size)[:, :, :, :1]
        scale = Rounding(saturate=True, format=own.scale)(tf.bitcast(largest, tf.float32) / own.element.largest * of_blocks)
        factor = tf.where_v2(scale > 0, 1 / (scale * (1 / of_blocks)), 0.0)
        numbers = element(_with_normals(x * for_each(_or_nan(factor, largest))), noise, salt)
        return numbers * for_each(scale) * (1 / whole)

    def _factor_of_tensor(self, size: tf.Tensor, tensors: int) -> tf.Tensor:
        """Return the reciprocal of the tensor scale [batch, 1, ...], or NaN if a number is not finite."""
        if not self.format.tensor_scale:
            return tf.ones([1] * size.shape.rank)
        largest = tf.reduce_max(tf.reshape(size, [tensors, -1]), 1, keepdims=True)
        most = self.format.scale.largest * self.format.element.largest
        factor = _or_nan(tf.minimum(most / tf.bitcast(largest, tf.float32), _MOST), largest)
        each = tf.broadcast_to(factor, [tensors, tf.shape(size)[0] // tensors])
        return tf.reshape(each, [-1, *[1] * (size.shape.rank - 1)])

    def rounded(self, x: tf.Tensor, along: Along, noise: Noise = (), salt: int = FORWARD) -> tf.Tensor:
        """Return x rounded, without a gradient."""
        return _compiled(self, along, salt)(x, *noise)


@cache
def _compiled(rounding: BlockRounding, along: Along, salt: int) -> TensorFunction:
    return compiled(lambda x, *noise: rounding(x, along, noise, salt))


def _in_blocks(x: tf.Tensor, along: Along, size: int) -> tf.Tensor:
    """Return x as [before the axis, parts, blocks, numbers of a block, after the axis], with zeros in short blocks."""
    axis = along.axis % x.shape.rank
    length, after = x.shape[axis] // along.parts, math.prod(x.shape[axis + 1 :])
    count = -(-length // size)
    x = tf.reshape(x, [-1, along.parts, length, after])
    x = tf.pad(x, [[0, 0], [0, 0], [0, count * size - length], [0, 0]])
    return tf.reshape(x, [-1, along.parts, count, size, after])


def _out_of_blocks(x: tf.Tensor, shape: tf.TensorShape, along: Along) -> tf.Tensor:
    """Return the tensor of which `_in_blocks` made x."""
    axis = along.axis % shape.rank
    x = tf.reshape(x, [-1, along.parts, x.shape[2] * x.shape[3], x.shape[4]])
    return tf.reshape(x[:, :, : shape[axis] // along.parts], [-1, *shape[1:]])


def _with_normals(x: tf.Tensor) -> tf.Tensor:
    """Return x with zeros of the same sign in place of subnormal numbers."""
    bits = tf.bitcast(x, tf.int32)
    is_normal = tf.bitwise.bitwise_and(bits, ~SIGN) >= 1 << FRACTION
    return tf.bitcast(tf.where_v2(is_normal, bits, tf.bitwise.bitwise_and(bits, SIGN)), tf.float32)


def _or_nan(factor: tf.Tensor, largest: tf.Tensor) -> tf.Tensor:
    """Return a factor, or NaN if the largest number, given as the bits of its absolute value, is not finite."""
    return tf.where_v2(largest < EXPONENT, factor, math.nan)


@dataclass(frozen=True)
class BlockOperands:
    """The roundings of a product's operands to block formats. None means that an operand has no block format."""

    weight: BlockRounding | None
    activation: BlockRounding | None
    gradient: BlockRounding | None
    rotates: bool = False  # the operands of the weights' gradient are transformed before they are rounded.

    def product(
        self, multiply: Multiply, *, groups: int, micro_batches: int, noise: tuple[Noise, Noise] = ((), ()),
        signs: tf.Tensor | None = None,
    ) -> Multiply:  # fmt: skip
        """Return the function multiply(x, weights) with rounded operands, forward and backward.

        Channels are the last axis of x, and the last two axes of the weights. `noise` is that of activations and gradients,
        and `signs` the random bits of the Hadamard transform.
        """
        of_x, of_dy = noise
        channels, images = Along(-1, groups, micro_batches), Along(0, micro_batches, micro_batches)
        inputs, outputs = Along(-2), Along(-1, groups)

        def across(rounding: BlockRounding | None, x: tf.Tensor, noise: Noise) -> tf.Tensor:
            x = rotated(x, micro_batches, signs) if self.rotates else x
            return _rounded(rounding, x, images, noise, ACROSS)

        @with_gradient
        def apply(x: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, TensorFunction]:
            def rule(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                back = _rounded(self.weight, weights, outputs)
                (dx,) = gradients(multiply(x, back), [x], _rounded(self.gradient, dy, channels, of_dy, BACKWARD))
                kept = across(self.activation, x, of_x)
                (dw,) = gradients(multiply(kept, weights), [weights], across(self.gradient, dy, of_dy))
                return dx, dw

            forward = _rounded(self.activation, x, channels, of_x), _rounded(self.weight, weights, inputs)
            return multiply(*forward), rule

        return apply


def _rounded(
    rounding: BlockRounding | None, x: tf.Tensor, along: Along, noise: Noise = (), salt: int = FORWARD
) -> tf.Tensor:
    return x if rounding is None else rounding.rounded(x, along, noise, salt)


def rotated(x: tf.Tensor, micro_batches: int, signs: tf.Tensor) -> tf.Tensor:
    """Return the random Hadamard transform of x along its images, in groups of ROTATED or, if this does not divide the
    micro-batch, of the largest power of two that does.

    If both operands of the weights' gradient are transformed, the gradient stays the same up to rounding. Image k of a group
    is negated by bit k of `signs` (uint64 []).
    """
    size = math.gcd(x.shape[0] // micro_batches, ROTATED)
    return x if size == 1 else _compiled_rotation(size)(x, signs)


@cache
def _compiled_rotation(size: int) -> TensorFunction:
    def rotate(x: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
        bits = tf.bitwise.right_shift(signs, tf.constant([*range(size)], tf.uint64))
        odd = tf.bitwise.bitwise_and(bits, tf.constant(1, tf.uint64))
        y = tf.reshape(x, [-1, size, math.prod(x.shape[1:])]) * (1 - 2 * tf.cast(odd, tf.float32))[:, None]
        for half in (2**k for k in range(size.bit_length() - 1)):
            one, other = tf.unstack(tf.reshape(y, [-1, 2, half, y.shape[-1]]), axis=1)
            y = tf.stack([one + other, one - other], 1)
        return tf.reshape(y, x.shape) * (1 / math.sqrt(size))

    return compiled(rotate)
