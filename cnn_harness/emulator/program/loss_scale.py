"""Loss scaling (arXiv 1710.03740), which keeps gradients within the range of a narrow format, and rules for automatic
scales."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

BACK_OFF, LARGEST = "back-off", "largest"  # --automatic-loss-scaling has these rules.
MIN_SCALE, MAX_SCALE = 2.0**-24, 2.0**40
ROOM = 8.0  # LARGEST keeps the largest gradient this factor below the largest number of its format.


@dataclass(frozen=True)
class LossScale:
    """Multiply the loss by `factor`, and divide the learning rate or the gradients by `factor` in the update.

    SGD and momentum are linear in the gradient, so with a fixed scale the learning rate is divided. Otherwise the gradients
    are divided. `rule` is the rule that adapts the scale, or "" for a fixed scale; `factor` is then the first scale. With a
    rule, updates whose gradients overflow are skipped. BACK_OFF doubles the scale after `period` updates without overflow.
    """

    factor: float | tf.Tensor
    unscaled_by_learning_rate: bool
    rule: str = ""
    period: int = 2000

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the scaled loss, from which gradients are computed."""
        return loss * self.factor

    def adjusted_learning_rate(self, rate: tf.Tensor) -> tf.Tensor:
        """Return the learning rate that the update uses."""
        return rate / self.factor if self.unscaled_by_learning_rate else rate

    @property
    def gradient_divisor(self) -> float | tf.Tensor:
        """The number by which the update divides gradients."""
        return 1.0 if self.unscaled_by_learning_rate else self.factor

    def first_state(self) -> tf.Tensor:
        """Return the first state, float32 [3]: the scale, the updates since it last changed, the number of skipped
        updates."""
        return tf.stack([tf.constant(self.factor, tf.float32), 0.0, 0.0])

    def next_state(self, state: tf.Tensor, finite: tf.Tensor, largest: tf.Tensor, limit: float) -> tf.Tensor:
        """Return the state after an update. `finite` is True if all gradients of the update are finite. `largest` is the
        largest scaled gradient at a layer, and `limit` the smallest value that overflows."""
        scale, since, skipped = tf.unstack(state)
        if self.rule == BACK_OFF:
            factor = tf.where_v2(since + 1 >= self.period, 2.0, 1.0)
        else:
            room = tf.floor(tf.math.log(limit / ROOM / tf.maximum(largest, 1e-30)) / math.log(2.0))
            factor = tf.pow(2.0, tf.minimum(room, 1.0))
        factor = tf.where_v2(finite, factor, 0.5)
        changed = tf.clip_by_value(scale * factor, MIN_SCALE, MAX_SCALE)
        since = tf.where_v2(tf.equal(factor, 1.0), since + 1, 0.0)
        return tf.stack([changed, since, skipped + tf.where_v2(finite, 0.0, 1.0)])
