"""Compare group norm and proxy norm with batch norm: each with its activation, forward and backward, on one tensor.

python -m bench.norms [--rounds 15]
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow.compat.v1 as tf

from bench import _paired
from cnn_harness.emulator.layers.proxy_norm import initial
from cnn_harness.emulator.lowering.lists import prepared
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.network.recorder import record_layers
from cnn_harness.emulator.plan.precision import SINGLE
from cnn_harness.emulator.program.runtime import new_graph, session_config
from cnn_harness.Models._layers import Layers, ProxyRule, Tensor
from cnn_harness.Models._norms import BatchNorm, GroupNorm

SHAPES = ((16, 56, 56, 96), (4, 112, 112, 96), (4, 14, 14, 480))
GROUP = GroupNorm(groups=4, epsilon=1e-3, two_pass=True)
RULE = ProxyRule("swish", 0.03)
CALLS = 5  # calls in one round
Weights = dict[str, tf.Tensor]
Network = Callable[[Weights, tf.Tensor], tf.Tensor]


def weights(channels: int) -> Weights:
    """Return the variables that the norms read, by name."""
    ones, zeros = tf.ones([channels]), tf.zeros([channels])
    scopes = ("batch_norm", "GroupNorm")
    found = {f"{scope}/{name}": value for scope in scopes for name, value in (("gamma", ones), ("beta", zeros))}
    return {**found, "act/proxy": initial(RULE, channels, tf.float32)}


def trained(build: Callable[[Layers, Tensor], Tensor], held: Weights, x: tf.Tensor) -> tf.Tensor:
    """Return the result of build(layers, x) in training in FP32."""
    network, policy = record_layers(build, tuple(x.shape[1:])), PrecisionPolicy(SINGLE)
    target = policy.target("/cpu:0")
    return policy.lowering(held, target).run(prepared(network, SINGLE, target), x)


def batch_norm(held: Weights, x: tf.Tensor) -> tf.Tensor:
    """Apply batch norm in training mode, then TensorFlow's swish."""
    return tf.nn.silu(trained(lambda layers, x: layers.norm(x, BatchNorm(epsilon=1e-3)), held, x))


def group_norm(held: Weights, x: tf.Tensor) -> tf.Tensor:
    """Apply group norm and swish."""
    return trained(lambda layers, x: layers.norm_activation(x, GROUP, "swish"), held, x)


def proxy_norm(held: Weights, x: tf.Tensor) -> tf.Tensor:
    """Apply group norm and proxy-normalised swish. Leave the scaling to the following gate, as after spatial
    convolutions."""
    return trained(lambda layers, x: layers.proxy_norm_activation(x, GROUP, RULE, scaled=False)[0], held, x)


def scaled_proxy_norm(held: Weights, x: tf.Tensor) -> tf.Tensor:
    """Apply group norm and proxy-normalised swish, including the scaling, as after expansions."""
    return trained(lambda layers, x: layers.proxy_norm_activation(x, GROUP, RULE, scaled=True)[0], held, x)


def step(network: Network, shape: tuple[int, ...]) -> list[tf.Tensor]:
    """Return the gradients of one forward and backward pass. Fetch all, because TensorFlow skips operations without a
    fetch."""
    x, dy = (_held(f"{network.__name__}_{name}", shape, seed) for seed, name in enumerate(("x", "dy")))
    held = {name: _held(f"{network.__name__}_{name.replace('/', '_')}", v) for name, v in weights(shape[-1]).items()}
    y = network(held, x)
    return [value for value in tf.gradients(y, [x, *held.values()], dy) if value is not None]


def _held(name: str, value: tuple[int, ...] | tf.Tensor, seed: int = 0) -> tf.Tensor:
    """Return the value of a new variable. TensorFlow would fold operations on a constant."""
    initial = tf.random.stateless_normal(value, [seed, 1]) if isinstance(value, tuple) else value
    return tf.get_variable(name, initializer=initial, use_resource=True).read_value()


def seconds(session: tf.Session, gradients: list[tf.Tensor]) -> float:
    """Return the mean seconds of one call."""
    started = time.perf_counter()
    for _ in range(CALLS):
        session.run(gradients)
    return (time.perf_counter() - started) / CALLS


def main() -> None:
    """Measure all norms on all shapes."""
    rounds = _paired.arguments(__doc__, rounds=15).rounds
    print(f"{'tensor':<18} {'batch norm':>10}  {'group / batch':<20} {'proxy / group':<20} {'scaled proxy / group':<20}")
    for shape in SHAPES:
        with new_graph().as_default(), tf.Session(config=session_config()) as session:
            steps = [step(network, shape) for network in (batch_norm, group_norm, proxy_norm, scaled_proxy_norm)]
            session.run(tf.global_variables_initializer())
            times = np.array([[seconds(session, gradients) for gradients in steps] for _ in range(rounds + 1)])[1:]
        ratios = (times[:, 1] / times[:, 0], times[:, 2] / times[:, 1], times[:, 3] / times[:, 1])
        milliseconds = f"{1000 * statistics.median(times[:, 0]):.1f} ms"
        cells = " ".join(f"{_paired.spread(ratio):<20}" for ratio in ratios)
        print(f"{shape!s:<18} {milliseconds:>10}  {cells}", flush=True)
    print(f"{'at most':<30} 1.40                 1.30                 1.30")


if __name__ == "__main__":
    main()
