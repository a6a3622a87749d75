"""Initial values follow the published rules, and depend on seed and name only."""

from __future__ import annotations

import math

import numpy as np
import pytest
from networks import evaluated, recorded

from cnn_harness.emulator.layers.initial_values import initial_value
from cnn_harness.Models._layers import Initial, Variable

G16 = {"group_dim": 16, "expand_ratio": 4}


def initial(variables, seed):
    return dict(evaluated(lambda: {variable.name: initial_value(variable, seed) for variable in variables}))


def variance_expected(name, model, shape):
    """Return (variance, whether uniform) by the rule in the papers' code."""
    if name.endswith("dense/kernel"):
        return 2 / sum(shape), True
    height, width, fan_in, fan_out = shape
    if model != "efficientnet":
        return 1 / (height * width * fan_in), False
    return 2 / (height * width * (fan_in if "/b/" in name else fan_out)), False


@pytest.mark.parametrize(
    "model, family, size, changes",
    [
        ("resnet", "cifar", 20, {}),
        ("resnext", "cifar", 11, {}),
        ("efficientnet", "imagenet", "B0", {}),
        ("efficientnet", "cifar", "CIFAR", G16),
    ],
)
def test_initial_values_follow_published_rule(model, family, size, changes):
    variables = recorded(model, family, size, **changes).variables
    for name, value in initial(variables, 11).items():
        if not name.endswith("kernel"):
            constant = 1.0 if name.endswith(("gamma", "moving_variance")) else 0.0
            assert (value == constant).all()
            continue
        variance, uniform = variance_expected(name, model, value.shape)
        deviation, n = math.sqrt(variance), value.size
        # fourth moments: 1.8 for the uniform, below 2.4 for the truncated normal
        assert abs(value.astype(np.float64).var() / variance - 1) < 5 * math.sqrt(1.4 / n) + 2 / n, name
        assert abs(value.astype(np.float64).mean()) < 5 * deviation / math.sqrt(n), name
        bound = math.sqrt(3) if uniform else 2 / 0.87962566
        assert np.abs(value).max() <= bound * deviation * (1 + 1e-6), name
        if n > 2000:
            assert np.abs(value).max() > 0.97 * bound * deviation, name  # close to the bound


def test_initial_values_depend_on_seed_and_name():
    variables = recorded("resnet", "cifar", 8).variables
    first, backwards = initial(variables, 4), initial(variables[::-1][3:], 4)
    assert all(np.array_equal(value, first[name]) for name, value in backwards.items())
    kernels = [name for name in first if name.endswith("kernel")]
    other = initial(variables, 5)
    assert not any(np.array_equal(first[name], other[name]) for name in kernels)
    rule = Initial(1.0, "fan_in")
    same_shape = initial([Variable(name, (3, 3, 8, 8), rule) for name in ("all/x/kernel", "all/y/kernel")], 4)
    assert not np.array_equal(*same_shape.values())
