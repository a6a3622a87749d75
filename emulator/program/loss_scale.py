"""Loss scaling, which keeps gradients within the range of a narrow format, and rules for automatic scales (arXiv
1710.03740)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

BACK_OFF, LARGEST = "back-off", "largest"  # rules of automatic loss scaling
MIN_SCALE, MAX_SCALE = 2.0**-24, 2.0**40
ROOM = 8.0  # LARGEST keeps this factor between the largest gradient and its format's largest number


@dataclass(frozen=True)
class LossScale:
    """The loss is multiplied by `factor`; the update divides the learning rate or the gradient by it.

    SGD and momentum are linear in the gradient, so the rate is divided once. Other rules divide the gradients before the
    update, and so do all rules if the scale changes. `rule`: how the run adapts the scale, starting with `factor`; "" for a
    fixed scale. With a rule, updates whose gradients overflow are skipped. `period`: updates without overflow after which
    BACK_OFF doubles the scale.
    """

    factor: float | tf.Tensor
    unscaled_by_learning_rate: bool
    rule: str = ""
    period: int = 2000

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss to differentiate."""
        return loss * self.factor

    def adjusted_learning_rate(self, rate: tf.Tensor) -> tf.Tensor:
        """Return the learning rate for the update."""
        return rate / self.factor if self.unscaled_by_learning_rate else rate

    @property
    def gradient_divisor(self) -> float | tf.Tensor:
        """The divisor of the gradient for the update."""
        return 1.0 if self.unscaled_by_learning_rate else self.factor

    def first_state(self) -> tf.Tensor:
        """Return float32 [3]: the scale, updates since its last change, skipped updates."""
        return tf.stack([tf.constant(self.factor, tf.float32), 0.0, 0.0])

    def next_state(self, state: tf.Tensor, finite: tf.Tensor, largest: tf.Tensor, limit: float) -> tf.Tensor:
        """Return the state after an update. `finite`: whether its gradients are; `largest`: the largest gradient at a layer,
        times the scale; `limit`: the least value that overflows."""
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
