"""A two-layer network with numbers of few bits, so that FP32 represents every sum of a pass exactly."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.network.recorder import record
from cnn_harness.Models._layers import GLOROT
from cnn_harness.Models._segments import Segment

PASSES, BATCH = 2, 2


def network() -> Network:
    def one(layers, x):
        with layers.scope("one"):
            return layers.relu(layers.conv(x, 3, 1, GLOROT, bias=True))

    def two(layers, x):
        with layers.scope("two"):
            return layers.dense(layers.flatten(x), 2)

    return record([Segment("one", one), Segment("two", two)], 1, 2)


def numbers() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return weights, images [passes, batch, 1, 1, 2] and targets [passes, batch, 2], of few bits each."""
    draw = np.random.default_rng(12)

    def some(shape, step, most):
        return draw.integers(-most / step, most / step + 1, shape) * step

    weights = {
        "all/one/conv/conv2d/kernel": some((1, 1, 2, 3), 2.0**-5, 1), "all/one/conv/conv2d/bias": some(3, 0.25, 1),
        "all/two/dense/kernel": some((3, 2), 2.0**-5, 1), "all/two/dense/bias": some(2, 0.25, 1),
    }  # fmt: skip
    return weights, some((PASSES, BATCH, 1, 1, 2), 1, 2), some((PASSES, BATCH, 2), 0.5, 2)


def features(seed, element, step, m):
    """Return the images and targets of pass m."""
    _, images, targets = numbers()
    return {
        "image": tf.gather(tf.constant(images, tf.float32), m),
        "target": tf.gather(tf.constant(targets, tf.float32), m),
        "label": tf.zeros([BATCH], tf.int32),
        "position": tf.range(BATCH, dtype=tf.int64),
    }


def loss(logits, features):
    """Return half the squared distance from the target, [batch]."""
    return tf.reduce_sum(tf.square(logits - features["target"]), 1) / 2
