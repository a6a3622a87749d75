"""Proxy norm: statistics agree with float64 NumPy, gradients with finite differences of the whole map, and updates move the
right rows.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import program
from networks import built

from cnn_harness.emulator.layers import proxy_norm
from cnn_harness.emulator.plan.precision import OFF, by_name
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.emulator.program.training_program import TrainingProgram
from cnn_harness.emulator.program.variables import ProgramVariables
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run
from cnn_harness.Models._layers import ProxyRule, Variable
from cnn_harness.Models._norms import GroupNorm

CHANNELS = 6
RULES = [ProxyRule(activation, epsilon) for activation in ("relu", "relu6", "swish") for epsilon in (0.03, 0.5)]
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "swish": lambda x: x / (1 + np.exp(-x)),
}
NETWORK = (
    "--precision 32.32 --dataset fashion-mnist --model efficientnet --depth-coefficient 0.5 --group-dim 16 --expand-ratio 4 --groups 1 --proxy-norm "
    "--batch-size 4 --seed 3 --optimiser momentum"
)


def rows(seed: int) -> np.ndarray:
    """Return beta, gamma, two rows that follow from the others, beta', gamma'."""
    draw = np.random.default_rng(seed)
    return draw.normal([[0.2], [1.0], [0.0], [0.0], [0.1], [-0.1]], 0.3, [6, CHANNELS])


def statistics(rule: ProxyRule, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and inverse deviation by the formula, with quantiles of the error function by bisection."""

    def quantile(p: float) -> float:
        low, high = -9.0, 9.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if 0.5 * (1 + math.erf(middle / math.sqrt(2))) < p else (low, middle)
        return (low + high) / 2

    q = np.array([quantile((i + 0.5) / 200) for i in range(200)])[:, None]
    beta, gamma, _, _, more_beta, more_gamma = value
    y = ACTIVATIONS[rule.activation](gamma * ((1 + more_gamma) * q + more_beta) + beta)
    return y.mean(0), 1 / np.sqrt(y.var(0) + rule.epsilon)


def evaluated(make, dtype: tf.DType, *arrays: np.ndarray):
    with new_graph().as_default(), tf.Session() as session:
        return session.run(make(*(tf.constant(array, dtype) for array in arrays)))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_statistics_match_formula(rule):
    value = rows(1)
    for dtype, tolerance in ((tf.float64, 1e-12), (tf.float32, 2e-6)):
        found = evaluated(lambda v: proxy_norm.statistics(rule, v[:, None, None]), dtype, value)
        for one, other in zip(found, statistics(rule, value)):
            assert np.abs(one.ravel() - other).max() < tolerance


POLICY = GroupNorm(groups=2, epsilon=1e-3, two_pass=True)


def normalised(x: np.ndarray) -> np.ndarray:
    """Normalise two strided groups of channels."""
    y = np.empty_like(x)
    for group in range(2):
        part = x[..., group::2]
        mean, variance = part.mean((1, 2, 3), keepdims=True), part.var((1, 2, 3), keepdims=True)
        y[..., group::2] = (part - mean) / np.sqrt(variance + POLICY.epsilon)
    return y


