"""Carries out a plan in TensorFlow: one session call is one host step, the loops over weight updates and
micro-batches run inside the graph, and the metrics of every update come out once.

Weights are read once per update and handed to the model as tensors; a micro-batch's gradients and statistics
are added in the order of the global micro-batches, scaled once, decayed once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from emulator.cost.trace import Trace
from emulator.plan import ExecutionPlan
from emulator.stages import ACCURACY, LOSS, Network, Tokens, call, chunks
from Models import _segments
from Models._layers import Variable
from Models._segments import Segment
from Models._tensor_layers import TensorLayers, initial_value

Features = Mapping[str, tf.Tensor]
NextFeatures = Callable[[tf.Tensor, tf.Tensor], Features]  # (updates done, micro-batch of the update)
STEP = "global_step"


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
        self.graph = new_graph()
        with self.graph.as_default():
            training = build()
            self.weights = Weights(training.variables, training.seed, training.optimiser.slots)
            self._rates = tf.placeholder(tf.float32, [None], "learning_rates")
            self._step = _host_step(training, self.weights, self._rates)
            initialise = [tf.global_variables_initializer()]
            if training.stream.iterator is not None:
                initialise.append(training.stream.iterator.initializer)
            self.saver = tf.train.Saver(self.weights.saved, max_to_keep=None, save_relative_paths=True)
        self.session = tf.Session(graph=self.graph, config=session_config(training.plan.devices))
        self.session.run(initialise)

    def compile(self) -> None:
        """Optimises the graph and sets the executors up, with a host step of no updates: no state moves."""
        self.step(np.zeros([0], np.float32))

    def step(self, rates: np.ndarray) -> Metrics:
        """One host step of len(rates) weight updates, each with its own learning rate."""
        loss, accuracy = self.session.run(self._step, {self._rates: rates})
        return Metrics(loss, accuracy)

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Takes over a checkpoint: model, slots and the count of updates."""
        assign(self.session, self.weights.saved, values)

    def values(self) -> dict[str, np.ndarray]:
        """Every saved variable."""
        return self.session.run(self.weights.saved)

    def close(self) -> None:
        """Frees the session's memory."""
        self.session.close()


def _host_step(training: Training, weights: Weights, rates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The device loop over weight updates; loss and accuracy of each, [updates]."""
    updates = tf.size(rates)

    def body(i: tf.Tensor, losses: tf.TensorArray, accuracies: tf.TensorArray) -> tuple[Any, ...]:
        with tf.control_dependencies([i]):
            done, loss, accuracy = _update(training, weights, rates[i])
        with tf.control_dependencies([done]):
            return i + 1, losses.write(i, loss), accuracies.write(i, accuracy)

    arrays = [tf.TensorArray(tf.float32, size=updates, element_shape=[], clear_after_read=False) for _ in range(2)]
    _, losses, accuracies = tf.while_loop(
        lambda i, *_: i < updates, body, (tf.constant(0), *arrays), parallel_iterations=1, back_prop=False
    )
    return losses.stack(), accuracies.stack()


def _update(training: Training, weights: Weights, rate: tf.Tensor) -> tuple[tf.Operation, tf.Tensor, tf.Tensor]:
    """One weight update: (the operation after everything has moved, mean loss, mean accuracy)."""
    values = weights.read()
    step = weights.step.read_value()
    means = _means(training, values, step)
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
    with tf.control_dependencies(moves):
        done = weights.step.assign_add(1, read_value=False)
    return done, means[LOSS], means[ACCURACY]


def _means(training: Training, values: dict[str, tf.Tensor], step: tf.Tensor) -> dict[str, tf.Tensor]:
    """Loss, accuracy, gradients and batch statistics by name, averaged over the update's calls, which are added
    one after another however many are in flight."""
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
        return run(tf.constant(0), tuple(() for _ in plan.stages))[1]
    shapes = {LOSS: (), ACCURACY: (), **{variable.name: variable.shape for variable in training.variables}}

    def body(m: tf.Tensor, tokens: Tokens, sums: tuple[tf.Tensor, ...]) -> tuple[Any, ...]:
        following, found, moved = run(m, tokens)
        return following, moved, tuple(total + found[name] for name, total in zip(shapes, sums))

    tokens = tuple(tuple(tf.constant(0) for _ in range(lag)) for lag in plan.lags)
    zeros = tuple(tf.zeros(shape) for shape in shapes.values())
    _, _, totals = tf.while_loop(
        lambda m, *_: m < plan.calls, body, (tf.constant(0), tokens, zeros),
        parallel_iterations=plan.in_flight, back_prop=False,
    )  # fmt: skip
    return {name: total / plan.calls for name, total in zip(shapes, totals)}


@dataclass(frozen=True)
class Score:
    """What validation adds up: the names of the sums, and the sums of a micro-batch from (logits, labels)."""

    names: tuple[str, ...]
    sums: Callable[[tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]


class InferenceProgram:
    """A compiled validation program in a graph of its own: the loop over micro-batches runs on the device.

    Samples labelled below 0 fill up the last micro-batch and count for nothing.
    """

    def __init__(
        self, segments: list[Segment], variables: tuple[Variable, ...], stream: Callable[[], Stream], score: Score
    ) -> None:
        """`stream` is called inside the new graph."""
        self.graph = new_graph()
        with self.graph.as_default():
            self._stream = stream()
            self.weights = Weights(variables, 0, {})
            self._range = (tf.placeholder(tf.int32, [], "first"), tf.placeholder(tf.int32, [], "end"))
            self._step = _inference_step(segments, self.weights, self._stream.features, score, *self._range)
            initialise = tf.global_variables_initializer()
        self.session = tf.Session(graph=self.graph, config=session_config())
        self.session.run(initialise)

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Takes over a checkpoint's weights; a missing one is a KeyError with its name."""
        assign(self.session, self.weights.model, values)

    def rewind(self) -> None:
        """Puts the stream back to its first micro-batch."""
        if self._stream.iterator is not None:
            self.session.run(self._stream.iterator.initializer)

    def step(self, first: int, end: int) -> dict[str, float]:
        """Sums over micro-batches first..end-1, which must be the stream's next ones."""
        return self.session.run(self._step, dict(zip(self._range, (first, end))))

    def close(self) -> None:
        """Frees the session's memory."""
        self.session.close()


def _inference_step(
    segments: list[Segment], weights: Weights, features: NextFeatures, score: Score, first: tf.Tensor, end: tf.Tensor
) -> dict[str, tf.Tensor]:
    """The device loop over micro-batches; float64 sums by name."""
    values = weights.read()

    def body(i: tf.Tensor, *totals: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.control_dependencies([i]):
            found = features(tf.constant(0, tf.int64), i)
        logits = _segments.run(segments, TensorLayers(values, training=False), found["image"])
        sums = score.sums(logits, found["label"])
        return (i + 1, *(total + tf.cast(sums[name], tf.float64) for name, total in zip(score.names, totals)))

    start = [first, *(tf.zeros([], tf.float64) for _ in score.names)]
    _, *totals = tf.while_loop(lambda i, *_: i < end, body, start, parallel_iterations=1, back_prop=False)
    return dict(zip(score.names, totals))
