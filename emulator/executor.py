"""Carries out a plan in TensorFlow: one session call is one host step, the loops over weight updates and
micro-batches run inside the graph, and the metrics of every update leave through a queue while they run.

Weights are read once per update and handed to the model as tensors; a micro-batch's gradients and statistics
are added in the order of the global micro-batches, scaled once, decayed once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from emulator.cost.trace import Trace
from emulator.plan import ExecutionPlan
from emulator.stages import ACCURACY, LOSS, Network, Tokens, call, chunks
from Models._layers import Variable
from Models._segments import Segment
from Models._tensor_layers import initial_value

Features = Mapping[str, tf.Tensor]
NextFeatures = Callable[[tf.Tensor, tf.Tensor], Features]  # (updates done, micro-batch of the update)
STEP = "global_step"
RUN, STOP_AT_UPDATE, STOP_AT_CALL = 0, 1, 2  # of the stop flag
OUTFEED_DEPTH = 100_000


class UpdateRule(Protocol):
    """What the executor needs of an optimiser."""

    slots: Mapping[str, float]

    def apply(
        self, variable: tf.Variable, slots: Mapping[str, tf.Variable], gradient: tf.Tensor, rate: tf.Tensor
    ) -> tf.Operation: ...


class Scale(Protocol):
    """What the executor needs of a loss scale."""

    scale: float

    def scaled(self, loss: tf.Tensor) -> tf.Tensor: ...
    def rate(self, rate: tf.Tensor) -> tf.Tensor: ...
    def gradient(self, gradient: tf.Tensor) -> tf.Tensor: ...


@dataclass(frozen=True)
class Stream:
    """Where micro-batches come from: {"image", "label", "position"} of the next one, and the iterator behind it,
    if there is one."""

    features: NextFeatures
    iterator: tf.data.Iterator | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """Everything that decides the numbers of a training program.

    `loss`, `hits`: (logits, labels) -> [batch]. `decayed`: whether weight decay applies to a variable's name.
    """

    segments: list[Segment]
    trace: Trace
    plan: ExecutionPlan
    seed: int
    stream: Stream
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    hits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    optimiser: UpdateRule
    scale: Scale
    weight_decay: float
    decayed: Callable[[str], bool]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Every variable of the model."""
        return self.trace.variables

    def trained_by_segment(self) -> dict[str, tuple[str, ...]]:
        """The names of each segment's trained variables."""
        found: dict[str, tuple[str, ...]] = {}
        for operation in self.trace.operations:
            trained = tuple(variable.name for variable in operation.variables if variable.trainable)
            found[operation.segment] = found.get(operation.segment, ()) + trained
        return found


@dataclass(frozen=True)
class Metrics:
    """Loss and accuracy of every weight update of one host step, float32 [updates]."""

    loss: np.ndarray
    accuracy: np.ndarray


def session_config(devices: int = 1) -> tf.ConfigProto:
    """`devices` logical CPUs, and threads enough for all of them to be busy.

    Grappler's remapping is off: it fuses within a device only, so it would make bits depend on the plan.
    """
    config = tf.ConfigProto(device_count={"CPU": devices})
    if devices > 1:
        config.inter_op_parallelism_threads = max(os.cpu_count() or 1, devices + 1)
    config.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
    return config


def new_graph() -> tf.Graph:
    """An empty graph whose loops are the old kind: their `parallel_iterations` is what a pipeline needs."""
    tf.disable_control_flow_v2()
    return tf.Graph()


class Weights:
    """The variables of one graph: model, optimiser slots, the count of updates done."""

    def __init__(self, variables: tuple[Variable, ...], seed: int, slots: Mapping[str, float]) -> None:
        self.model: dict[str, tf.Variable] = {}
        self.slots: dict[str, dict[str, tf.Variable]] = {}
        for variable in variables:
            self.model[variable.name] = _variable(
                variable.name, lambda v=variable: initial_value(v, seed), variable.trainable
            )
            if variable.trainable:
                self.slots[variable.name] = {
                    slot: _variable(f"{variable.name}/{slot}", lambda v=variable, x=value: tf.fill(v.shape, x), False)
                    for slot, value in slots.items()
                }
        self.step = _variable(STEP, lambda: tf.zeros([], tf.int64), False)

    @property
    def saved(self) -> dict[str, tf.Variable]:
        """What a checkpoint holds, by name."""
        slots = {f"{name}/{slot}": v for name, named in self.slots.items() for slot, v in named.items()}
        return {**self.model, **slots, STEP: self.step}

    def read(self) -> dict[str, tf.Tensor]:
        """The model's weights as they are now."""
        return {name: variable.read_value() for name, variable in self.model.items()}


