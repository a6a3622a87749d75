"""The graph of a host step: the device loop over weight updates, each of them the passes of its micro-batches, sums over the
instances, and one move of every variable."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tensorflow.compat.v1 as tf

from emulator.layers import proxy_norm
from emulator.layers.policy import PrecisionPolicy
from emulator.plan import formats
from emulator.plan.checkpoint_tensors import FORMAT_MAXIMA
from emulator.program.cells import StageOrder
from emulator.program.group import buckets, elements
from emulator.program.passes import MAXIMA, RUN, STOP_AT_PASS, Passes
from emulator.program.runtime import NextFeatures
from emulator.program.stages import ACCURACY, LARGEST_GRADIENT, LARGEST_OPERANDS, LOSS, LOST_GRADIENTS
from emulator.program.training import LossScale, Training
from emulator.program.weights import Weights
from Models._layers import Variable

FADING = 2.0 ** (-1 / 16)  # of the largest numbers so far, in an update


@dataclass(frozen=True)
class HostStep:
    """The graph of one host step."""

    training: Training
    policy: PrecisionPolicy
    next_features: NextFeatures
    weights: Weights
    order: StageOrder
    outfeed: tf.QueueBase
    stop: tf.Variable

    def run(self, rates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The device loop over weight updates; returns the number of updates done, and the request of each instance of
        a group at the end. Loss and accuracy of each update go into the outfeed while the loop runs."""
        updates, group = tf.size(rates), self.training.group

        def body(i: tf.Tensor, done: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([i]):
                finished, stop_requests = self._update(tf.cast(rates[i], self.training.dtype))
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

    def _update(self, rate: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Make one weight update, whole or, after a request to stop in between, not at all; return whether it was done, and
        the request of each instance of a group."""
        values = self.weights.read()
        step = self.weights.step.read_value()
        scale, scale_state = self.training.scale, None
        if scale.rule:
            scale_state = self.weights.loss_scale.read_value()
            scale = replace(scale, scale=tf.cast(scale_state[0], self.training.dtype))
        an_update = Passes(self.training, self.policy, self.next_features, self.order, self.stop, scale)
        passes, means = an_update.means(values, step)
        whole, stop_requests = tf.equal(passes, self.training.plan.passes_per_update), tf.zeros([0], tf.int32)
        if self.training.group:
            stop_requests, means = self._all_reduce(passes, means, step)
            whole = tf.reduce_max(stop_requests) < STOP_AT_PASS

        def move() -> tf.Tensor:
            moves = [*self._moves(values, means, rate, step, scale, scale_state), *self._follow_maxima(values, means)]
            with tf.control_dependencies(moves):
                counted = self.weights.step.assign_add(1, read_value=False)
            metrics = [tf.cast(means[name], tf.float32) for name in (LOSS, ACCURACY)]
            metrics.append(means.get(LOST_GRADIENTS, tf.zeros([0, 2])))
            with tf.control_dependencies([counted, self.outfeed.enqueue(metrics)]):
                return tf.constant(True)

        return tf.cond(whole, move, lambda: tf.constant(False)), stop_requests

    def _follow_maxima(self, values: dict[str, tf.Tensor], means: dict[str, tf.Tensor]) -> list[tf.Operation]:
        """The operation that takes the largest numbers of an update's products into those so far, which fade: by half in 16
        updates. A number that is not finite counts as twice the largest so far."""
        if LARGEST_OPERANDS not in means:
            return []
        before, now = values[FORMAT_MAXIMA], tf.cast(means[LARGEST_OPERANDS], tf.float32)
        now = tf.where_v2(tf.math.is_finite(now), now, 2 * before)
        return [self.weights.model[FORMAT_MAXIMA].assign(tf.maximum(now, before * FADING), read_value=False)]

    def _moves(
        self, values: dict[str, tf.Tensor], means: dict[str, tf.Tensor], rate: tf.Tensor, step: tf.Tensor, scale: LossScale,
        scale_state: tf.Tensor | None,
    ) -> list[tf.Operation]:  # fmt: skip
        """The operations that move every variable and slot, and the loss scale; nothing but that moves where the run finds
        its scale and gradients overflow."""
        if scale_state is None:
            return self._apply_gradients(values, means, rate, step, scale)
        finite = tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(means[n])) for n in self.training.trained_names]))

        def apply() -> tf.Tensor:
            with tf.control_dependencies(self._apply_gradients(values, means, rate, step, scale)):
                return tf.constant(True)

        applied = tf.cond(finite, apply, lambda: tf.constant(False))
        largest = tf.cast(means[LARGEST_GRADIENT], tf.float32)
        state = scale.next_state(scale_state, finite, largest, self.training.gradient_limit)
        return [applied.op, self.weights.loss_scale.assign(state, read_value=False)]

    def _all_reduce(
        self, passes: tf.Tensor, means: dict[str, tf.Tensor], step: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The request of each instance, and the means over all: gradients in as few sums as the buckets allow, in the
        order of the backward pass, which need not be over for the first; the rest, which is small, in one."""
        training, group = self.training, self.training.group
        with tf.control_dependencies([passes]):
            stop = self.stop.read_value()
        stop_request = tf.where_v2(tf.equal(passes, training.plan.passes_per_update), stop, STOP_AT_PASS)
        own_place = tf.one_hot(group.instance, group.size, dtype=training.dtype)
        stop_requests = own_place * tf.cast(stop_request, training.dtype)
        for name in (name for name in MAXIMA if name in means):  # a sum in which every instance has a place of its own
            means = {**means, name: tf.tensordot(own_place, tf.cast(means[name], training.dtype), 0)}
        trainable = [variable.name for variable in reversed(training.updated_variables) if variable.trainable]
        small = [name for name in means if name not in trainable]
        totals: dict[str, tf.Tensor] = {}
        with tf.device(training.plan.stage_devices[0]):
            wire = formats.named(training.plan.options.all_reduce_format)
            halves = trainable if wire != formats.FP32 else []  # are divided first: a sum may overflow where the mean fits
            sent = {name: means[name] if name not in halves else means[name] / group.size for name in trainable}
            sent = {name: self.policy.sent(x, wire) for name, x in sent.items()}
            sizes = {name: x.dtype.size * elements(x) for name, x in sent.items()}
            for names in buckets(trainable, sizes, training.plan.options.max_cross_replica_buffer_size):
                bucket = group.all_reduce_bucket({name: sent[name] for name in names})
                totals |= {name: tf.cast(x, means[name].dtype) for name, x in bucket.items()}
            totals |= group.all_reduce_bucket({**{name: means[name] for name in small}, "": stop_requests})
        with tf.control_dependencies(list(totals.values())):  # a sum that fails leaves every variable as it is
            agreed = tf.cast(tf.round(totals.pop("")), tf.int32)
        for name in (name for name in MAXIMA if name in totals):
            totals[name] = tf.reduce_max(totals[name], 0) * group.size
        means = {name: total if name in halves else total / group.size for name, total in totals.items()}
        cast = self.policy.cast_instances_mean
        return agreed, {name: cast(name, x, step) if name in training.trained_names else x for name, x in means.items()}

    def _apply_gradients(
        self, values: dict[str, tf.Tensor], means: dict[str, tf.Tensor], rate: tf.Tensor, step: tf.Tensor, scale: LossScale
    ) -> list[tf.Operation]:
        """The operations that move every variable and slot."""
        training, weights = self.training, self.weights
        rate, decay, optimiser = scale.rate(rate), training.weight_decay, training.optimiser
        operations = []
        for variable in training.updated_variables:
            name, mean = variable.name, means[variable.name]
            if not variable.trainable:
                difference = (values[name] - mean) * (1 - variable.decay)
                operations.append(weights.model[name].assign_sub(difference, read_value=False))
                continue
            master, slots = weights.state(name)
            if variable.proxy:
                mean = proxy_norm.chained(variable.proxy, master, mean)
            decaying = self._decaying(variable, master)
            if decaying is not None and not optimiser.decoupled_decay:
                mean += decaying * (decay * scale.scale)
            value, slots = optimiser.update(name, master, slots, scale.gradient(mean), rate, step)
            if decaying is not None and optimiser.decoupled_decay:
                value -= rate * decay * decaying
            operations += weights.put(name, self.policy.checked(value, f"the update of {name}"), slots, step)
        return operations

    def _decaying(self, variable: Variable, master: tf.Tensor) -> tf.Tensor | None:
        """The part of a variable's value that weight decay takes a share of; None for a variable without."""
        if variable.proxy:
            return proxy_norm.decayed_rows(master)
        return master if self.training.weight_decay and self.training.decayed(variable.name) else None
