"""The loss of a micro-batch."""

from __future__ import annotations

import tensorflow.compat.v1 as tf


def cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, smoothing: float = 0.0, shares: tf.Tensor | None = None
) -> tf.Tensor:
    """Softmax cross entropy of each sample, [batch]. `labels` [batch]; or [batch, n], of which a picture holds the `shares`
    [batch, n]. A class' target is 1 - smoothing, that of each other of the C classes smoothing / (C - 1); the targets of
    several labels are mixed in those shares."""
    if not smoothing and shares is None:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    classes = logits.shape[-1]
    targets = tf.one_hot(labels, classes, 1.0 - smoothing, smoothing / (classes - 1), dtype=logits.dtype)
    if shares is not None:
        targets = tf.reduce_sum(targets * tf.cast(shares, logits.dtype)[..., None], axis=1)
    return tf.nn.softmax_cross_entropy_with_logits_v2(labels=targets, logits=logits)
