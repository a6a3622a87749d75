"""Dropout and drop-path draw their masks by layer, seed and position of the sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from networks import built, evaluated


def kept(method, positions, amount, *, seed=5, scope="all", training=True, shape=(3, 3, 40)):
    """Return ones after a dropping method."""

    def dropped(layers, x):
        with layers.scope(scope):
            return getattr(layers, method)(x, amount)

    def make():
        counted = tf.constant([*positions], tf.int64)
        return built(dropped, {}, tf.ones([len(positions), *shape]), training=training, seed=seed, positions=counted)[0]

    return evaluated(make)


METHODS = [("dropout", 0.3, 0.7), ("drop_path", 0.7, 0.7)]


@pytest.mark.parametrize("method, amount, survival", METHODS)
def test_masks_belong_to_sample_position(method, amount, survival):
    positions = [7, 8, 9, 1 << 33, 0, 3]
    whole = kept(method, positions, amount)
    parts = [kept(method, positions[a:b], amount) for a, b in ((0, 1), (1, 4), (4, 6))]
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(kept(method, positions[::-1], amount), whole[::-1])


@pytest.mark.parametrize("method, amount, survival", METHODS)
def test_masks_have_right_rate_and_scale(method, amount, survival):
    n = 4000
    shape = (1, 1, 40) if method == "dropout" else (2, 2, 3)
    mask = kept(method, range(n), amount, shape=shape)
    assert set(np.unique(mask)) == {np.float32(0), np.float32(1) / np.float32(survival)}
    draws = (mask.reshape(n, -1) > 0).astype(np.float64)
    if method == "drop_path":
        assert (draws == draws[:, :1]).all()  # whole samples
        draws = draws[:, :1]
    assert abs(draws.mean() - survival) < 4.5 * math.sqrt(survival * (1 - survival) / draws.size)
    for axis in range(draws.ndim):  # no element and no sample is favoured
        means = draws.mean(axis=axis)
        assert np.abs(means - survival).max() < 6 * math.sqrt(survival * (1 - survival) / draws.shape[axis]) + 1e-9


@pytest.mark.parametrize("method, amount, survival", METHODS)
def test_masks_differ_by_layer_and_seed(method, amount, survival):
    masks = [kept(method, range(200), amount, **change) for change in ({}, {"seed": 6}, {"scope": "other"})]
    agreement = survival**2 + (1 - survival) ** 2  # of independent masks
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs((masks[i] == masks[j]).mean() - agreement) < 0.18
    assert np.array_equal(masks[0], kept(method, range(200), amount))


@pytest.mark.parametrize("method, amount, survival", METHODS)
def test_nothing_drops_in_evaluation_or_at_zero(method, amount, survival):
    assert (kept(method, range(50), amount, training=False) == 1).all()
    assert (kept(method, range(50), 0.0 if method == "dropout" else 1.0) == 1).all()
