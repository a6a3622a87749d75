"""Inference convolutions fused with their neighbours agree with float64. Neither threads nor other samples of a pass change a
bit.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from networks import built

from cnn_harness.emulator.inference.inference_program import logits_of
from cnn_harness.emulator.lowering import lists
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.network import LINEAR
from cnn_harness.emulator.network.recorder import record_layers
from cnn_harness.emulator.plan.precision import SINGLE
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.Models._layers import Initial, Layers, Tensor
from cnn_harness.Models._norms import BatchNorm

pytestmark = pytest.mark.skipif(library.load() is None, reason="the kernels are not built")
INITIAL, NORM = Initial(2.0, "fan_out"), BatchNorm(epsilon=1e-3)
Network = Callable[[Layers, Tensor], Tensor]


def normed(layers: Layers, x: Tensor, activation: str) -> Tensor:
    return layers.norm(x, NORM) if activation == LINEAR else layers.norm_activation(x, NORM, activation)


def pointwise(filters: int, activation: str = "swish") -> Network:
    return lambda layers, x: normed(layers, layers.conv(x, filters, 1, INITIAL), activation)


def depthwise(kernel: int, stride: int, activation: str = "swish") -> Network:
    def network(layers: Layers, x: Tensor) -> Tensor:
        channels = layers.channels(x)
        return normed(layers, layers.conv(x, channels, kernel, INITIAL, stride=stride, groups=channels), activation)

    return network


def squeezed(filters: int) -> Network:
    """Squeeze and excitation, a projection of the gated result, and a dense layer of the mean."""

    def network(layers: Layers, x: Tensor) -> Tensor:
        gate = layers.global_mean(x)
        for name, width, act in (("1", 5, "swish"), ("2", layers.channels(x), "sigmoid")):
            with layers.scope(name):
                gate = getattr(layers, act)(layers.conv(gate, width, 1, INITIAL, bias=True))
        y = layers.conv(layers.gate(x, gate), filters, 1, INITIAL)
        return layers.dense(layers.global_mean(layers.norm(y, NORM)), 7)

    return network


def biased(filters: int) -> Network:
    return lambda layers, x: layers.dense(layers.relu(layers.conv(x, filters, 1, INITIAL, bias=True)), 9)


# batch, height, width, channels: pixels and channels divisible by tiles and not; fewer and more pixels than filters;
# windows beyond every edge; results larger than the caches
CASES = {
    "pointwise": ((2, 14, 14, 32), pointwise(64), "PointwiseConvNorm"),
    "few filters": ((1, 9, 11, 24), pointwise(8, LINEAR), "PointwiseConvNorm"),
    "odd numbers": ((3, 5, 7, 13), pointwise(19, "relu6"), "PointwiseConvNorm"),
    "one pixel": ((1, 1, 1, 40), pointwise(77, "relu"), "PointwiseConvNorm"),
    "deep": ((1, 7, 7, 1152), pointwise(320), "PointwiseConvNorm"),
    "large": ((4, 112, 112, 16), pointwise(96), "PointwiseConvNorm"),
    "large and odd": ((5, 112, 112, 4), pointwise(90), "PointwiseConvNorm"),
    "depthwise 3": ((2, 14, 14, 32), depthwise(3, 1), "DepthwiseConvNorm"),
    "depthwise 3, stride 2": ((1, 15, 9, 24), depthwise(3, 2, "relu"), "DepthwiseConvNorm"),
    "depthwise 5": ((3, 7, 7, 48), depthwise(5, 1), "DepthwiseConvNorm"),
    "depthwise 5, stride 2": ((2, 8, 13, 20), depthwise(5, 2, LINEAR), "DepthwiseConvNorm"),
    "depthwise 2, stride 3": ((2, 6, 7, 3), depthwise(2, 3), "DepthwiseConvNorm"),
    "wider than the image": ((2, 2, 3, 16), depthwise(7, 1), "DepthwiseConvNorm"),
    "large depthwise": ((5, 70, 131, 96), depthwise(3, 1), "DepthwiseConvNorm"),
    "gate and means": ((3, 12, 10, 40), squeezed(24), "PointwiseConvBias"),
    "gate and means of one": ((1, 9, 8, 300), squeezed(24), "PointwiseConvBias"),
    "bias": ((2, 6, 6, 10), biased(33), "PointwiseConvBias"),
}


def drawn(case: str) -> dict[str, np.ndarray]:
    """Return the network's weights by name."""
    (_, *shape), network, _ = CASES[case]
    random = np.random.default_rng(len(case))
    weights = {}
    for variable in record_layers(network, shape).variables:
        value = random.normal(0, 1, variable.shape) / np.sqrt(max(np.prod(variable.shape[:-1]), 1))
        weights[variable.name] = np.abs(value) + 0.5 if variable.name.endswith("variance") else value
    return weights


