"""Flip a bit of a tensor in the graph of a training (--inject)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base.gradient_rules import with_gradient
from cnn_harness.emulator.plan.fault import Fault


def injected(
    fault: Fault | None, kind: str, name: str, x: tf.Tensor, step: tf.Tensor, pass_index: tf.Tensor | int = 0
) -> tf.Tensor:
    """Return x. In pass 0 of the fault's update, flip a bit of its middle element, taken as an FP32 number. `step` is the
    number of earlier updates. The gradient does not change."""
    if fault is None or (kind, name) != (fault.kind, fault.variable):
        return x
    now = tf.logical_and(tf.equal(step, fault.update - 1), tf.equal(pass_index, 0))
    mask = np.asarray(1 << fault.bit, np.uint32).view(np.int32)

    def flipped(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        flat = tf.reshape(x, [-1])
        middle = tf.size(flat) // 2
        bits = tf.bitcast(tf.cast(flat[middle], tf.float32), tf.int32)
        number = tf.cast(tf.bitcast(tf.bitwise.bitwise_xor(bits, mask), tf.float32), x.dtype)
        flat = tf.tensor_scatter_nd_update(flat, [[middle]], [tf.where_v2(now, number, flat[middle])])
        return tf.ensure_shape(tf.reshape(flat, tf.shape(x)), x.shape), lambda dy: dy

    return with_gradient(flipped)(x)