def assign(session: tf.Session, variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray]) -> None:
    """Sets variables by name, through their initialisers, so that the graph does not grow."""
    feeds = {variable.initializer.inputs[1]: values[name] for name, variable in variables.items()}
    session.run([variable.initializer for variable in variables.values()], feeds)


def _variable(name: str, value: Callable[[], tf.Tensor], trainable: bool) -> tf.Variable:
    return tf.get_variable(name, initializer=value, trainable=trainable, use_resource=True)


class TrainingProgram:
    """A compiled training program in a graph of its own."""

    def __init__(self, build: Callable[[], Training]) -> None:
        """`build` is called inside the new graph, because it makes the data stream."""
        self._ended = threading.Event()
        self.graph = new_graph()
        with self.graph.as_default():
            training = build()
            self.weights = Weights(training.variables, training.seed, training.optimiser.slots)
            self._rates = tf.placeholder(tf.float32, [None], "learning_rates")
            outfeed = tf.FIFOQueue(OUTFEED_DEPTH, [tf.float32, tf.float32], [[], []], name="outfeed")
            stop = tf.get_variable("stop", initializer=RUN, trainable=False, use_resource=True)
            self._step = _host_step(training, self.weights, self._rates, outfeed, stop)
            self._outfeed = outfeed.dequeue()
            self._waiting = outfeed.size()
            self._stops = {kind: stop.assign(kind, read_value=False) for kind in (STOP_AT_UPDATE, STOP_AT_CALL)}
            initialise = [tf.global_variables_initializer()]
            if training.stream.iterator is not None:
                initialise.append(training.stream.iterator.initializer)
            self.saver = tf.train.Saver(self.weights.saved, max_to_keep=None, save_relative_paths=True)
        self.session = tf.Session(graph=self.graph, config=session_config(training.plan.devices))
        self.session.run(initialise)

    def compile(self) -> None:
        """Optimises the graph and sets the executors up, with a host step of no updates: no state moves."""
        self.session.run(self._step, {self._rates: np.zeros([0], np.float32)})

    def step(self, rates: Sequence[float], report: Callable[[float, float], None] | None = None) -> Metrics:
        """One host step of len(rates) weight updates, each with its own learning rate; fewer after `stop`.

        `report` is called in another thread with the loss and accuracy of each update as soon as it is done.
        """
        found: list[tuple[float, float]] = []
        reader = threading.Thread(target=self._drain, args=(len(rates), found, report), daemon=True)
        reader.start()
        try:
            done = int(self.session.run(self._step, {self._rates: np.asarray(rates, np.float32)}))
        finally:
            self._ended.set()
            reader.join()
            self._ended.clear()
        columns = np.asarray(found[:done], np.float32).reshape(-1, 2)
        return Metrics(columns[:, 0], columns[:, 1])

    def stop(self, drop_update: bool) -> None:
        """From any thread: end the host step after the present update, or at once, dropping it. For good."""
        self.session.run(self._stops[STOP_AT_CALL if drop_update else STOP_AT_UPDATE])

    def _drain(self, updates: int, found: list[tuple[float, float]], report: Callable[[float, float], None] | None) -> None:
        """Takes metrics out of the queue until the step has ended and the queue is empty."""
        while len(found) < updates:
            if not self.session.run(self._waiting):
                if self._ended.wait(0.02) and not self.session.run(self._waiting):
                    return
                continue
            loss, accuracy = self.session.run(self._outfeed)
            found.append((float(loss), float(accuracy)))
            if report:
                report(float(loss), float(accuracy))

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Takes over a checkpoint: model, slots and the count of updates."""
        assign(self.session, self.weights.saved, values)

    def values(self) -> dict[str, np.ndarray]:
        """Every saved variable."""
        return self.session.run(self.weights.saved)

    def close(self) -> None:
        """Frees the session's memory."""
        self.session.close()


