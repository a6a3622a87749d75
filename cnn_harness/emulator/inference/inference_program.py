"""The validation program: a graph with a device loop over micro-batches that sums scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base.draws import Seed
from cnn_harness.emulator.lowering.lists import prepared
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.plan.precision import SINGLE, Precision
from cnn_harness.emulator.program.optimised_graph import CacheEntry
from cnn_harness.emulator.program.runtime import NextFeatures, Program, ProgramGraph, Stream, named_faults, operation_events
from cnn_harness.emulator.program.variables import ProgramVariables


@dataclass(frozen=True)
class Score:
    """The sums that validation computes. `sums` maps (logits, labels) to the sums of a micro-batch, by name."""

    names: tuple[str, ...]
    sums: Callable[[tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class InferenceSpec:
    """The specification of a validation program."""

    network: Network
    score: Score
    device: str = "/cpu:0"
    precision: Precision = SINGLE
    seed: int = 0  # of the stream
    mirrored: bool = False  # average the probabilities over each image and its mirror image.


class InferenceProgram(Program):
    """A compiled validation program in its own graph, with the loop over micro-batches on the device. Samples with labels
    below 0 fill the last micro-batch and do not count."""

    def __init__(self, inference: InferenceSpec, stream: Stream, cache_entry: CacheEntry | None = None) -> None:
        """`stream` delivers the images to validate. `cache_entry` is the entry in the program cache."""
        self.names, device, write = inference.score.names, inference.device, partial(_write, inference)
        super().__init__(write, stream, (device,), inference.seed, place=device, cache_entry=cache_entry)

    def compile(self) -> None:
        """Run a step without micro-batches, so that TensorFlow sets up executors."""
        self.rewind()
        self.step(0, 0)
        self._mark_compiled()

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Load the weights of a checkpoint. If a weight is missing, raise KeyError with its name."""
        self.state.assign(self.session, values, self.state.model)

    def rewind(self) -> None:
        """Move the stream back to its first micro-batch."""
        self.session.run(self._rewind)

    def step(self, first: int, end: int) -> dict[str, np.ndarray]:
        """Return the sums over micro-batches first..end-1, which must be the next micro-batches of the stream. If a signal
        raises an exception, the call ends before the next micro-batch, and the program cannot be used again."""
        with named_faults(lambda: "validation"):
            # the main thread must be free to handle signals.
            running = self._device.submit(self.session.run, *self._call(first, end))
            try:
                sums = running.result()
            except BaseException:
                if not running.done():
                    self.stop()
                    wait([running])
                raise
        if end > first and self._cache_entry is not None:
            self._cache_entry.ran()
        return dict(zip(self.names, sums))

    def stop(self) -> None:
        """End the current call of `step` before the next micro-batch, and later calls at once. Their sums are invalid."""
        self.session.run(self._names["stop"])

    def profile(self, first: int, end: int) -> tuple[Mapping[str, Any], ...]:
        """Run `step` over micro-batches first..end-1. Return the times of all operations as events of a Chrome trace."""
        options, trace = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
        self.session.run(*self._call(first, end), options, trace)
        return operation_events(trace)

    def _call(self, first: int, end: int) -> tuple[Sequence[str], dict[str, int]]:
        return self._names["step"], dict(zip(self._names["fed"], (first, end)))


def logits_of(network: Network, weights: Mapping[str, tf.Tensor], image: tf.Tensor, precision: Precision) -> tf.Tensor:
    """Return the logits, float32 [batch, classes], for prepared images, float32 [batch, side, side, channels]."""
    policy = PrecisionPolicy(precision)
    target = policy.target(image.device, training=False)
    lowering = policy.lowering(weights, target)
    return policy.widen(lowering.run(prepared(network, precision, target), policy.cast_input(image)))


def _answers(inference: InferenceSpec, weights: Mapping[str, tf.Tensor], image: tf.Tensor) -> tf.Tensor:
    """Return the logits [batch, classes]. If `mirrored`, return the logarithms of the mean probabilities instead, which can
    be used like logits."""
    images = tf.concat([image, tf.reverse(image, [2])], 0) if inference.mirrored else image
    logits = logits_of(inference.network, weights, images, inference.precision)
    if not inference.mirrored:
        return logits
    both = tf.split(tf.nn.log_softmax(tf.cast(logits, tf.float32)), 2)
    return tf.reduce_logsumexp(tf.stack(both), 0) - math.log(2)


def _write(inference: InferenceSpec, seed: Seed, next_features: NextFeatures) -> ProgramGraph:
    """Write a validation program into the current graph. Only the stream uses the seed."""
    weights = ProgramVariables(inference.network.variables, 0, {}, precision=inference.precision)
    fed = [tf.placeholder(tf.int32, [], "first"), tf.placeholder(tf.int32, [], "end")]
    stop = tf.get_variable("stop", initializer=False, trainable=False, use_resource=True)
    names = {
        "fed": fed,
        "step": _sums(inference, next_features, weights, stop, *fed),
        "stop": [stop.assign(True, read_value=False)],
        "initialise": [tf.global_variables_initializer()],
    }
    return ProgramGraph.of(names, {}, weights)


def _sums(
    inference: InferenceSpec, next_features: NextFeatures, weights: ProgramVariables, stop: tf.Variable, first: tf.Tensor,
    end: tf.Tensor,
) -> list[tf.Tensor]:  # fmt: skip
    """Return the float64 sums of the device loop over micro-batches, in the order of the names."""
    values, score = weights.read(), inference.score

    def body(i: tf.Tensor, *totals: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.control_dependencies([i]):
            batch = next_features(tf.constant(0, tf.int64), i)
        sums = score.sums(_answers(inference, values, batch["image"]), batch["label"])
        return (i + 1, *(total + tf.cast(sums[name], tf.float64) for name, total in zip(score.names, totals)))

    start = [first, *(tf.zeros(score.shape, tf.float64) for _ in score.names)]

    def continues(i: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([i]):
            return tf.logical_and(i < end, tf.logical_not(stop.read_value()))

    _, *totals = tf.while_loop(continues, body, start, parallel_iterations=1, back_prop=False)
    return totals
