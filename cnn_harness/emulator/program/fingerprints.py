"""Fingerprints of gradients and weights, computed in the graph of a training (--fingerprints)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.emulator.program.training_spec import TrainingSpec


def fingerprints(
    training: TrainingSpec,
    gradients: Mapping[str, tf.Tensor],
    weights: Mapping[str, tf.Tensor],
    loss_scale: float | tf.Tensor,
) -> tf.Tensor:
    """Return int64 [instances, 2, tensors, 2], for the gradients and the weights of this and all other instances.

    The last axis has a hash of the tensor's bytes (FarmHash64), and the bits of its L2 norm in FP32. Norms of gradients are
    divided by the loss scale.
    """
    with tf.device(training.plan.stage_devices[0]):
        kinds = [[_row(gradients[name], loss_scale) for name in weights], [_row(x, 1.0) for x in weights.values()]]
        table, group = tf.stack(kinds)[None], training.group
        if group is None:
            return table
        # Each instance fills its own row, so the sum over the instances has all rows.
        return group.all_reduce(table * tf.one_hot(group.instance, group.size, dtype=tf.int64)[:, None, None, None])


def decoded(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes (uint64) and the norms (float32), both [instances, 2, tensors]."""
    return table[..., 0].view(np.uint64), table[..., 1].astype(np.int32).view(np.float32)


def _row(x: tf.Tensor, scale: float | tf.Tensor) -> tf.Tensor:
    x = tf.identity(x)
    hashed = tf.bitcast(tf.raw_ops.Fingerprint(data=tf.reshape(x, [1, -1]), method="farmhash64"), tf.int64)[0]
    norm = tf.norm(tf.cast(x, tf.float32)) / tf.cast(scale, tf.float32)
    return tf.stack([hashed, tf.cast(tf.bitcast(norm, tf.int32), tf.int64)])
