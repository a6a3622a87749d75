"""Norms match float64 NumPy, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from networks import built, evaluated, random

from cnn_harness.emulator.lowering.tensorflow import NORMS
from cnn_harness.Models import _norms
from cnn_harness.Models._norms import BatchNorm, GroupNorm


def norm_of(x, policy, gamma=None, beta=None, training=True, moving=None):
    """Return (y, statistics) of one norm."""
    channels = x.shape[-1]
    scope = policy.scope
    weights = {
        f"{scope}/gamma": tf.ones([channels]) if gamma is None else gamma,
        f"{scope}/beta": tf.zeros([channels]) if beta is None else beta,
        **(moving or {}),
    }
    y, lowering = built(lambda layers, x: layers.norm(x, policy), weights, x, training=training)
    return y, lowering.statistics


def test_every_norm_kind_has_its_arithmetic():
    assert set(NORMS) == {kind for kind in _norms.KINDS if kind.scope}


def numpy_group_norm(x, gamma, beta, groups, epsilon):
    """Normalise with group(c) = c mod groups, one sample and channel at a time, in float64."""
    x = x.astype(np.float64)
    y = np.empty_like(x)
    for n in range(len(x)):
        for g in range(groups):
            members = [c for c in range(x.shape[-1]) if c % groups == g]
            part = x[n][..., members]
            y[n][..., members] = (part - part.mean()) / np.sqrt(part.var() + epsilon)
    return y * gamma + beta


def numpy_batch_norm(x, gamma, beta, epsilon):
    x = x.astype(np.float64)
    return (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + epsilon) * gamma + beta


def slope(function, arguments, index, direction):
    """Return the derivative of a float64 function of several arrays along a direction of one of them."""
    step = 1e-5

    def at(t):
        moved = [argument.astype(np.float64) for argument in arguments]
        moved[index] = moved[index] + t * direction
        return function(*moved)

    return (at(step) - at(-step)) / (2 * step)


def assert_norm(policy, reference, x, tolerance=2e-5):
    """Compare value, and gradients along random directions, with a float64 reference(x, gamma, beta)."""
    channels = x.shape[-1]
    gamma, beta, weight = 1 + 0.3 * random(7, channels), random(8, channels), random(9, *x.shape)

    def make(x, gamma, beta):
        y, _ = norm_of(x, policy, gamma, beta)
        return y, tf.gradients(tf.reduce_sum(y * weight), [x, gamma, beta])

    y, gradients = evaluated(make, {"x": x, "gamma": gamma, "beta": beta})
    assert np.abs(y - reference(x, gamma, beta)).max() < tolerance
    for index, gradient in enumerate(gradients):
        direction = random(10 + index, *gradient.shape)
        expected = slope(lambda *a: (weight * reference(*a)).sum(), [x, gamma, beta], index, direction)
        found = (gradient.astype(np.float64) * direction).sum()
        scale = np.linalg.norm(gradient)
        assert abs(found - expected) < 10 * tolerance * max(scale, 1.0)


@pytest.mark.parametrize("two_pass", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4, 12])
def test_group_norm_matches_float64(groups, two_pass):
    policy = GroupNorm(groups=groups, epsilon=1.53e-5, two_pass=two_pass)
    x = random(6, 3, 4, 5, 12) * np.arange(1, 13, dtype=np.float32) + 0.5
    assert_norm(policy, lambda *a: numpy_group_norm(*a, groups, policy.epsilon), x)


def test_batch_norm_matches_float64():
    policy = BatchNorm(epsilon=1e-5)
    x = random(6, 3, 4, 5, 6) * np.arange(1, 7, dtype=np.float32) + 0.5
    assert_norm(policy, lambda *a: numpy_batch_norm(*a, policy.epsilon), x)


def test_batch_norm_reports_mean_and_biased_variance():
    x = random(6, 2, 1, 2, 5) + 3
    statistics = evaluated(lambda x: norm_of(x, BatchNorm())[1], {"x": x})
    assert list(statistics) == ["batch_norm/moving_mean", "batch_norm/moving_variance"]
    mean, variance = statistics.values()
    assert np.abs(mean - x.mean((0, 1, 2))).max() < 1e-5
    assert np.abs(variance - x.astype(np.float64).var((0, 1, 2))).max() < 1e-5  # four values: unbiased is a third more


def test_batch_norm_evaluates_with_moving_statistics():
    x, mean, variance = random(6, 2, 3, 3, 5), random(7, 5), np.float32([0.5, 1, 2, 1e-6, 4])
    gamma, beta = random(8, 5), random(9, 5)

    def make(x):
        moving = {"batch_norm/moving_mean": tf.constant(mean), "batch_norm/moving_variance": tf.constant(variance)}
        return norm_of(x, BatchNorm(epsilon=1e-3), gamma, beta, training=False, moving=moving)

    y, statistics = evaluated(make, {"x": x})
    expected = (x.astype(np.float64) - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    assert statistics == {} and np.abs(y - expected).max() < 1e-4
