"""Mixup (Zhang et al., arXiv 1710.09412) and cutmix (Yun et al., arXiv 1905.04899) of the images of a micro-batch.

Every random draw depends only on the seed and on the position of the sample or of the micro-batch in training. Images are
therefore mixed identically on host and device, for every --fold, and after resuming.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from cnn_harness.base import draws

_CANDIDATES = 8
_SMALLEST_ALPHA = 1e-300  # smaller alphas are raised to this, which mixes nothing and keeps logarithms finite
_CUTMIX_TAIL = math.exp(-4.0)  # in version 1, the smallest kept share is 1 + ln(exp(-4)) / 4 = 0


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Mixes the images of each micro-batch.

    `mixup_alpha` is the value of both parameters of mixup's Beta distribution; 0 disables mixup.
    `cutmix_lambda` is the share of an image's area that cutmix keeps; 1 disables cutmix. In `cutmix_version` 1, the
    share varies at random around this value.
    `micro_batch_size` is the number of images in a micro-batch, at least 2.
    """

    mixup_alpha: float
    cutmix_lambda: float
    cutmix_version: int
    micro_batch_size: int
    seed: draws.Seed

    def __call__(self, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the features of whole micro-batches, with mixed images [batch, side, side, 3].

        Add "labels", int32 [batch, n], and "shares", float32 [batch, n]. The shares of an image sum to 1.
        """
        image = self._by_micro_batch(features["image"])
        position = self._by_micro_batch(features["position"])
        labels, shares = [self._by_micro_batch(features["label"])], [tf.ones_like(position, tf.float32)]
        if self.mixup_alpha > 0:
            lam = self._mixup_lambda(position)
            image = _per_pixel(lam) * image + (1 - _per_pixel(lam)) * tf.roll(image, 1, 1)
            labels, shares = [labels[0], tf.roll(labels[0], 1, 1)], [lam, 1 - lam]
        if self.cutmix_lambda < 1:
            inside, share = self._boxes(position[:, 0] // self.micro_batch_size, image.shape[2])
            shift = min(2, self.micro_batch_size - 1)
            image = tf.where_v2(inside, tf.roll(image, shift, 1), image)
            labels += [tf.roll(each, shift, 1) for each in labels]
            shares = [share * each for each in shares] + [(1 - share) * tf.roll(each, shift, 1) for each in shares]
        mixed = {"image": image, "labels": tf.stack(labels, -1), "shares": tf.stack(shares, -1)}
        return {**features, **{name: tf.reshape(x, [-1, *x.shape[2:]]) for name, x in mixed.items()}}

    def _by_micro_batch(self, x: tf.Tensor) -> tf.Tensor:
        """Reshape [batch, ...] to [micro-batches, images, ...]."""
        return tf.reshape(x, [-1, self.micro_batch_size, *x.shape[1:]])

    def _key(self, what: str) -> draws.Key:
        return draws.key(self.seed, f"mixing/{what}")

    def _mixup_lambda(self, position: tf.Tensor) -> tf.Tensor:
        """Draw m from Beta(alpha, alpha) for each position; return the larger of m and 1 - m, float32."""
        one, other = (self._log_gamma_draw(position, f"mixup/{k}") for k in range(2))
        m = tf.sigmoid(one - other)
        return tf.cast(tf.maximum(m, 1 - m), tf.float32)

    def _log_gamma_draw(self, position: tf.Tensor, what: str) -> tf.Tensor:
        """Return the logarithm of a Gamma(alpha) draw for each position, float64. The draw itself may underflow.

        The method multiplies a Gamma(alpha + 1) draw by u^(1 / alpha): Marsaglia and Tsang, "A simple method for
        generating gamma variables", ACM TOMS 26 (2000). At least 95 % of the candidates are accepted, so eight candidates
        are enough.
        """

        def uniform(use: str, candidate: tf.Tensor | int) -> tf.Tensor:
            drawn = draws.uniform(self._key(f"{what}/{use}"), position[..., None], candidate)
            return tf.cast(drawn, tf.float64) + 2.0**-25  # never 0

        candidate = tf.range(_CANDIDATES)
        d = self.mixup_alpha + 2 / 3
        normal = tf.sqrt(-2 * tf.math.log(uniform("radius", candidate)))
        normal *= tf.cos(2 * math.pi * uniform("angle", candidate))
        v = tf.pow(1 + normal / math.sqrt(9 * d), 3)
        log_v = tf.math.log(tf.maximum(v, 1e-300))
        accepted = tf.math.log(uniform("accept", candidate)) < tf.square(normal) / 2 + d * (1 - v + log_v)
        accepted = tf.logical_and(accepted, v > 0)
        first = tf.argmax(tf.cast(accepted, tf.int32), -1)
        power = tf.math.log(uniform("power", 0)[..., 0]) / max(self.mixup_alpha, _SMALLEST_ALPHA)
        return math.log(d) + tf.gather(log_v, first, batch_dims=2) + power

    def _boxes(self, index: tf.Tensor, side: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mask of pasted pixels, bool [n, 1, side, side, 1], and the exact share of kept pixels,
        float32 [n, 1], for each micro-batch."""
        cut = tf.sqrt(1 - self._cutmix_lambda(index)) * side
        cut = tf.cast(tf.round(cut), tf.int32)
        inside = []
        for axis in ("rows", "columns"):
            centre = draws.uniform_below(side, self._key(f"cutmix/{axis}"), index)
            first = tf.clip_by_value(centre - cut // 2, 0, side - cut)[:, None]
            inside.append(tf.logical_and(tf.range(side) >= first, tf.range(side) < first + cut[:, None]))
        box = tf.logical_and(inside[0][:, None, :, None, None], inside[1][:, None, None, :, None])
        return box, (1 - tf.cast(cut * cut, tf.float32) / side**2)[:, None]

    def _cutmix_lambda(self, index: tf.Tensor) -> tf.Tensor:
        """Return the share of area that each micro-batch's images keep, float32 [n]."""
        if self.cutmix_version == 2:
            return tf.fill(tf.shape(index), tf.constant(self.cutmix_lambda, tf.float32))
        keeps_all = draws.uniform(self._key("cutmix/whole"), index) < 1.55 * self.cutmix_lambda - 0.96
        v = _CUTMIX_TAIL + (1 - _CUTMIX_TAIL) * draws.uniform(self._key("cutmix/part"), index)
        return tf.where_v2(keeps_all, tf.ones_like(v), 1 + tf.math.log(v) / 4)


def _per_pixel(per_image: tf.Tensor) -> tf.Tensor:
    return per_image[:, :, None, None, None]
