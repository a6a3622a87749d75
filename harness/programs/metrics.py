"""Accuracies of a micro-batch, sample by sample."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

TOP = 5  # classes of the second accuracy in validation


def correct(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """1.0 where the largest logit is the label's, [batch] float32."""
    return tf.cast(tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels), tf.float32)


def top_k_correct(logits: tf.Tensor, labels: tf.Tensor, k: int) -> tf.Tensor:
    """1.0 where the label is among the k largest logits, [batch] float32; a label below 0 is never."""
    best = tf.math.top_k(logits, min(k, logits.shape[-1])).indices
    return tf.cast(tf.reduce_any(tf.equal(best, labels[:, None]), axis=-1), tf.float32)
