"""Estimate the gradient noise scale (McCandlish et al., arXiv 1812.06162, appendix A.1).

The gradient of a batch of B samples has the expected squared norm |G|^2 + S / B. Here G is the gradient of the whole data
set, and S is the trace of the covariance of one sample's gradient. An update has gradients of batches of two sizes: of its
passes, and their mean. Their squared norms give S and |G|^2; the noise scale is S / |G|^2, in samples.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.program.training_spec import TrainingSpec

SQUARED_NORM = "squared gradient norm"


def squared_norm(training: TrainingSpec, gradients: Mapping[str, tf.Tensor], loss_scale: float | tf.Tensor) -> tf.Tensor:
    """Return the squared L2 norm of all gradients together, divided by the squared loss scale. Add in FP32. Proxy variables
    do not count, because their gradients are not yet complete."""
    squares = []
    for name in (v.name for v in training.updated_variables if v.trainable and not v.proxy):
        with tf.device(gradients[name].device):
            squares.append(tf.reduce_sum(tf.square(tf.cast(gradients[name], training.dtype))))
    with tf.device(training.plan.stage_devices[0]):
        return tf.add_n(squares) / loss_scale**2


def estimates(squared_norms: np.ndarray, plan: ExecutionPlan) -> np.ndarray:
    """Return unbiased estimates of S and |G|^2, float64 [updates, 2].

    `squared_norms` [updates, 2] has the mean squared norm of the gradients of an update's passes, and the squared norm of
    their mean. An update needs at least two passes.
    """
    of_pass, of_update = np.asarray(squared_norms, np.float64).reshape(-1, 2).T
    with np.errstate(invalid="ignore"):  # gradients may have overflowed.
        trace = (of_pass - of_update) / (1 / plan.samples_per_pass - 1 / plan.global_batch)
        return np.stack([trace, of_update - trace / plan.global_batch], 1)
