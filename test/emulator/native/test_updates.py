"""The updates of many variables by one operation: the bits of one after the other, and arguments that stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from emulator.native import library
from emulator.program.runtime import new_graph
from emulator.program.training import Move
from harness.objective import optimisers

SHAPES = [(3, 3, 64, 64), (7,), (1, 1, 1, 1), (0, 3), (4097,), (2, 4096)]  # more elements than a part has, fewer, none
DECAYS = (1e-4, 0.0, 1e-4, 1e-4, 0.0, 0.5)
SHARES = [0.1, 0.01, 1.0, 0.1, 0.0, 0.1]
ODD = np.float32([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-42, -3e38, 3e38])
RULE = optimisers.Momentum(0.9)


def drawn(seed: int) -> list[np.ndarray]:
    """A tensor of each shape, with odd numbers at random places."""
    random = np.random.default_rng(seed)
    return [
        np.where(random.random(shape) < 0.1, random.choice(ODD, shape), random.normal(size=shape)).astype(np.float32)
        for shape in SHAPES
    ]


def outcome(whole: bool) -> list[np.ndarray]:
    """Values and momenta after an update, moved averages, and all that they were computed from; by one operation for the
    `whole`, or by those that there are without kernels."""
    rows = [drawn(seed) for seed in range(3)]
    with new_graph().as_default() as graph, tf.Session(graph=graph) as session:
        fed = [[tf.placeholder(tf.float32, shape) for shape in SHAPES] for _ in rows]
        # results of operations, whose places may be taken; their own values are asked for too
        weights, momenta, gradients = ([x + 0.0 for x in row] for row in fed)
        moves = [
            Move(f"v{k}", w, {"Momentum": a}, g, decay)
            for k, (w, a, g, decay) in enumerate(zip(weights, momenta, gradients, DECAYS, strict=True))
        ]
        update = RULE.update_all if whole else super(optimisers.Momentum, RULE).update_all
        moved = update(moves, tf.constant(0.3), tf.constant(1, tf.int64))
        averages = (
            list(library.load().emulator_average_update(averages=weights, values=gradients, shares=SHARES))
            if whole
            else [w - (w - g) * share for w, g, share in zip(weights, gradients, SHARES)]
        )
        results = [w for w, _ in moved] + [slots["Momentum"] for _, slots in moved] + averages
        values = {x: value for row, own in zip(fed, rows) for x, value in zip(row, own)}
        alone = session.run(results, values)
        with_arguments = session.run([results, weights, momenta, gradients], values)
    return alone + [value for several in with_arguments for value in several]


def shared_work() -> list[np.ndarray]:
    """Results that no number of threads changes."""
    return outcome(True)


@pytest.mark.skipif(not library.identity(), reason="the kernels are not built: there is no C++ compiler")
def test_one_operation_for_all_variables_has_the_bits_of_many():
    for whole, single in zip(outcome(True), outcome(False), strict=True):
        np.testing.assert_array_equal(whole, single)
        assert (np.signbit(whole) == np.signbit(single))[~np.isnan(single)].all()
