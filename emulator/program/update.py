"""The graph of a host step: the device loop over weight updates, each of them forward and backward passes, an all-reduce
over the instances, and one step of the optimiser."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tensorflow.compat.v1 as tf

from emulator.layers import proxy_norm
from emulator.layers.policy import PrecisionPolicy
from emulator.plan import number_formats
from emulator.plan.checkpoint_tensors import AMAX_HISTORY
from emulator.program.accumulation import REDUCED_BY_MAX, RUN, STOP_AT_PASS, AccumulationLoop
from emulator.program.cells import StageOrder
from emulator.program.forward_backward import ACCURACY, AMAX, LARGEST_GRADIENT, LOSS, LOST_GRADIENTS
from emulator.program.group import buckets, elements
from emulator.program.loss_scale import LossScale
from emulator.program.runtime import NextFeatures
from emulator.program.training import TrainingSpec
from emulator.program.weights import ProgramVariables
from Models._layers import Variable

AMAX_DECAY = 2.0 ** (-1 / 16)  # of the running amax, per update
_STOP_AND_SECONDS = "stop requests, seconds"  # of every instance, in the all-reduce of small results


@dataclass(frozen=True)
class HostStep:
    """The graph of one host step."""

    training: TrainingSpec
    policy: PrecisionPolicy
    next_features: NextFeatures
    weights: ProgramVariables
    order: StageOrder
    outfeed: tf.QueueBase
    stop: tf.Variable

    def run(self, learning_rates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The device loop over weight updates; returns the number of updates done, and the request of each instance of
        a group at the end. Loss and accuracy of each update go into the outfeed while the loop runs."""
        updates, group = tf.size(learning_rates), self.training.group

        def body(i: tf.Tensor, done: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([i]):
                finished, stop_requests = self._update(tf.cast(learning_rates[i], self.training.dtype))
            return i + 1, done + tf.cast(finished, tf.int32), stop_requests

        def continues(i: tf.Tensor, done: tf.Tensor, stop_requests: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([done]):
                # instances end together, so each of them goes by what all requested in the update before
                stop = tf.reduce_max(stop_requests) if group else self.stop.read_value()
                return tf.logical_and(i < updates, tf.equal(stop, RUN))

        start = (
            group.barrier() if group else tf.constant(0),
            tf.constant(0),
            tf.zeros([group.size if group else 0], tf.int32),
        )
        _, done, stop_requests = tf.while_loop(continues, body, start, parallel_iterations=1, back_prop=False)
        return done, stop_requests

    def _update(self, learning_rate: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Make one weight update, whole or, after a request to stop in between, not at all; return whether it was done, and
        the request of each instance of a group."""
        started = tf.timestamp()
        values = self.weights.read()
        step = self.weights.step.read_value()
        scale, scale_state = self.training.loss_scale, None
        if scale.rule:
            scale_state = self.weights.loss_scale.read_value()
            scale = replace(scale, factor=tf.cast(scale_state[0], self.training.dtype))
        loop = AccumulationLoop(self.training, self.policy, self.next_features, self.order, self.stop, scale)
        passes, results = loop.run(values, step)
        complete, stop_requests = tf.equal(passes, self.training.plan.passes_per_update), tf.zeros([0], tf.int32)
        seconds = tf.zeros([0])
        if self.training.group:
            with tf.control_dependencies(list(results.values())):
                own_seconds = tf.timestamp() - started
            stop_requests, seconds, results = self._all_reduce(passes, results, own_seconds, step)
            complete = tf.reduce_max(stop_requests) < STOP_AT_PASS

        def apply() -> tf.Tensor:
            updates = [
                *self._variable_updates(values, results, learning_rate, step, scale, scale_state),
                *self._amax_updates(values, results),
            ]
            with tf.control_dependencies(updates):
                counted = self.weights.step.assign_add(1, read_value=False)
            metrics = [tf.cast(results[name], tf.float32) for name in (LOSS, ACCURACY)]
            metrics += [results.get(LOST_GRADIENTS, tf.zeros([0, 2])), seconds]
            with tf.control_dependencies([counted, self.outfeed.enqueue(metrics)]):
                return tf.constant(True)

        return tf.cond(complete, apply, lambda: tf.constant(False)), stop_requests

    def _amax_updates(self, values: dict[str, tf.Tensor], results: dict[str, tf.Tensor]) -> list[tf.Operation]:
        """The operation that updates the running amax of the scaled kernels' operands, which decays with a half-life of 16
        updates. An amax that is not finite counts as twice the one before."""
        if AMAX not in results:
            return []
        before, now = values[AMAX_HISTORY], tf.cast(results[AMAX], tf.float32)
        now = tf.where_v2(tf.math.is_finite(now), now, 2 * before)
        return [self.weights.model[AMAX_HISTORY].assign(tf.maximum(now, before * AMAX_DECAY), read_value=False)]

    def _variable_updates(
        self,
        values: dict[str, tf.Tensor],
        results: dict[str, tf.Tensor],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        scale: LossScale,
        scale_state: tf.Tensor | None,
    ) -> list[tf.Operation]:
        """The operations that update every variable and slot, and the loss scale. With dynamic loss scaling, gradients that
        are not finite skip the optimiser's step, and the loss scale alone is updated."""
        if scale_state is None:
            return self._apply_gradients(values, results, learning_rate, step, scale)
        finite = tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(results[n])) for n in self.training.trained_names]))

        def apply() -> tf.Tensor:
            with tf.control_dependencies(self._apply_gradients(values, results, learning_rate, step, scale)):
                return tf.constant(True)

        applied = tf.cond(finite, apply, lambda: tf.constant(False))
        largest = tf.cast(results[LARGEST_GRADIENT], tf.float32)
        state = scale.next_state(scale_state, finite, largest, self.training.gradient_limit)
        return [applied.op, self.weights.loss_scale.assign(state, read_value=False)]

    def _all_reduce(
        self, passes: tf.Tensor, results: dict[str, tf.Tensor], seconds: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        """The stop request of each instance, the `seconds` that each needed for its passes, and the results reduced over all
        instances. Gradients are all-reduced in buckets, in backward order, while the backward computation goes on;
        everything else in one more bucket. A value of each instance is gathered as a sum of one-hot rows."""
        training, group = self.training, self.training.group
        with tf.control_dependencies([passes]):
            stop = self.stop.read_value()
        stop_request = tf.where_v2(tf.equal(passes, training.plan.passes_per_update), stop, STOP_AT_PASS)
        one_hot = tf.one_hot(group.instance, group.size, dtype=training.dtype)
        local = tf.stack([tf.cast(stop_request, training.dtype), tf.cast(seconds, training.dtype)])
        per_instance = local[:, None] * one_hot
        for name in (name for name in REDUCED_BY_MAX if name in results):
            results = {**results, name: tf.tensordot(one_hot, tf.cast(results[name], training.dtype), 0)}
        trainable = [variable.name for variable in reversed(training.updated_variables) if variable.trainable]
        small = [name for name in results if name not in trainable]
        totals: dict[str, tf.Tensor] = {}
        with tf.device(training.plan.stage_devices[0]):
            all_reduce_format = number_formats.by_name(training.plan.options.all_reduce_format)
            # divided first in narrow formats: a sum may overflow where the mean fits
            divided_before_sum = trainable if all_reduce_format != number_formats.FP32 else []
            sent = {
                name: results[name] if name not in divided_before_sum else results[name] / group.size for name in trainable
            }
            sent = {name: self.policy.cast_for_all_reduce(x, all_reduce_format) for name, x in sent.items()}
            sizes = {name: x.dtype.size * elements(x) for name, x in sent.items()}
            for names in buckets(trainable, sizes, training.plan.options.max_cross_replica_buffer_size):
                bucket = group.all_reduce_bucket({name: sent[name] for name in names})
                totals |= {name: tf.cast(x, results[name].dtype) for name, x in bucket.items()}
            totals |= group.all_reduce_bucket({**{name: results[name] for name in small}, _STOP_AND_SECONDS: per_instance})
        with tf.control_dependencies(list(totals.values())):  # a sum that fails leaves every variable as it is
            stop_requests, all_seconds = tf.unstack(totals.pop(_STOP_AND_SECONDS))
            requests_by_instance = tf.cast(tf.round(stop_requests), tf.int32)
        for name in (name for name in REDUCED_BY_MAX if name in totals):
            totals[name] = tf.reduce_max(totals[name], 0) * group.size
        results = {name: total if name in divided_before_sum else total / group.size for name, total in totals.items()}
        cast = self.policy.cast_averaged_gradient
        reduced = {name: cast(name, x, step) if name in training.trained_names else x for name, x in results.items()}
        return requests_by_instance, tf.cast(all_seconds, tf.float32), reduced

    def _apply_gradients(
        self,
        values: dict[str, tf.Tensor],
        results: dict[str, tf.Tensor],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        scale: LossScale,
    ) -> list[tf.Operation]:
        """The operations that update every variable and slot."""
        training, weights = self.training, self.weights
        learning_rate, optimiser = scale.adjusted_learning_rate(learning_rate), training.optimiser
        operations = []
        for variable in training.updated_variables:
            name = variable.name
            if not variable.trainable:
                difference = (values[name] - results[name]) * (1 - variable.decay)  # a moving average
                operations.append(weights.model[name].assign_sub(difference, read_value=False))
                continue
            gradient = results[name]
            master, slots = weights.state(name)
            if variable.proxy:
                gradient = proxy_norm.chain_gradient(variable.proxy, master, gradient)
            decayed = self._decayed_value(variable, master)
            if decayed is not None and not optimiser.decoupled_decay:
                gradient += decayed * (training.weight_decay * scale.factor)
            value, slots = optimiser.update(name, master, slots, scale.unscaled_gradient(gradient), learning_rate, step)
            if decayed is not None and optimiser.decoupled_decay:
                value -= learning_rate * training.weight_decay * decayed
            operations += weights.assign(name, self.policy.check_finite(value, f"the update of {name}"), slots, step)
        return operations

    def _decayed_value(self, variable: Variable, master: tf.Tensor) -> tf.Tensor | None:
        """The part of a variable's value that weight decay takes a share of; None for a variable without."""
        if variable.proxy:
            return proxy_norm.rows_to_decay(master)
        return master if self.training.weight_decay and self.training.decayed(variable.name) else None
