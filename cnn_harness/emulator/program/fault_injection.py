"""Flip a bit of a tensor in the graph of a training (--inject)."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.emulator.plan.fault import Fault


def injected(
    fault: Fault | None, kind: str, name: str, x: tf.Tensor, step: tf.Tensor, pass_index: tf.Tensor | int = 0
) -> tf.Tensor:
    """Return x. In pass 0 of the fault's update, flip a bit of its middle element, taken as an FP32 number. `step` is the
    number of earlier updates."""
    if fault is None or (kind, name) != (fault.kind, fault.variable):
        return x
    size = int(np.prod(x.shape.as_list()))
    mask = np.zeros(size, np.uint32)
    mask[size // 2] = 1 << fault.bit
    now = tf.logical_and(tf.equal(step, fault.update - 1), tf.equal(pass_index, 0))
    bits = tf.bitcast(tf.cast(x, tf.float32), tf.int32)
    flipped = tf.bitwise.bitwise_xor(bits, tf.reshape(tf.constant(mask.view(np.int32)), x.shape))
    return tf.where_v2(now, tf.cast(tf.bitcast(flipped, tf.float32), x.dtype), x)
