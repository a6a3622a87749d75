"""The public interface of the device layer: compile training and inference programs from model, plan and data.

The implementation is in `emulator/`. Files, logs and command lines are handled in `harness/`.
"""

from __future__ import annotations

from collections.abc import Callable

from cnn_harness.base.process import tf_runtime

tf_runtime.prefer_onednn()  # before the first import of TensorFlow

import tensorflow.compat.v1 as tf

from cnn_harness.base.draws import Seed
from cnn_harness.emulator.inference.frozen import IMAGE, PROBABILITIES, FrozenProgram, freeze, portable_graph
from cnn_harness.emulator.inference.inference_program import InferenceProgram, InferenceSpec, Score
from cnn_harness.emulator.lowering.lists import printed_after
from cnn_harness.emulator.numerics.observing_program import ObservationSpec, ObservingProgram
from cnn_harness.emulator.program.forward_backward import Features
from cnn_harness.emulator.program.loss_scale import LossScale
from cnn_harness.emulator.program.optimised_graph import CacheEntry, OptimisedGraph
from cnn_harness.emulator.program.runtime import Stream
from cnn_harness.emulator.program.training_program import Metrics, TrainingProgram
from cnn_harness.emulator.program.training_spec import Move, Optimiser, TrainingSpec
from cnn_harness.emulator.program.worker_group import WorkerGroup

__all__ = (
    "IMAGE",
    "PROBABILITIES",
    "CacheEntry",
    "Features",
    "FrozenProgram",
    "InferenceProgram",
    "InferenceSpec",
    "LossScale",
    "Metrics",
    "Move",
    "ObservationSpec",
    "ObservingProgram",
    "OptimisedGraph",
    "Optimiser",
    "Score",
    "Seed",
    "Stream",
    "TrainingProgram",
    "TrainingSpec",
    "WorkerGroup",
    "compile_inference",
    "compile_training",
    "freeze",
    "portable_graph",
    "printed_after",
    "stream_of",
)


def compile_training(training: TrainingSpec, stream: Stream, cache_entry: CacheEntry | None = None) -> TrainingProgram:
    """Return a program whose `step(rates)` performs len(rates) weight updates.

    `cache_entry` is the file of the compiled program in the program cache.
    """
    return TrainingProgram(training, stream, cache_entry)


def compile_inference(inference: InferenceSpec, stream: Stream, cache_entry: CacheEntry | None = None) -> InferenceProgram:
    """Return a program whose `step(first, end)` sums the scores of `inference` over micro-batches."""
    return InferenceProgram(inference, stream, cache_entry)


def stream_of(dataset: Callable[[], tf.data.Dataset], prepare: Callable[[Seed, Features], Features]) -> Stream:
    """Return the input stream of a program: micro-batches of `dataset`, which `prepare` preprocesses on the device."""

    def features(seed: Seed, element: Features, step: tf.Tensor, pass_index: tf.Tensor) -> Features:
        return prepare(seed, element)

    return Stream(features, dataset)
