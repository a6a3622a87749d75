"""The device loop over the passes of one weight update, and the sums of their results.

A pass runs one or several micro-batches forward and backward. Results are added in the order of the passes, so every plan of
a process computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf

from cnn_harness.emulator.layers.watch import GradientWatch
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.plan.fault import ACTIVATION, GRADIENT
from cnn_harness.emulator.program.cells import Cells, StageOrder, Tokens
from cnn_harness.emulator.program.fault_injection import injected
from cnn_harness.emulator.program.forward_backward import (
    ACCURACY,
    AMAX,
    LARGEST_GRADIENT,
    LOSS,
    LOST_GRADIENTS,
    PassNetwork,
    run_pass,
    stage_blocks,
)
from cnn_harness.emulator.program.gradient_noise import SQUARED_NORM, squared_norm
from cnn_harness.emulator.program.loss_scale import LossScale
from cnn_harness.emulator.program.runtime import ARRIVED, NextFeatures
from cnn_harness.emulator.program.training_spec import TrainingSpec

REDUCED_BY_MAX = LARGEST_GRADIENT, AMAX  # passes are combined by the maximum of these results, and by the mean of others.
WAITED = "seconds waited for data"
RUN, STOP_AT_UPDATE, STOP_AT_PASS = 0, 1, 2  # the stop flag has one of these values.


@dataclass(frozen=True)
class AccumulationLoop:
    """The loop over the passes of one weight update, in the graph of a host step."""

    training: TrainingSpec
    policy: PrecisionPolicy
    next_features: NextFeatures
    order: StageOrder
    stop: tf.Variable
    loss_scale: LossScale

    def run(self, weights: dict[str, tf.Tensor], step: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the number of passes done, and by name the means over the passes of loss, accuracy, gradients and batch
        statistics. Results in `REDUCED_BY_MAX` are maxima over the passes."""
        training, plan = self.training, self.training.plan
        network = PassNetwork(
            stages=stage_blocks(
                plan, training.network, self.policy, training.trained_names, training.watched_layers.formats,
                synced=self._sync_mean is not None, frozen=training.frozen,
            ),
            plan=plan,
            policy=self.policy,
            loss=training.loss,
            correct=training.correct,
            scale_loss=self.loss_scale.scale_loss,
            sync_mean=self._sync_mean,
        )  # fmt: skip

        def one_pass(pass_index: tf.Tensor, tokens: Tokens) -> tuple[tf.Tensor, dict[str, tf.Tensor], Tokens]:
            # The device could start the pass now, or after the previous forward pass of the first stage.
            with tf.control_dependencies([pass_index, *tokens[0][:1]]):
                could_start = tf.timestamp()
            with tf.control_dependencies([pass_index]):
                features = dict(self.next_features(step, pass_index))
                features["image"] = self.policy.cast_input(features["image"])
            # The next pass waits until this pass has its images. Otherwise, passes in flight could swap batches.
            with tf.control_dependencies([features["label"]]):
                next_pass = pass_index + 1
            cells = Cells(self.order, pass_index, tokens)
            watch = GradientWatch(training.watched_layers, with_largest=bool(self.loss_scale.rule))
            flip = partial(injected, training.fault, step=step, pass_index=pass_index)
            results = run_pass(network, weights, features, cells, watch, partial(flip, ACTIVATION))
            results = {n: self.policy.check_finite(x, self._error_label(n)) for n, x in results.items()}
            results = {n: flip(GRADIENT, n, x) for n, x in results.items()}
            if training.gradient_noise:
                results[SQUARED_NORM] = squared_norm(training, results, self.loss_scale.factor)
            waited = tf.cast(tf.maximum(features[ARRIVED] - could_start, 0), training.dtype)
            return next_pass, {**results, WAITED: waited}, cells.tokens

        if plan.passes_per_update == 1:
            results = one_pass(tf.constant(0), tuple(() for _ in plan.stages))[1]
            return tf.constant(1), {name: self._cast_if_gradient(name, value, step) for name, value in results.items()}
        shapes = self._shapes

        def body(pass_index: tf.Tensor, tokens: Tokens, sums: tuple[tf.Tensor, ...]) -> tuple[Any, ...]:
            next_pass, results, tokens = one_pass(pass_index, tokens)
            return (
                next_pass,
                tokens,
                tuple(self._accumulate(n, total, results[n], step, pass_index) for n, total in zip(shapes, sums)),
            )

        def continues(pass_index: tf.Tensor, *_: Any) -> tf.Tensor:
            with tf.control_dependencies([pass_index]):
                if self._sync_mean:  # all processes must run the same passes.
                    return pass_index < plan.passes_per_update
                return tf.logical_and(pass_index < plan.passes_per_update, self.stop.read_value() < STOP_AT_PASS)

        start = (tf.constant(0), self.order.first_tokens(), tuple(tf.zeros(s, training.dtype) for s in shapes.values()))
        passes, _, totals = tf.while_loop(continues, body, start, parallel_iterations=plan.passes_in_flight, back_prop=False)
        return passes, {name: self._mean(name, total) for name, total in zip(shapes, totals)}

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the results of a pass, by name."""
        layers, scaled = len(self.training.watched_layers.formats), len(self.training.plan.precision.scaled_kernels)
        shapes = {variable.name: variable.shape for variable in self.training.updated_variables}
        shapes |= {LOSS: (), ACCURACY: (), WAITED: (), **({SQUARED_NORM: ()} if self.training.gradient_noise else {})}
        shapes |= {LOST_GRADIENTS: (layers, 2)} if layers else {}
        shapes |= {LARGEST_GRADIENT: ()} if self.loss_scale.rule else {}
        return shapes | ({AMAX: (scaled, 2)} if scaled else {})

    @property
    def _sync_mean(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        """The function that averages a tensor over the instances (processes) that share batch-norm statistics. None if
        instances share none."""
        training = self.training
        if training.group is None or len(training.plan.batch_norm_group) == 1:
            return None
        return lambda x: training.group.mean(x, training.plan.batch_norm_group)

    def _error_label(self, name: str) -> str:
        """Return a description of a pass's result for an error message."""
        if name in (LOSS, ACCURACY, LOST_GRADIENTS, *REDUCED_BY_MAX):
            return f"the {name}"
        return f"the {'gradient' if name in self.training.trained_names else 'batch statistics'} of {name}"

    def _cast_if_gradient(self, name: str, result: tf.Tensor, *counters: tf.Tensor) -> tf.Tensor:
        """Return a result of a pass. Cast gradients to their format."""
        return self.policy.cast_gradient(name, result, *counters) if name in self.training.trained_names else result

    def _accumulate(self, name: str, total: tf.Tensor, result: tf.Tensor, *counters: tf.Tensor) -> tf.Tensor:
        """Add the result of a pass to the total of the passes before it, or take the maximum."""
        if name in REDUCED_BY_MAX:
            return tf.maximum(total, tf.cast(result, total.dtype))
        if name not in self.training.trained_names:
            return total + tf.cast(result, total.dtype)
        return self.policy.accumulate_gradient(name, total, result, self.training.plan.passes_per_update, *counters)

    def _mean(self, name: str, total: tf.Tensor) -> tf.Tensor:
        """Return the mean over the passes of an update, given the sum. Return a maximum unchanged."""
        if name in REDUCED_BY_MAX:
            return total
        passes = self.training.plan.passes_per_update
        return self.policy.mean_gradient(total, passes) if name in self.training.trained_names else total / passes
