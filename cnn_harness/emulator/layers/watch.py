"""Look at values and gradients without changing them: are they finite, what do narrow formats lose, how large are they?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cnn_harness.base.gradient_rules import by_rule
from cnn_harness.emulator.layers.rounding import widened
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan.number_formats import Format

MARK = "floating-point exception"
OVERFLOW, INVALID = "overflow or division by zero", "invalid operation (NaN)"


def check_finite(x: tf.Tensor, where: str) -> tf.Tensor:
    """Return x. If x is not finite, the session call fails with the message [MARK] [what happened] [where]."""
    kind = tf.where_v2(tf.reduce_any(tf.math.is_inf(x)), OVERFLOW, INVALID)
    finite = tf.reduce_all(tf.math.is_finite(x))
    with tf.control_dependencies([tf.raw_ops.Assert(condition=finite, data=[MARK, kind, where])]):
        return tf.identity(x)


class WatchedLayers(NamedTuple):
    """The paths of the layers whose incoming gradients are counted."""

    formats: Mapping[str, Sequence[Format]]  # the narrow formats to which each gradient is rounded.
    # A gradient of exactly 0 is an underflow at the last layer and before norms. At other layers, 0 is not counted.
    exact_zero_is_underflow: frozenset[str] = frozenset()


class GradientWatch:
    """Count the gradients of one backward pass that become 0 or overflow in their formats. As a sample, count only the
    gradients of the first image, at the results of convolutions and dense layers."""

    def __init__(self, watched: WatchedLayers, with_largest: bool = False) -> None:
        """`with_largest` means: also find the largest gradient of all images."""
        self.with_largest, self.names, self._watched = with_largest, tuple(watched.formats), watched
        self._shares: dict[str, tf.Tensor] = {}
        self._largest: list[tf.Tensor] = []
        self._operand_amax: dict[tuple[int, int], tf.Tensor] = {}

    def watch_gradient(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Return x and count its gradients in the backward pass."""
        if name not in self.names:
            return x

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            formats = self._watched.formats[name]
            # Numbers up to half of the smallest number round to 0. No absolute value is below 0, so then 0 is not counted.
            smallest = max(each.smallest for each in formats) / 2 if name in self._watched.exact_zero_is_underflow else -1.0
            if self.with_largest:
                self._largest.append(tf.reduce_max(tf.abs(widened(dy))))
            self._shares[name] = _shares(dy, smallest, min(each.overflow for each in formats))
            return dy

        return by_rule("Identity", tf.identity, x, rule=gradient)

    def record_operand_amax(self, kernel_index: int, kind: int, x: tf.Tensor) -> None:
        """Record the largest absolute value (amax) of an activation (kind 0) or gradient (kind 1) of a scaled kernel."""
        self._operand_amax[kernel_index, kind] = tf.reduce_max(tf.abs(x))

    def record_gradient_amax(self, kernel_index: int, y: tf.Tensor) -> tf.Tensor:
        """Return x and record the amax of its gradient in the backward pass."""

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            self.record_operand_amax(kernel_index, 1, dy)
            return dy

        return by_rule("Identity", tf.identity, y, rule=gradient)

    def operand_amax(self, kernels: int) -> tf.Tensor:
        """Return the amax of each operand, float32 [kernels, 2]. Call this after the backward pass."""
        amax = [[self._operand_amax.get((index, kind), tf.zeros([])) for kind in (0, 1)] for index in range(kernels)]
        return tf.stack([tf.stack(each) for each in amax])

    def largest_gradient(self) -> tf.Tensor:
        """Return the largest incoming gradient of all layers, float32 []. Call this after the backward pass."""
        return tf.reduce_max(tf.stack([tf.zeros([]), *self._largest]))

    def lost_shares(self) -> tf.Tensor:
        """Return the shares that underflowed and overflowed, float32 [layers, 2]. Call this after the backward pass."""
        return tf.stack([self._shares.get(name, tf.zeros([2])) for name in self.names])


def _shares(x: tf.Tensor, small: float, large: float) -> tf.Tensor:
    """Return the shares of the first sample's numbers that are at most `small`, and not below `large`, float32 [2]."""
    kernels = library.load_for(x, library.STORED)
    if kernels:
        return kernels.emulator_shares(x=x, small=small, large=large)
    size = tf.abs(widened(x[:1]))
    fractions = size <= small, tf.logical_not(size < large)
    return tf.stack([tf.reduce_mean(tf.cast(each, tf.float32)) for each in fractions])
