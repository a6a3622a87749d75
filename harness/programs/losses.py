"""The loss of a micro-batch and its accuracies, sample by sample."""

from __future__ import annotations

import tensorflow.compat.v1 as tf


def cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, smoothing: float = 0.0, shares: tf.Tensor | None = None
) -> tf.Tensor:
    """Return the softmax cross entropy of each sample, [batch]. `labels` is [batch], or [batch, n] for images that mix n
    others in the `shares` [batch, n]. The target of the class is 1 - smoothing, that of each other of C classes
    smoothing / (C - 1)."""
    if not smoothing and shares is None:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    classes = logits.shape[-1]
    targets = tf.one_hot(labels, classes, 1.0 - smoothing, smoothing / (classes - 1), dtype=logits.dtype)
    if shares is not None:
        targets = tf.reduce_sum(targets * tf.cast(shares, logits.dtype)[..., None], axis=1)
    return tf.nn.softmax_cross_entropy_with_logits_v2(labels=targets, logits=logits)


def correct(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return 1.0 where the largest logit is the label's, [batch] float32."""
    return tf.cast(tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels), tf.float32)


def top_5_correct(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return 1.0 where the label is among the 5 largest logits, [batch] float32; never for a label below 0."""
    best = tf.math.top_k(logits, min(5, logits.shape[-1])).indices
    return tf.cast(tf.reduce_any(tf.equal(best, labels[:, None]), axis=-1), tf.float32)
