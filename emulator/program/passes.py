"""The passes of one weight update: the device loop over them, and the sums of their results.

The sums are added one pass after another, however many are in flight, so that every plan of one instance computes the same
bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from emulator.layers.policy import PrecisionPolicy
from emulator.layers.watch import GradientWatch
from emulator.program.cells import Cells, StageOrder, Tokens
from emulator.program.runtime import NextFeatures
from emulator.program.stages import (
    ACCURACY,
    LARGEST_GRADIENT,
    LARGEST_OPERANDS,
    LOSS,
    LOST_GRADIENTS,
    Network,
    chunks,
    run_pass,
)
from emulator.program.training import LossScale, Training

MAXIMA = LARGEST_GRADIENT, LARGEST_OPERANDS  # results of which the largest counts, and not the sum
RUN, STOP_AT_UPDATE, STOP_AT_PASS = 0, 1, 2  # of the stop flag


@dataclass(frozen=True)
class Passes:
    """The passes of an update in the graph of a host step."""

    training: Training
    policy: PrecisionPolicy
    next_features: NextFeatures
    order: StageOrder
    stop: tf.Variable
    scale: LossScale  # of this update

    def means(self, values: dict[str, tf.Tensor], step: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The number of passes done, and loss, accuracy, gradients and batch statistics by name, averaged over them."""
        training, plan = self.training, self.training.plan
        network = Network(
            stages=chunks(plan, training.segments, training.trained_by_segment()),
            plan=plan,
            policy=self.policy,
            loss=training.loss,
            correct=training.correct,
            scaled=self.scale.scaled,
            sync_mean=self._sync_mean,
        )

        def run(m: tf.Tensor, tokens: Tokens) -> tuple[tf.Tensor, dict[str, tf.Tensor], Tokens]:
            with tf.control_dependencies([m]):
                features = dict(self.next_features(step, m))
                features["image"] = self.policy.cast_input(features["image"])
            # the next pass's counter waits for this fetch: passes in flight would fetch in any order otherwise
            with tf.control_dependencies([features["label"]]):
                next_pass = m + 1
            cells = Cells(self.order, m, tokens)
            watch = GradientWatch(*training.watched, with_largest=bool(self.scale.rule))
            results = run_pass(network, values, features, cells, watch)
            return next_pass, {n: self.policy.checked(x, self._in_words(n)) for n, x in results.items()}, cells.tokens

        if plan.passes_per_update == 1:
            results = run(tf.constant(0), tuple(() for _ in plan.stages))[1]
            return tf.constant(1), {name: self._gradient(name, value, step) for name, value in results.items()}
        shapes = {LOSS: (), ACCURACY: (), **{variable.name: variable.shape for variable in training.updated_variables}}
        shapes |= {LOST_GRADIENTS: (len(training.watched[0]), 2)} if training.watched[0] else {}
        shapes |= {LARGEST_GRADIENT: ()} if self.scale.rule else {}
        scaled = len(plan.precision.scaled_kernels)
        shapes |= {LARGEST_OPERANDS: (scaled, 2)} if scaled else {}

        def body(m: tf.Tensor, tokens: Tokens, sums: tuple[tf.Tensor, ...]) -> tuple[Any, ...]:
            next_pass, results, tokens = run(m, tokens)
            return next_pass, tokens, tuple(self._add(n, total, results[n], step, m) for n, total in zip(shapes, sums))

        def continues(m: tf.Tensor, *_: Any) -> tf.Tensor:
            with tf.control_dependencies([m]):
                if self._sync_mean:  # every pass waits for those of other instances: none may be left out here alone
                    return m < plan.passes_per_update
                return tf.logical_and(m < plan.passes_per_update, self.stop.read_value() < STOP_AT_PASS)

        start = (tf.constant(0), self.order.first_tokens(), tuple(tf.zeros(s, training.dtype) for s in shapes.values()))
        passes, _, totals = tf.while_loop(continues, body, start, parallel_iterations=plan.passes_in_flight, back_prop=False)
        return passes, {name: self._mean(name, total) for name, total in zip(shapes, totals)}

    @property
    def _sync_mean(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        """The mean over the instances that share batch-norm statistics; None if each has its own."""
        training = self.training
        if training.group is None or len(training.plan.sharing) == 1:
            return None
        return lambda x: training.group.mean(x, training.plan.sharing)

    def _in_words(self, name: str) -> str:
        """A result of a pass, for an error."""
        if name in (LOSS, ACCURACY, LOST_GRADIENTS, *MAXIMA):
            return f"the {name}"
        return f"the {'gradient' if name in self.training.trained_names else 'batch statistics'} of {name}"

    def _gradient(self, name: str, result: tf.Tensor, *counters: tf.Tensor) -> tf.Tensor:
        """A result of one pass as it counts; loss, accuracy and statistics stay as they are."""
        return self.policy.cast_gradient(name, result, *counters) if name in self.training.trained_names else result

    def _add(self, name: str, total: tf.Tensor, result: tf.Tensor, *counters: tf.Tensor) -> tf.Tensor:
        """The sum over the passes so far, or the largest."""
        if name in MAXIMA:
            return tf.maximum(total, tf.cast(result, total.dtype))
        if name not in self.training.trained_names:
            return total + tf.cast(result, total.dtype)
        return self.policy.add_gradient(name, total, result, self.training.plan.passes_per_update, *counters)

    def _mean(self, name: str, total: tf.Tensor) -> tf.Tensor:
        """Over the passes of an update."""
        if name in MAXIMA:
            return total
        passes = self.training.plan.passes_per_update
        return self.policy.mean_gradient(total, passes) if name in self.training.trained_names else total / passes
