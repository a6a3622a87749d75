"""Compute loss and accuracy of each sample of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow.compat.v1 as tf


@dataclass(frozen=True)
class Loss:
    """The loss function of a training or validation.

    `kind` is a key of LOSSES. `class_weights` contains a factor on the loss for each class, like Keras' `class_weight`, or
    nothing. The factor of a mixed image is the mean of its classes' factors, weighted by the share of each class.
    """

    kind: str
    smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()

    def __call__(self, logits: tf.Tensor, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return the loss of each sample, [batch].

        `features` contains "label" [batch]. For mixtures of n images, it also contains "labels" and "shares" [batch, n].
        """
        labels, shares = features.get("labels", features["label"]), features.get("shares")
        loss = LOSSES[self.kind](logits, labels, self.smoothing, shares)
        if not self.class_weights:
            return loss
        weights = tf.gather(tf.constant(self.class_weights, loss.dtype), labels)
        return loss * (weights if shares is None else tf.reduce_sum(weights * tf.cast(shares, loss.dtype), -1))


def cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, smoothing: float = 0.0, shares: tf.Tensor | None = None
) -> tf.Tensor:
    """Return the softmax cross entropy of each sample, [batch].

    `labels` has the shape [batch]. For mixtures of n images, `labels` and `shares` have the shape [batch, n].
    """
    if not smoothing and shares is None:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.nn.softmax_cross_entropy_with_logits_v2(labels=_targets(logits, labels, smoothing, shares), logits=logits)


def binary_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, smoothing: float = 0.0, shares: tf.Tensor | None = None
) -> tf.Tensor:
    """Return the binary cross entropy of each sample, [batch]: the mean over the classes, as in Keras and PyTorch.

    Each class is an independent yes/no decision (Wightman et al., "ResNet strikes back", arXiv 2110.00476). The targets of a
    mixed image are the shares of the classes in it. The arguments are the same as in `cross_entropy`.
    """
    targets = _targets(logits, labels, smoothing, shares)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits), -1)


LOSSES = {"cross-entropy": cross_entropy, "bce": binary_cross_entropy}


def _targets(logits: tf.Tensor, labels: tf.Tensor, smoothing: float, shares: tf.Tensor | None) -> tf.Tensor:
    """Return the targets [batch, classes]: 1 - smoothing for the true class, smoothing / (classes - 1) for the others."""
    classes = logits.shape[-1]
    targets = tf.one_hot(labels, classes, 1.0 - smoothing, smoothing / (classes - 1), dtype=logits.dtype)
    return targets if shares is None else tf.reduce_sum(targets * tf.cast(shares, logits.dtype)[..., None], axis=1)


def correct(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return 1.0 for each sample whose largest logit belongs to the label's class, otherwise 0.0; float32 [batch]."""
    return tf.cast(tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels), tf.float32)


def top_5_correct(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return 1.0 for each sample whose label is among the 5 classes with the largest logits, otherwise 0.0; float32 [batch].
    Negative labels give 0.0."""
    best = tf.math.top_k(logits, min(5, logits.shape[-1])).indices
    return tf.cast(tf.reduce_any(tf.equal(best, labels[:, None]), axis=-1), tf.float32)