def outcome(case: str, x: np.ndarray, dtype: type = np.float32) -> np.ndarray:
    """Return the network's answer; in float64 layer by layer, by TensorFlow."""
    _, network, operation = CASES[case]
    with new_graph().as_default() as graph:
        fed = tf.placeholder(dtype, x.shape)
        weights = {name: tf.constant(value, dtype) for name, value in drawn(case).items()}
        with patch.object(library, "lanes", return_value=16):  # with narrower vectors, inference uses oneDNN
            y, _ = built(network, weights, fed, training=False)
        assert (f"Emulator{operation}" in {each.type for each in graph.get_operations()}) == (dtype == np.float32)
        with tf.Session(graph=graph) as session:
            return session.run(y, {fed: x})


def images(case: str) -> np.ndarray:
    return np.random.default_rng(1).normal(0.5, 1, CASES[case][0])


@pytest.mark.parametrize("case", CASES)
def test_results_match_float64(case):
    x = images(case)
    found, expected = outcome(case, x), outcome(case, x, np.float64)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6 * np.abs(expected).max())


SHARED = ("large", "large depthwise", "gate and means", "gate and means of one", "deep")


def shared_work() -> list[np.ndarray]:
    """Return results that several threads share."""
    return [outcome(case, images(case)) for case in SHARED]


@pytest.mark.parametrize("case", SHARED)
def test_other_samples_change_no_bit(case):
    x = images(case)
    alone = outcome(case, x)
    again = outcome(case, np.concatenate([x, x[::-1]]))
    assert np.array_equal(again[: len(x)], alone) and np.array_equal(again[len(x) :], alone[::-1])


def fused_operations(graph: tf.Graph) -> int:
    return sum("ConvNorm" in each.type or "ConvBias" in each.type for each in graph.get_operations())


@pytest.mark.parametrize(
    "words",
    [
        "--model efficientnet --model-size cifar --batch-norm",
        "--model efficientnet --model-size cifar --batch-norm --group-dim 8 --use-relu6 --no-se",
        "--model resnet --model-size 29 --batch-norm",
        "--model squeezenet",
    ],
)
def test_fused_networks_match_separate_operations(words, monkeypatch):
    run = prepare(
        cli.parse([*words.split(), "--dataset", "cifar-10", "--generated-data"], "train", environ={}).options, {}
    ).run
    random = np.random.default_rng(5)
    monkeypatch.setattr(library, "lanes", lambda: 16)  # with narrower vectors, inference uses oneDNN
    with new_graph().as_default() as graph:
        weights = {}
        for variable in run.network.variables:
            value = random.normal(0, 1, variable.shape) / np.sqrt(max(np.prod(variable.shape[:-1]), 1))
            weights[variable.name] = tf.constant(np.abs(value) + 0.5 if "variance" in variable.name else value, tf.float32)
        x = tf.constant(random.normal(0, 1, (3, 32, 32, 3)), tf.float32)
        fused, operations = logits_of(run.network, weights, x, SINGLE), fused_operations(graph)
        monkeypatch.setattr(lists, "fuse", lambda network, precision, target: network)
        single = logits_of(run.network, weights, x, SINGLE)
        assert operations == fused_operations(graph) > 0
        with tf.Session() as session:
            found, expected = session.run([fused, single])
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
