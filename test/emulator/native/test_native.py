"""The native kernels agree with float64, and no neighbouring sample changes a bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import succeed, timeless
from networks import built

from cnn_harness.base.gradient_rules import gradients
from cnn_harness.emulator.layers import batch_norm, group_norm
from cnn_harness.emulator.layers.rounding import Rounding
from cnn_harness.emulator.lowering import lists
from cnn_harness.emulator.lowering.tensorflow import MOMENTS
from cnn_harness.emulator.native import library
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.Models._layers import Layers, Tensor
from cnn_harness.Models._norms import BatchNorm, GroupNorm

needs_kernels = pytest.mark.skipif(not library.identity(), reason="the kernels are not built: there is no C++ compiler")
# more pixels than a block, fewer, no multiple of it, one; channels that do not fill a vector
SHAPES = [(3, 5, 7, 12), (1, 40, 33, 8), (2, 1, 1, 6), (4, 16, 16, 34), (2, 2, 300, 16)]
ACTIVATIONS = ("linear", "relu", "relu6", "swish")


def drawn(shape: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    """Return inputs of a norm, around a value other than 0."""
    random, channels = np.random.default_rng(seed), shape[-1]
    return {
        "x": random.normal(2, 1.5, shape), "gamma": random.normal(1, 0.5, channels), "beta": random.normal(0, 1, channels),
        "dy": random.normal(0, 1, shape),
    }  # fmt: skip


def outcome(function, inputs: dict[str, np.ndarray], dtype: type) -> list[np.ndarray]:
    """Return y and the gradients of x, gamma and beta."""
    with new_graph().as_default() as graph:
        fed = {name: tf.placeholder(dtype, value.shape) for name, value in inputs.items()}
        differentiated = [tensor for name, tensor in fed.items() if name != "dy"]
        y = function(*differentiated)
        outputs = [y, *gradients([y], differentiated, [fed["dy"]])]
        with tf.Session(graph=graph) as session:
            return session.run(outputs, {tensor: inputs[name] for name, tensor in fed.items()})


def grouped(policy: GroupNorm, activation: str):
    return lambda x, gamma, beta: group_norm.group_norm(x, gamma, beta, policy, activation)


def batched(parts: int, activation: str):
    """Batch norm by the kernels in FP32 and by the formula in float64."""

    def norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
        if x.dtype == tf.float32:
            return batch_norm.native_batch_norm(x, gamma, beta, parts, 1e-3, activation)[0]
        results = []
        for part in tf.split(x, parts):
            mean, variance = tf.nn.moments(part, [0, 1, 2])
            results.append((part - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta)
        act = {"linear": tf.identity, "relu": tf.nn.relu, "relu6": tf.nn.relu6, "swish": lambda z: z * tf.sigmoid(z)}
        return act[activation](tf.concat(results, 0))

    return norm


def assert_near(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> None:
    for own, exact in zip(found, expected, strict=True):
        assert own.dtype == np.float32
        np.testing.assert_allclose(own, exact, rtol=0, atol=tolerance * max(1.0, np.abs(exact).max()))


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_group_norm_matches_float64(shape, activation):
    inputs = drawn(shape, 1)
    for groups, contiguous, two_pass in itertools.product((1, 2, shape[-1]), (False, True), (False, True)):
        policy = GroupNorm(groups=groups, contiguous=contiguous, two_pass=two_pass, epsilon=1e-3)
        function = grouped(policy, activation)
        if shape[1] * shape[2] * shape[3] == groups:
            continue  # a group of one value has variance 0
        narrow = {name: value.astype(np.float32) for name, value in inputs.items()}
        exact = outcome(function, {name: value.astype(np.float64) for name, value in narrow.items()}, np.float64)
        assert_near(outcome(function, narrow, np.float32), exact, 2e-5)


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scaled", [True, False])
def test_proxy_norm_matches_float64(shape, scaled):
    """So does the gradient of every row of the proxy."""
    inputs, random = drawn(shape, 6), np.random.default_rng(7)
    dy = inputs.pop("dy")
    inputs |= {"mean": random.normal(0, 1, shape[-1]), "inverse": random.uniform(0.5, 2, shape[-1]), "dy": dy}
    narrow = {name: value.astype(np.float32) for name, value in inputs.items()}
    for activation, two_pass in itertools.product(("relu", "swish"), (False, True)):
        policy = GroupNorm(groups=2, two_pass=two_pass, epsilon=1e-3)

        def norm(x, gamma, beta, mean, inverse, policy=policy, activation=activation):
            return group_norm.group_norm(x, gamma, beta, policy, activation, proxy=(mean, inverse), scaled=scaled)

        exact = outcome(norm, {name: value.astype(np.float64) for name, value in narrow.items()}, np.float64)
        assert_near(outcome(norm, narrow, np.float32), exact, 2e-5)


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_batch_norm_matches_float64(shape, activation):
    inputs = drawn(shape, 2)
    for parts in {1, shape[0]}:
        if shape[0] // parts * shape[1] * shape[2] == 1:
            continue
        function = batched(parts, activation)
        narrow = {name: value.astype(np.float32) for name, value in inputs.items()}
        exact = outcome(function, {name: value.astype(np.float64) for name, value in narrow.items()}, np.float64)
        assert_near(outcome(function, narrow, np.float32), exact, 2e-5)


def normed(layers: Layers, x: Tensor, scope: str) -> Tensor:
    with layers.scope(scope):
        return layers.norm(x, BatchNorm(epsilon=1e-3))


def read_twice(layers: Layers, x: Tensor, shortcut: Tensor) -> Tensor:
    """Return a norm, and the end of a residual unit that reads it too."""
    read = normed(layers, x, "a")
    return layers.concat(read, layers.relu(layers.add(shortcut, read)))


# ends of residual units, with their norms and the number of shortcuts that a native norm adds
ENDS = {
    "norm last": (lambda layers, x, y: layers.relu(layers.add(y, normed(layers, x, "a"))), "a", 1),
    "norm first": (lambda layers, x, y: layers.relu(layers.add(normed(layers, x, "a"), y)), "a", 1),
    "two norms": (lambda layers, x, y: layers.relu(layers.add(normed(layers, y, "a"), normed(layers, x, "b"))), "ab", 1),
    "two readers": (read_twice, "a", 0),
    "without relu": (lambda layers, x, y: layers.swish(layers.add(y, normed(layers, x, "a"))), "a", 0),
}


def residual_end(end: str, inputs: dict[str, np.ndarray], parts: int) -> tuple[list[np.ndarray], int]:
    """Return output, gradients and moments of a residual unit's end, and the number of shortcuts that the native norm
    added."""
    build, norms, _ = ENDS[end]
    with new_graph().as_default() as graph:
        fed = {name: tf.placeholder(tf.float32, value.shape) for name, value in inputs.items()}
        x, gamma, beta, shortcut = fed.values()
        weights = {f"{scope}/batch_norm/{name}": fed[name] for scope in norms for name in ("gamma", "beta")}
        y, lowering = built(build, weights, x, shortcut, norm_parts=parts)
        dy = tf.random.stateless_normal(y.shape, [3, 4])
        fetched = [y, *gradients([y], [x, gamma, beta, shortcut], [dy]), *lowering.statistics.values()]
        assert set(lowering.statistics) == {f"{scope}/batch_norm/{name}" for scope in norms for name in MOMENTS}
        own = [op for op in graph.get_operations() if op.type == "EmulatorNorm"]
        assert len(own) == len(norms)
        with tf.Session(graph=graph) as session:
            values = session.run(fetched, {tensor: inputs[name] for name, tensor in fed.items()})
        return values, sum(op.get_attr("shortcuts") for op in own)


@needs_kernels
@pytest.mark.parametrize(("shape", "parts"), [((4, 16, 16, 34), 1), ((6, 5, 7, 12), 3)])
@pytest.mark.parametrize("end", ENDS)
def test_fused_residual_end_is_exact(end, shape, parts, monkeypatch):
    inputs = drawn(shape, 4)
    inputs["x"][1, 2, 3, 4] = np.nan
    together, some = residual_end(end, inputs, parts)
    monkeypatch.setattr(lists, "fuse", lambda network, precision, target: network)
    separate, none = residual_end(end, inputs, parts)
    assert (none, some) == (0, ENDS[end][2])
    for own, expected in zip(together, separate, strict=True):
        assert np.array_equal(own, expected, equal_nan=True)


@needs_kernels
def test_variances_are_exact_far_from_zero():
    """Sums of squares would lose them: the mean is 1,000 times the deviation."""
    x = np.random.default_rng(3).normal(1000, 1, (2, 30, 30, 4)).astype(np.float32)
    with new_graph().as_default() as graph, tf.Session(graph=graph) as session:
        _, mean, variance = session.run(batch_norm.native_batch_norm(tf.constant(x), tf.ones([4]), tf.zeros([4]), 1, 1e-5))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(variance, wide.var((0, 1, 2)), rtol=1e-5)
    policy = GroupNorm(groups=4, two_pass=True, epsilon=1e-5)
    y = outcome(grouped(policy, "linear"), {"x": x, "gamma": np.ones(4), "beta": np.zeros(4), "dy": x}, np.float32)[0]
    np.testing.assert_allclose(y.astype(np.float64).var((1, 2)), 1, rtol=1e-4)


# with gamma 0, beta is the input of the activation: at a kink the slope is 0, as in TensorFlow
KINKS = {
    "relu": {-(2.0**-14): 0, 0.0: 0, 2.0**-14: 1},
    "relu6": {-(2.0**-14): 0, 0.0: 0, 2.0**-14: 1, 6 - 2.0**-8: 1, 6.0: 0, 6 + 2.0**-8: 0},
}


@pytest.mark.parametrize("switch", ["1", "off"])
@pytest.mark.parametrize("rounding", [None, Rounding()], ids=["exact", "rounded"])
@pytest.mark.parametrize("norm", ["group", "proxy", "batch"])
@pytest.mark.parametrize("activation", KINKS)
def test_slopes_at_kinks_match_tensorflow(activation, norm, rounding, switch, monkeypatch):
    monkeypatch.setenv(library.SWITCH, switch)
    if norm == "batch" and not library.identity():
        pytest.skip("TensorFlow's own operations do it then")
    numbers, policy = np.float32([*KINKS[activation]]), GroupNorm(groups=1, epsilon=1e-3)
    shape = 3, 9, 7, len(numbers)
    inputs = drawn(shape, 9) | {"gamma": 0 * numbers, "beta": numbers, "dy": np.ones(shape)}

    def normed(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
        if norm == "batch":
            return batch_norm.native_batch_norm(x, gamma, beta, 1, 1e-3, activation, rounding)[0]
        if norm == "group":
            return group_norm.group_norm(x, gamma, beta, policy, activation, rounding)
        proxy = tf.zeros_like(beta), tf.ones_like(beta)
        return group_norm.group_norm(x, gamma, beta, policy, activation, rounding, proxy=proxy, scaled=True)

    y, dx, _, dbeta = outcome(normed, inputs, np.float32)
    assert np.array_equal(y[0, 0, 0], np.clip(numbers, 0, 6 if activation == "relu6" else None))
    assert not dx.any()
    assert np.array_equal(dbeta, np.float32([*KINKS[activation].values()]) * 3 * 9 * 7)


NORMS = grouped(GroupNorm(groups=4, two_pass=True), "swish"), batched(5, "swish")


def shared_work() -> list[np.ndarray]:
    """Return results that several threads share: with few samples each sample, with many each thread has its own."""
    inputs = {name: value.astype(np.float32) for name, value in drawn((5, 30, 30, 24), 4).items()}
    one = {name: value[:1] if value.ndim == 4 else value for name, value in inputs.items()}
    return [
        each
        for norm, fed in ((NORMS[0], inputs), (NORMS[1], inputs), (NORMS[0], one))
        for each in outcome(norm, fed, np.float32)
    ]


@needs_kernels
def test_neighbours_change_no_bit():
    inputs = {name: value.astype(np.float32) for name, value in drawn((5, 30, 30, 24), 4).items()}
    together = outcome(NORMS[0], inputs, np.float32)[:2]
    for k in range(5):
        alone = {name: value[k : k + 1] if value.ndim == 4 else value for name, value in inputs.items()}
        for own, whole in zip(outcome(NORMS[0], alone, np.float32)[:2], together):
            assert own[0].tobytes() == whole[k].tobytes()


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES)
def test_gate_gradient_matches_float64(shape):
    random = np.random.default_rng(5)
    x, dy = (random.normal(0, 1, shape).astype(np.float32) for _ in range(2))
    factor = random.uniform(0, 1, (shape[0], 1, 1, shape[-1])).astype(np.float32)
    gated = lambda x, factor: built(lambda layers, *inputs: layers.gate(*inputs), {}, x, factor)[0]
    y, dx, dfactor = outcome(gated, {"x": x, "factor": factor, "dy": dy}, np.float32)
    assert_near([y, dx], [x * factor, dy * factor], 0)
    exact = (dy.astype(np.float64) * x).sum((1, 2), keepdims=True)
    np.testing.assert_allclose(dfactor, exact, rtol=1e-5, atol=1e-5 * np.sqrt(shape[1] * shape[2]))


@needs_kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan(activation):
    """A norm and its activation pass NaN on, in training and inference, so that a run can stop at it."""
    bad = np.float32([1, np.nan, 2, 3]).reshape(1, 2, 2, 1)
    with new_graph().as_default() as graph, tf.Session(graph=graph) as session:
        x, one, zero = tf.constant(bad), tf.ones([1]), tf.zeros([1])
        trained = [
            group_norm.group_norm(x, one, zero, GroupNorm(), activation),
            group_norm.group_norm(x, one, zero, GroupNorm(), activation, Rounding()),
            batch_norm.native_batch_norm(x, one, zero, 1, 1e-3, activation).y,
        ]
        inferred = batch_norm.native_inference(x, one, zero, (zero, one), 1e-3, activation)
        *trained, inferred = session.run([*trained, inferred])
    assert all(np.isnan(each).all() for each in trained) and np.isnan(inferred).sum() == 1


@pytest.mark.slow
@needs_kernels
def test_run_without_kernels_is_close(tmp_path, monkeypatch):
    words = (
        "--dataset fashion-mnist --model efficientnet --depth-coefficient 0.2 --width-coefficient 0.25 --image-size 32 "
        "--precision 32.32 --batch-size 4 --seed 3 --iterations 3 --log-freq 1 --abs-learning-rate 0.05 --warmup-epochs 0 "
        "--no-validation --optimiser momentum"
    )
    losses = {}
    for switch in ("1", "off"):
        monkeypatch.setenv(library.SWITCH, switch)
        succeed("train", *words.split(), "--logs-path", tmp_path / switch)
        log = (tmp_path / switch / "log.txt").read_text()
        assert (f"kernels: {library.path().stem}" in log) == (switch == "1")
        losses[switch] = [float(row["loss_batch"]) for row in timeless(tmp_path / switch / "training.csv")]
    np.testing.assert_allclose(losses["1"], losses["off"], rtol=1e-3)
