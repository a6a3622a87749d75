"""The validation program: a device loop over micro-batches that adds up scores, in a graph of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from emulator import record
from emulator.executor import (
    NextFeatures,
    Stream,
    as_written,
    named_faults,
    new_graph,
    operation_events,
    refuse_missing_devices,
    session_config,
)
from emulator.precision import SINGLE, Precision
from emulator.record import Mark
from emulator.stages import layers_of, rounding, rounding_of
from emulator.weights import Weights, assign
from Models import _half, _segments
from Models._layers import Variable
from Models._segments import Segment


@dataclass(frozen=True)
class Score:
    """What validation adds up: the names of the sums, the sums of a micro-batch from (logits, labels), and the shape of
    each of them."""

    names: tuple[str, ...]
    sums: Callable[[tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]
    shape: tuple[int, ...] = ()


class InferenceProgram:
    """A compiled validation program in a graph of its own: the loop over micro-batches runs on the device.

    Samples labelled below 0 fill up the last micro-batch and count for nothing.
    """

    def __init__(
        self,
        segments: list[Segment],
        variables: tuple[Variable, ...],
        stream: Callable[[], Stream],
        score: Score,
        home: str = "/cpu:0",
        precision: Precision = SINGLE,
    ) -> None:
        """`stream` is called inside the new graph; `home` is the TensorFlow device of the network."""
        refuse_missing_devices((home,))
        self._device = ThreadPoolExecutor(1)
        self.names = score.names
        self.graph = new_graph()
        with self.graph.as_default(), tf.device(home):
            self._stream = as_written(stream)()
            self.weights = Weights(variables, 0, {}, precision=precision)
            self._range = (tf.placeholder(tf.int32, [], "first"), tf.placeholder(tf.int32, [], "end"))
            stop = tf.get_variable("stop", initializer=False, trainable=False, use_resource=True)
            self._stop = stop.assign(True, read_value=False)
            self._step = _inference_step(segments, self.weights, self._stream.features, score, precision, stop, *self._range)
            initialise = tf.global_variables_initializer()
        self.marks = [Mark(record.GRAPH, time.perf_counter(), f"{len(self.graph.get_operations()):,} operations")]
        self.session = tf.Session(graph=self.graph, config=session_config((home,)))
        self.session.run(initialise)
        self.marks.append(Mark(record.SESSION, time.perf_counter()))

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Takes over a checkpoint's weights; a missing one is a KeyError with its name."""
        assign(self.session, self.weights.model, values)

    def rewind(self) -> None:
        """Puts the stream back to its first micro-batch."""
        if self._stream.iterator is not None:
            self.session.run(self._stream.iterator.initializer)

    def step(self, first: int, end: int) -> dict[str, np.ndarray]:
        """Sums over micro-batches first..end-1, which must be the stream's next ones. What a signal raises ends the call at
        its next micro-batch, and then the program is of no more use."""
        with named_faults(lambda: "validation"):
            # the calling thread stays free for signals, which would wait for the end of the session call otherwise
            running = self._device.submit(self.session.run, self._step, dict(zip(self._range, (first, end))))
            try:
                return running.result()
            except BaseException:
                if not running.done():
                    self.session.run(self._stop)
                    wait([running])
                raise

    def profile(self, first: int, end: int) -> tuple[Mapping[str, Any], ...]:
        """The same step; when each of its operations ran, as events of a Chrome trace."""
        options, trace = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
        self.session.run(self._step, dict(zip(self._range, (first, end))), options, trace)
        return operation_events(trace)

    def close(self) -> None:
        """Frees the session's memory."""
        self._device.shutdown()
        self.session.close()


def logits_of(
    segments: list[Segment], weights: Mapping[str, tf.Tensor], image: tf.Tensor, precision: Precision
) -> tf.Tensor:
    """The network's answer [batch, classes] to a micro-batch of prepared images, float32 [batch, side, side, channels]."""
    image = _half.on_grid(image, rounding(precision)) if precision.half else image
    layers = layers_of(precision)(weights, training=False, rounding=rounding_of(precision))
    return _segments.run(segments, layers, image)


def _inference_step(
    segments: list[Segment],
    weights: Weights,
    features: NextFeatures,
    score: Score,
    precision: Precision,
    stop: tf.Variable,
    first: tf.Tensor,
    end: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """The device loop over micro-batches; float64 sums by name."""
    values = weights.read()

    def body(i: tf.Tensor, *totals: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.control_dependencies([i]):
            found = features(tf.constant(0, tf.int64), i)
        logits = logits_of(segments, values, found["image"], precision)
        sums = score.sums(logits, found["label"])
        return (i + 1, *(total + tf.cast(sums[name], tf.float64) for name, total in zip(score.names, totals)))

    start = [first, *(tf.zeros(score.shape, tf.float64) for _ in score.names)]

    def going_on(i: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([i]):
            return tf.logical_and(i < end, tf.logical_not(stop.read_value()))

    _, *totals = tf.while_loop(going_on, body, start, parallel_iterations=1, back_prop=False)
    return dict(zip(score.names, totals))
