"""One operation updates many variables with the bits of separate operations and leaves its arguments unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cnn_harness.emulator.native import library
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.emulator.program.training_spec import Move
from cnn_harness.harness.options.sections import TrainingOptions

SHAPES = [(3, 3, 64, 64), (7,), (1, 1, 1, 1), (0, 3), (4097,), (2, 4096)]  # more elements than a part has, fewer, none
DECAYS = (1e-4, 0.0, 1e-4, 1e-4, 0.0, 0.5)
SHARES = [0.1, 0.01, 1.0, 0.1, 0.0, 0.1]
ODD = np.float32([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-42, -3e38, 3e38])
RULES = {name: TrainingOptions(optimiser=name, rmsprop_decay=0.9).update_rule(1) for name in ("momentum", "RMSprop")}


def drawn(seed: int) -> list[np.ndarray]:
    """Return a tensor of each shape, with odd numbers at random places."""
    random = np.random.default_rng(seed)
    return [
        np.where(random.random(shape) < 0.1, random.choice(ODD, shape), random.normal(size=shape)).astype(np.float32)
        for shape in SHAPES
    ]


def outcome(rule: str, divisor: float, whole: bool) -> list[np.ndarray]:
    """Return values and slots after an update, moved averages, and all inputs.

    `whole` selects the joint operation; otherwise the operations without kernels are used.
    """
    own = RULES[rule]
    rows = [drawn(seed) for seed in range(2 + len(own.slots))]
    with new_graph().as_default() as graph, tf.Session(graph=graph) as session:
        fed = [[tf.placeholder(tf.float32, shape) for shape in SHAPES] for _ in rows]
        # results of operations, whose buffers may be reused; their own values are fetched too
        weights, gradients, *slots = ([x + 0.0 for x in row] for row in fed)
        moves = [
            Move(f"v{k}", w, dict(zip(own.slots, of_slots)), g, decay, divisor)
            for k, (w, g, decay, *of_slots) in enumerate(zip(weights, gradients, DECAYS, *slots, strict=True))
        ]
        update = own.update_all if whole else super(type(own), own).update_all
        moved = update(moves, tf.constant(0.3), tf.constant(1, tf.int64))
        averages = (
            list(library.load().emulator_average_update(averages=weights, values=gradients, shares=SHARES))
            if whole
            else [w - (w - g) * share for w, g, share in zip(weights, gradients, SHARES)]
        )
        results = [x for w, after in moved for x in (w, *after.values())] + averages
        values = {x: value for row, numbers in zip(fed, rows) for x, value in zip(row, numbers)}
        alone = session.run(results, values)
        with_arguments = session.run([results, weights, gradients, *slots], values)
    return alone + [value for several in with_arguments for value in several]


def shared_work() -> list[np.ndarray]:
    """Return results that no number of threads changes."""
    return [*outcome("momentum", 1.0, True), *outcome("RMSprop", 4.0, True)]


@pytest.mark.skipif(not library.identity(), reason="the kernels are not built: there is no C++ compiler")
@pytest.mark.parametrize("divisor", [1.0, 4.0])
@pytest.mark.parametrize("rule", RULES)
def test_joint_update_equals_separate_updates(rule, divisor):
    """Bitwise, except for TensorFlow's inverse root, which is not the nearest number."""
    tolerance = 0 if rule == "momentum" else 1e-5
    for whole, single in zip(outcome(rule, divisor, True), outcome(rule, divisor, False), strict=True):
        np.testing.assert_allclose(whole, single, rtol=tolerance, atol=tolerance)
        assert (np.signbit(whole) == np.signbit(single))[single == 0].all()