def network_value(rule: ProxyRule, value: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return (activation of the norm - proxy mean) x inverse deviation, as a function of input and trained rows."""
    mean, inverse = statistics(rule, value)
    return (ACTIVATIONS[rule.activation](value[1] * normalised(x) + value[0]) - mean) * inverse


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_value_and_gradient_match_whole_map(rule, scaled):
    draw = np.random.default_rng(2)
    x, weight, value = draw.normal(size=[3, 4, 4, CHANNELS]), draw.normal(size=[3, 4, 4, CHANNELS]), rows(3)

    def normed(layers, x):
        y, inverse = layers.proxy_norm_activation(x, POLICY, rule, scaled=scaled)
        return y if scaled else layers.gate(y, inverse)

    def make(value: tf.Tensor, x: tf.Tensor, weight: tf.Tensor) -> tuple[tf.Tensor, ...]:
        whole = proxy_norm.refreshed(rule, value[:, None, None])
        y, _ = built(normed, {"act/proxy": whole}, x)
        of_rows, of_x = tf.gradients(tf.reduce_sum(y * weight), [whole, x])
        return y, proxy_norm.chain_gradient(rule, whole, of_rows)[:, 0, 0], of_x

    y, found, of_x = evaluated(make, tf.float64, value, x, weight)
    assert np.abs(y - network_value(rule, value, x)).max() < 1e-10
    direction = draw.normal(size=x.shape)
    ahead, behind = (network_value(rule, value, x + sign * 1e-6 * direction) for sign in (1, -1))
    assert (of_x * direction).sum() == pytest.approx(((ahead - behind) * weight).sum() / 2e-6, rel=1e-4)
    assert np.array_equal(found[2:4], np.zeros([2, CHANNELS]))
    for row, channel in np.ndindex(6, CHANNELS):
        if row in (2, 3):
            continue
        step = np.zeros_like(value)
        step[row, channel] = 1e-6
        ahead, behind = (network_value(rule, value + sign * step, x) for sign in (1, -1))
        slope = ((ahead - behind) * weight).sum() / 2e-6
        assert found[row, channel] == pytest.approx(slope, rel=1e-4, abs=1e-4), (row, channel)


@pytest.fixture(autouse=True)
def short(short_efficientnet) -> None:
    """Use a short network in all tests here."""


def prepared(words: str) -> Run:
    return prepare(cli.parse(words.split(), "train", environ={}).options, {}).run


def proxies(built: TrainingProgram) -> dict[str, np.ndarray]:
    return {name: value for name, value in built.values().items() if name.endswith("proxy")}


def test_updates_move_four_of_six_rows():
    run = prepared(NETWORK)
    rule = next(variable.proxy for variable in run.network.variables if variable.proxy)
    built = program(run)
    start = proxies(built)
    assert start
    for value in start.values():
        assert np.abs(value[[0, 1, 4, 5]].reshape(4, -1) - [[0], [1], [0], [0]]).max() == 0
    built.step([0.5] * 3)
    after = proxies(built)
    moves = built.values()
    built.close()
    moved = {row: any(np.abs(after[name][row] - start[name][row]).max() > 1e-6 for name in after) for row in range(6)}
    assert all(moved.values())
    for name, value in after.items():
        mean, inverse = statistics(rule, value.reshape(6, -1).astype(np.float64))
        assert np.abs(value[2].ravel() - mean).max() < 1e-5
        assert np.abs(value[3].ravel() / inverse - 1).max() < 1e-5
        assert np.abs(moves[f"{name}/Momentum"][2:4]).max() == 0


@pytest.mark.parametrize("copied", [False, True])
def test_updates_round_unless_fp32_is_updated(copied):
    """As for other weights, --offload-fp32-weight-copy keeps FP32 copies. Proxies are FP32 in memory and need none."""
    precision = by_name("16.16", stochastic=OFF, offload_fp32_weight_copy=copied)
    variable = Variable("act/proxy", (6, 1, 1, CHANNELS), 0.0, proxy=RULES[0])
    start = np.float32(rows(1)).astype(np.float16).astype(np.float32).reshape(variable.shape)
    value = start * np.float32(1 + 2.0**-14)  # closer to the start than half an FP16 step
    with new_graph().as_default(), tf.Session() as session:
        variables = ProgramVariables((variable,), 1, {}, precision=precision)
        session.run(tf.global_variables_initializer())
        session.run(variables.assign(variable.name, tf.constant(value), {}, tf.constant(0)))
        found = session.run(variables.model[variable.name].read_value())
    assert precision.rounds_updates([variable]) != copied and list(variables.saved) == [variable.name, "global_step"]
    trained = [0, 1, 4, 5]
    np.testing.assert_array_equal(found[trained], (value if copied else start)[trained])


@pytest.mark.slow
def test_weight_decay_affects_corrections_alone():
    def after(decay: float) -> dict[str, np.ndarray]:
        built = program(prepared(f"{NETWORK.replace('momentum', 'SGD')} --weight-decay {decay}"))
        values = built.values()
        for name in [name for name in values if name.endswith("proxy")]:
            values[name][4:6] = 0.25  # something to decay
        built.load(values)
        built.step([0.5])
        found = proxies(built)
        built.close()
        return found

    without, decayed = after(0.0), after(0.1)
    for name, value in without.items():
        difference = decayed[name] - value
        assert np.abs(difference[4:6] + 0.5 * 0.1 * 0.25).max() < 1e-6  # rate x decay x value
        assert np.abs(difference[:2]).max() < 1e-6


@pytest.mark.slow
def test_layouts_change_no_bit():
    def trained(layout: str) -> dict[str, np.ndarray]:
        built = program(prepared(f"{NETWORK} --fold 1 {layout}"))
        built.step([0.25, 0.25])
        values = built.values()
        built.close()
        return values

    plain = trained("--gradient-accumulation-count 4")
    other = trained("--replicas 2 --gradient-accumulation-count 2 --enable-recomputation --pipeline --shards 3 --pipeline-splits "
                    "block2a/b block3a")  # fmt: skip
    assert [name for name in plain if plain[name].tobytes() != other[name].tobytes()] == []
