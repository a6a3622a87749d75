"""Counts the gradients that FP16 loses, and changes no bit."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from emulator.layers.gradient_rules import by_rule
from emulator.plan.precision import FP16

SMALLEST = 2.0**-25  # the largest that becomes 0 in FP16, to the nearest


class GradientWatch:
    """Counts, in one backward pass, the gradients that arrive at the results of convolutions and dense layers
    and that FP16 has made 0, or that overflowed: of the first picture, as a sample."""

    def __init__(self, names: tuple[str, ...], dense: frozenset[str]) -> None:
        """`names`: paths of the layers. `dense`: of those, where a gradient of exactly 0 can come of underflow only, as
        behind a norm; elsewhere zeros are not counted."""
        self.names = names
        self._dense = dense
        self._shares: dict[str, tf.Tensor] = {}

    def watched(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """x, the gradient that arrives at it counted."""
        if name not in self.names:
            return x

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            size = tf.abs(dy[:1])
            zeros = size <= SMALLEST if name in self._dense else tf.zeros_like(size, tf.bool)
            beyond = tf.logical_not(size < FP16.overflow)
            self._shares[name] = tf.stack([tf.reduce_mean(tf.cast(each, tf.float32)) for each in (zeros, beyond)])
            return dy

        return by_rule("Identity", tf.identity, x, rule=gradient)

    def lost(self) -> tf.Tensor:
        """float32 [layers, 2]: the shares that underflowed and that overflowed; after the backward pass."""
        return tf.stack([self._shares.get(name, tf.zeros([2])) for name in self.names])