def _host_step(
    training: Training, weights: Weights, rates: tf.Tensor, outfeed: tf.QueueBase, stop: tf.Variable
) -> tf.Tensor:
    """The device loop over weight updates; the number of updates done. Loss and accuracy of each go into the
    outfeed while the loop runs."""
    updates = tf.size(rates)

    def body(i: tf.Tensor, done: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies([i]):
            finished = _update(training, weights, rates[i], outfeed, stop)
        return i + 1, done + tf.cast(finished, tf.int32)

    def goes_on(i: tf.Tensor, done: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([done]):
            return tf.logical_and(i < updates, tf.equal(stop.read_value(), RUN))

    _, done = tf.while_loop(goes_on, body, (tf.constant(0), tf.constant(0)), parallel_iterations=1, back_prop=False)
    return done


def _update(training: Training, weights: Weights, rate: tf.Tensor, outfeed: tf.QueueBase, stop: tf.Variable) -> tf.Tensor:
    """One weight update, all of it or, when it was told to stop in between, nothing; whether it was done."""
    values = weights.read()
    step = weights.step.read_value()
    calls, means = _means(training, values, step, stop)

    def move() -> tf.Tensor:
        moves = _moves(training, weights, values, means, rate)
        with tf.control_dependencies(moves):
            counted = weights.step.assign_add(1, read_value=False)
        with tf.control_dependencies([counted, outfeed.enqueue([means[LOSS], means[ACCURACY]])]):
            return tf.constant(True)

    return tf.cond(tf.equal(calls, training.plan.calls), move, lambda: tf.constant(False))


def _moves(
    training: Training, weights: Weights, values: dict[str, tf.Tensor], means: dict[str, tf.Tensor], rate: tf.Tensor
) -> list[tf.Operation]:
    """The operations that move every variable and slot."""
    rate = training.scale.rate(rate)
    moves = []
    for variable in training.variables:
        name, mean = variable.name, means[variable.name]
        if not variable.trainable:
            moves.append(weights.model[name].assign_sub((values[name] - mean) * (1 - variable.decay), read_value=False))
            continue
        if training.weight_decay and training.decayed(name):
            mean += values[name] * (training.weight_decay * training.scale.scale)
        gradient = training.scale.gradient(mean)
        moves.append(training.optimiser.apply(weights.model[name], weights.slots[name], gradient, rate))
    return moves


def _means(
    training: Training, values: dict[str, tf.Tensor], step: tf.Tensor, stop: tf.Variable
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """The number of calls made, and loss, accuracy, gradients and batch statistics by name, averaged over them;
    they are added one after another however many are in flight."""
    plan = training.plan
    network = Network(
        chunks=chunks(plan, training.segments, training.trained_by_segment()),
        plan=plan,
        seed=training.seed,
        loss=training.loss,
        hits=training.hits,
        scaled=training.scale.scaled,
    )

    def run(m: tf.Tensor, tokens: Tokens) -> tuple[tf.Tensor, dict[str, tf.Tensor], Tokens]:
        with tf.control_dependencies([m]):
            features = training.stream.features(step, m)
        # the next call's counter waits for this fetch: calls in flight would fetch in any order otherwise
        with tf.control_dependencies([features["label"]]):
            following = m + 1
        return (following, *call(network, values, features, tokens))

    if plan.calls == 1:
        return tf.constant(1), run(tf.constant(0), tuple(() for _ in plan.stages))[1]
    shapes = {LOSS: (), ACCURACY: (), **{variable.name: variable.shape for variable in training.variables}}

    def body(m: tf.Tensor, tokens: Tokens, sums: tuple[tf.Tensor, ...]) -> tuple[Any, ...]:
        following, found, moved = run(m, tokens)
        return following, moved, tuple(total + found[name] for name, total in zip(shapes, sums))

    tokens = tuple(tuple(tf.constant(0) for _ in range(lag)) for lag in plan.lags)
    zeros = tuple(tf.zeros(shape) for shape in shapes.values())

    def goes_on(m: tf.Tensor, *_: Any) -> tf.Tensor:
        with tf.control_dependencies([m]):
            return tf.logical_and(m < plan.calls, stop.read_value() < STOP_AT_CALL)

    calls, _, totals = tf.while_loop(
        goes_on, body, (tf.constant(0), tokens, zeros), parallel_iterations=plan.in_flight, back_prop=False
    )
    return calls, {name: total / plan.calls for name, total in zip(shapes, totals)}
