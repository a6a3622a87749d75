"""A frozen batch norm normalises in training as in validation."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from networks import recorded

from cnn_harness.base.gradient_rules import gradients
from cnn_harness.emulator.layers import batch_norm
from cnn_harness.emulator.lowering.lists import prepared
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan import precision
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.resolve import prepare

ACTIVATIONS = {"linear": tf.identity, "relu": tf.nn.relu, "relu6": tf.nn.relu6, "swish": lambda z: z * tf.sigmoid(z)}


@pytest.fixture(params=["1", "off"])
def kernels(request, monkeypatch) -> None:
    """Run with and without native kernels."""
    monkeypatch.setenv(library.SWITCH, request.param)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_value_and_gradient_match_float64(activation, kernels):
    draw = np.random.default_rng(4)
    x, dy = (draw.normal(1, 3, (2, 5, 3, 7)) for _ in range(2))
    rows = [*draw.normal(1, 0.5, (3, 7)), draw.uniform(0.1, 4, 7)]
    with new_graph().as_default(), tf.Session() as session:
        wide = [tf.constant(each) for each in (x, dy, *rows)]
        narrow = [tf.cast(each, tf.float32) for each in wide]
        y = batch_norm.frozen_batch_norm(narrow[0], *narrow[2:4], tuple(narrow[4:]), 1e-3, activation)
        gamma, beta, mean, variance = wide[2:]
        exact = ACTIVATIONS[activation]((wide[0] - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta)
        found = session.run([y, *gradients([y], narrow[:1], narrow[1])])
        expected = session.run([exact, *tf.gradients([exact], wide[:1], wide[1])])
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["32.32", "16.16", "16.32", "8.16", "bf16.32"])
def test_frozen_network_answers_like_validation(name, kernels):
    """The last bits may differ only if FP32 convolutions in training add in another order."""
    network, draw = recorded("resnet", "cifar", 8), np.random.default_rng(2)
    variables, source = network.variables, network.nodes[0].source
    frozen = {variable.name for variable in variables if variable.decay is not None}
    policy = PrecisionPolicy(precision.by_name(name))
    with new_graph().as_default(), tf.Session() as session:
        weights = {
            v.name: tf.constant(draw.uniform(0.5, 1.5, v.shape) * (1 if len(v.shape) == 1 else 0.1), tf.float32)
            for v in variables
        }
        weights = {v.name: policy.cast_weight(v, weights[v.name]) for v in variables}
        images = policy.cast_input(tf.constant(draw.normal(0, 1, (3, *source)), tf.float32))
        positions = {"positions": tf.range(3, dtype=tf.int64)}
        ways = {"training": True, "frozen": frozen}, {"training": False}, {"training": True}
        targets = [policy.target("/cpu:0", **way) for way in ways]
        lowerings = [policy.lowering(weights, target, **(positions if target.training else {})) for target in targets]
        logits = [low.run(prepared(network, policy.precision, low.target), images) for low in lowerings]
        frozen_logits, validated, of_batch = session.run(logits)
    assert not lowerings[0].statistics and lowerings[2].statistics
    assert not np.allclose(of_batch, validated, rtol=0.1)
    np.testing.assert_allclose(frozen_logits, validated, rtol=1e-5 if name == "32.32" else 0)


@pytest.mark.parametrize(
    ("words", "statistics", "frozen"),
    [
        ("--dataset fashion-mnist --variable-filter fc1", "moving", 7),
        ("--dataset fashion-mnist --variable-filter fc1 b3/0/1/batch_norm/beta", "moving", 6),
        ("--dataset fashion-mnist --variable-filter fc1 --frozen-norm-statistics batch", "batch", 7),
        ("--dataset fashion-mnist", "moving", 0),
        ("--config mk2_resnet8_test --generated-data --variable-filter fc1", "batch", 7),
        ("--config mk2_resnet8_test --generated-data --variable-filter fc1 --frozen-norm-statistics moving", "moving", 7),
    ],
)
def test_original_recipes_keep_batch_statistics(words, statistics, frozen):
    run = prepare(cli.parse([*words.split(), "--model-size", "8"], "train", environ={}).options, {}).run
    assert run.options.training.frozen_norm_statistics == statistics
    assert len(run.frozen_norms) == frozen
    assert len(run.frozen_statistics) == (2 * frozen if statistics == "moving" else 0)
    assert ("Frozen norms" in run.summary(Execution(seed=0))) == (frozen > 0)
