"""The graph of a host step: the device loop over weight updates. An update runs forward and backward passes, an all-reduce
over the instances (processes), and one step of the optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow.compat.v1 as tf

from cnn_harness.emulator.layers import proxy_norm
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan import number_formats
from cnn_harness.emulator.plan.checkpoint_tensors import AMAX_HISTORY
from cnn_harness.emulator.plan.fault import MESSAGE, WEIGHT
from cnn_harness.emulator.program.accumulation import REDUCED_BY_MAX, RUN, STOP_AT_PASS, WAITED, AccumulationLoop
from cnn_harness.emulator.program.cells import StageOrder
from cnn_harness.emulator.program.fault_injection import injected
from cnn_harness.emulator.program.fingerprints import fingerprints
from cnn_harness.emulator.program.forward_backward import ACCURACY, AMAX, LARGEST_GRADIENT, LOSS, LOST_GRADIENTS
from cnn_harness.emulator.program.gradient_noise import SQUARED_NORM, squared_norm
from cnn_harness.emulator.program.loss_scale import LossScale
from cnn_harness.emulator.program.runtime import NextFeatures
from cnn_harness.emulator.program.training_spec import Move, TrainingSpec
from cnn_harness.emulator.program.variables import ProgramVariables
from cnn_harness.emulator.program.worker_group import buckets, elements
from cnn_harness.Models._layers import PROXY_ROWS, TRAINED_PROXY_ROWS, Variable

Moved = tuple[tf.Tensor, dict[str, tf.Tensor]]  # the result of an update: a variable and its slots
AMAX_DECAY = 2.0 ** (-1 / 16)  # every update multiplies the running amax (largest value) by this decay.
_STOP_AND_SECONDS = "stop requests, seconds"  # the small all-reduce has these values of every process.


@dataclass(frozen=True)
class HostStep:
    """The graph of one host step."""

    training: TrainingSpec
    policy: PrecisionPolicy
    next_features: NextFeatures
    variables: ProgramVariables
    order: StageOrder
    outfeed: tf.QueueBase
    stop: tf.Variable

    def run(self, learning_rates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Run the device loop over weight updates. Return the number of updates done, and the last stop request of each
        instance of a group.

        While the loop runs, the loss and accuracy of each update go to the outfeed.
        """
        updates, group = tf.size(learning_rates), self.training.group

        def body(i: tf.Tensor, done: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([i]):
                finished, stop_requests = self._update(tf.cast(learning_rates[i], self.training.dtype))
            return i + 1, done + tf.cast(finished, tf.int32), stop_requests

        def continues(i: tf.Tensor, done: tf.Tensor, stop_requests: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([done]):
                # Instances must end together, so each one follows the requests that all sent in the previous update.
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
        """Do one complete weight update, or drop it if a stop is requested meanwhile. Return whether it was done, and the
        stop request of each instance of a group."""
        started = tf.timestamp()
        weights = self.variables.read()
        step = self.variables.step.read_value()[0]
        scale, scale_state = self.training.loss_scale, None
        if scale.rule:
            scale_state = self.variables.loss_scale.read_value()
            scale = replace(scale, factor=tf.cast(scale_state[0], self.training.dtype))
        loop = AccumulationLoop(self.training, self.policy, self.next_features, self.order, self.stop, scale)
        passes, results = loop.run(weights, step)
        own_results = results
        complete, stop_requests = tf.equal(passes, self.training.plan.passes_per_update), tf.zeros([0], tf.int32)
        seconds = tf.zeros([0])
        if self.training.group:
            with tf.control_dependencies(list(results.values())):
                own_seconds = tf.timestamp() - started
            stop_requests, seconds, results = self._all_reduce(passes, results, own_seconds, step)
            complete = tf.reduce_max(stop_requests) < STOP_AT_PASS

        def apply() -> tf.Tensor:
            updates = self._variable_updates(weights, results, learning_rate, step, scale, scale_state)
            with tf.control_dependencies(updates):
                counted = self.variables.step.assign_add([1], read_value=False)
            metrics = [tf.cast(results[name], tf.float32) for name in (LOSS, ACCURACY)]
            metrics += [results.get(LOST_GRADIENTS, tf.zeros([0, 2])), seconds]
            waited = results[WAITED] * self.training.plan.passes_per_update
            norms = []
            if self.training.gradient_noise:
                norms = [results[SQUARED_NORM], squared_norm(self.training, results, scale.factor)]
            metrics += [tf.cast(x, tf.float32) for x in (waited, tf.stack(norms) if norms else tf.zeros([0]))]
            if self.training.fingerprints:
                with tf.control_dependencies(updates):
                    stored = {v.name: self.variables.stored(v.name) for v in self.training.updated_variables if v.trainable}
                metrics.append(fingerprints(self.training, own_results, stored, scale.factor))
            with tf.control_dependencies([counted, self.outfeed.enqueue(metrics)]):
                return tf.constant(True)

        return tf.cond(complete, apply, lambda: tf.constant(False)), stop_requests

    def _amax_updates(
        self, weights: dict[str, tf.Tensor], results: dict[str, tf.Tensor], scale_growth: float | tf.Tensor = 1.0
    ) -> list[tf.Operation]:
        """Return the operation that updates the running amax (largest value) of the operands of scaled kernels.

        The amax decays with a half-life of 16 updates. A value that is not finite counts as twice the previous amax. If the
        loss scale changes, the amax of gradients is multiplied by the same factor.
        """
        if AMAX not in results:
            return []
        before, now = weights[AMAX_HISTORY], tf.cast(results[AMAX], tf.float32)
        now = tf.where_v2(tf.math.is_finite(now), now, 2 * before)
        amax = tf.maximum(now, before * AMAX_DECAY) * tf.stack([1.0, scale_growth])
        return [self.variables.model[AMAX_HISTORY].assign(amax, read_value=False)]

    def _variable_updates(
        self,
        weights: dict[str, tf.Tensor],
        results: dict[str, tf.Tensor],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        scale: LossScale,
        scale_state: tf.Tensor | None,
    ) -> list[tf.Operation]:
        """Return the operations that update all variables and slots, the amax history, and the loss scale. With automatic
        loss scaling, if gradients are not finite, update only the amax history and the loss scale."""
        if scale_state is None:
            moved = self._apply_gradients(weights, results, learning_rate, step, scale, done=step)
            return [*moved, *self._amax_updates(weights, results)]
        done = step - tf.cast(scale_state[2], step.dtype)  # skipped updates did not change the slots.
        finite = tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(results[n])) for n in self.training.trained_names]))

        def apply() -> tf.Tensor:
            with tf.control_dependencies(self._apply_gradients(weights, results, learning_rate, step, scale, done)):
                return tf.constant(True)

        applied = tf.cond(finite, apply, lambda: tf.constant(False))
        largest = tf.cast(results[LARGEST_GRADIENT], tf.float32)
        state = scale.next_state(scale_state, finite, largest, self.training.gradient_limit)
        amax_updates = self._amax_updates(weights, results, scale_growth=state[0] / scale_state[0])
        return [applied.op, self.variables.loss_scale.assign(state, read_value=False), *amax_updates]

    def _all_reduce(
        self, passes: tf.Tensor, local_results: dict[str, tf.Tensor], seconds: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        """Return the stop request of each instance, the `seconds` that each instance needed for its passes, and the results
        reduced over all instances.

        Gradients are all-reduced in buckets while the backward pass continues. All other results share one more bucket.
        """
        training, group = self.training, self.training.group
        with tf.control_dependencies([passes]):
            stop = self.stop.read_value()
        stop_request = tf.where_v2(tf.equal(passes, training.plan.passes_per_update), stop, STOP_AT_PASS)
        # Each instance fills its own row of a table, so the sum over the instances has all rows.
        own_row = tf.one_hot(group.instance, group.size, dtype=training.dtype)
        stop_and_seconds = tf.stack([tf.cast(stop_request, training.dtype), tf.cast(seconds, training.dtype)])
        others = {name: x for name, x in local_results.items() if name not in training.trained_names}
        maxima = [name for name in REDUCED_BY_MAX if name in others]
        others |= {name: tf.tensordot(own_row, tf.cast(others[name], training.dtype), 0) for name in maxima}
        others[_STOP_AND_SECONDS] = stop_and_seconds[:, None] * own_row
        with tf.device(training.plan.stage_devices[0]):
            gradients = self._all_reduce_gradients(local_results, step)
            totals = group.all_reduce_bucket(others)
        # Variables must not change before all sums have succeeded.
        with tf.control_dependencies([*gradients.values(), *totals.values()]):
            stop_requests, instance_seconds = tf.unstack(totals.pop(_STOP_AND_SECONDS))
            requests_by_instance = tf.cast(tf.round(stop_requests), tf.int32)
        reduced = {name: total / group.size for name, total in totals.items() if name not in maxima}
        reduced |= {name: tf.reduce_max(totals[name], 0) for name in maxima}
        reduced |= {name: self.policy.cast_averaged_gradient(name, x, step) for name, x in gradients.items()}
        return requests_by_instance, tf.cast(instance_seconds, tf.float32), reduced

    def _all_reduce_gradients(self, local_results: dict[str, tf.Tensor], step: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the mean of each gradient over the instances. Buckets are summed in the order of the backward pass."""
        training, group, options = self.training, self.training.group, self.training.plan.options
        all_reduce_format = number_formats.by_name(options.all_reduce_format)
        # divide before summing, because the sum may overflow.
        divide_first = all_reduce_format != number_formats.FP32
        names = [variable.name for variable in reversed(training.updated_variables) if variable.trainable]
        sent = {
            name: self.policy.cast_for_all_reduce(
                local_results[name] / group.size if divide_first else local_results[name], all_reduce_format
            )
            for name in names
        }
        sent = {name: injected(training.fault, MESSAGE, name, x, step) for name, x in sent.items()}
        sizes = {name: x.dtype.size * elements(x) for name, x in sent.items()}
        totals: dict[str, tf.Tensor] = {}
        for bucket in buckets(names, sizes, options.max_cross_replica_buffer_size):
            totals |= group.all_reduce_bucket({name: sent[name] for name in bucket})
        totals = {name: tf.cast(total, local_results[name].dtype) for name, total in totals.items()}
        return totals if divide_first else {name: total / group.size for name, total in totals.items()}

    def _apply_gradients(
        self,
        weights: dict[str, tf.Tensor],
        results: dict[str, tf.Tensor],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        scale: LossScale,
        done: tf.Tensor,
    ) -> list[tf.Operation]:
        """Return the operations that update all variables and slots. `step` is the number of earlier updates, and `done` the
        number of earlier updates that were not skipped."""
        training, policy = self.training, self.policy
        operations = self._average_updates(weights, results)
        trained = [variable for variable in training.updated_variables if variable.trainable]
        gradients = self._clipped([self._gradient(variable, results[variable.name]) for variable in trained], scale)
        moves = [self._move(variable, gradient, scale) for variable, gradient in zip(trained, gradients)]
        with tf.device(training.plan.stage_devices[0]):
            learning_rate = tf.identity(scale.adjusted_learning_rate(learning_rate))
            moved = self._moved(moves, learning_rate, done)
        for move, (value, slots) in zip(moves, moved):
            if move.decayed_apart is not None:
                value -= learning_rate * training.weight_decay * move.decayed_apart
            value = injected(training.fault, WEIGHT, move.name, value, step)
            value = policy.check_finite(value, f"the update of {move.name}")
            operations += self.variables.assign(move.name, value, slots, step)
        if not training.ema:
            return operations
        n = tf.cast(done, training.dtype)
        with tf.control_dependencies(operations):
            # as in TensorFlow's ExponentialMovingAverage(num_updates), the first updates count more.
            return self.variables.move_averages(tf.minimum(tf.cast(training.ema, training.dtype), (1 + n) / (10 + n)))

    def _moved(self, moves: Sequence[Move], learning_rate: tf.Tensor, done: tf.Tensor) -> list[Moved]:
        """Return each variable and its slots after the update. Rules with norms get the trained rows of a proxy variable as
        separate variables."""
        optimiser, proxies = self.training.optimiser, {v.name for v in self.training.variables if v.proxy}
        in_rows = proxies if optimiser.has_norms else set()
        single = [move for move in moves if move.name not in in_rows]
        rows = [move.row(PROXY_ROWS.index(row), row) for move in moves if move.name in in_rows for row in TRAINED_PROXY_ROWS]
        moved = optimiser.update_all([*single, *rows], learning_rate, done) if moves else []
        after = {move.name: each for move, each in zip([*single, *rows], moved)}
        return [_with_rows(move, after) if move.name in in_rows else after[move.name] for move in moves]

    def _gradient(self, variable: Variable, gradient: tf.Tensor) -> tf.Tensor:
        """Return the gradient of a variable. For a proxy variable, propagate the gradients of the statistics to the other
        rows."""
        if not variable.proxy:
            return gradient
        return proxy_norm.chain_gradient(variable.proxy, self.variables.state(variable.name)[0], gradient)

    def _clipped(self, gradients: list[tf.Tensor], scale: LossScale) -> list[tf.Tensor]:
        """Return the gradients times c / max(c, norm) (Pascanu et al., arXiv 1211.5063). `norm` is the norm of all gradients
        together, and c is the limit times the loss scale."""
        limit = self.training.clip_grad_norm * scale.factor
        if not self.training.clip_grad_norm or not gradients:
            return gradients
        with tf.device(self.training.plan.stage_devices[0]):  # one device adds in the same order for any stages.
            norm = tf.linalg.global_norm([tf.identity(gradient) for gradient in gradients])
            factor = limit / tf.maximum(norm, limit)
        return [gradient * factor for gradient in gradients]

    def _move(self, variable: Variable, gradient: tf.Tensor, scale: LossScale) -> Move:
        training, gradient = self.training, tf.identity(gradient)
        # Do not read 16-bit weights and slots before the gradient exists, because they are widened to FP32.
        with tf.control_dependencies([gradient] if self.variables.model[variable.name].dtype.size == 2 else []):
            w, slots = self.variables.state(variable.name)
        decayed, decay = self._decayed_value(variable, w), training.weight_decay * scale.factor
        move = Move(variable.name, w, slots, gradient, divisor=scale.gradient_divisor)
        if decayed is None or training.optimiser.decoupled_decay:
            return move._replace(decayed_apart=decayed)
        return move._replace(decay=decay) if decayed is w else move._replace(gradient=gradient + decayed * decay)

    def _average_updates(self, weights: dict[str, tf.Tensor], results: dict[str, tf.Tensor]) -> list[tf.Operation]:
        """Return the operations that update the moving statistics from the batch statistics."""
        averages = [variable for variable in self.training.updated_variables if not variable.trainable]
        if not averages:
            return []
        before, now = ([of[variable.name] for variable in averages] for of in (weights, results))
        shares = [1 - variable.decay for variable in averages]
        with tf.device(self.training.plan.stage_devices[0]):
            kernels = library.load_for(tf.identity(before[0]))
        if kernels is not None:
            after = kernels.emulator_average_update(averages=before, values=now, shares=shares)
        else:
            after = [old - (old - new) * share for old, new, share in zip(before, now, shares)]
        return [self.variables.model[v.name].assign(value, read_value=False) for v, value in zip(averages, after)]

    def _decayed_value(self, variable: Variable, master: tf.Tensor) -> tf.Tensor | None:
        """Return the value to which weight decay applies, or None if it does not apply to the variable. Rows of a proxy
        variable without weight decay are zero."""
        if variable.proxy:
            return proxy_norm.rows_to_decay(master)
        return master if self.training.weight_decay and self.training.decayed(variable.name) else None


def _with_rows(move: Move, after: Mapping[str, Moved]) -> Moved:
    """Return a proxy variable and its slots with updated rows."""
    moved = {row: after[f"{move.name}/{row}"] for row in TRAINED_PROXY_ROWS}

    def whole(old: tf.Tensor, new: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return tf.stack([new.get(row, old[k]) for k, row in enumerate(PROXY_ROWS)])

    slots = {name: whole(old, {row: slots[name] for row, (_, slots) in moved.items()}) for name, old in move.slots.items()}
    return whole(move.w, {row: w for row, (w, _) in moved.items()}), slots
