"""The device layer's public face: (model, plan, data) -> compiled training and validation programs.

Says nothing of files, logs or command lines; the machinery is in `emulator/`.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from base.draws import Seed
from emulator.inference.frozen import IMAGE, PROBABILITIES, FrozenProgram, freeze, portable_graph
from emulator.inference.inference_program import InferenceProgram, InferenceSpec, Score
from emulator.numerics.observing_program import ObservationSpec, ObservingProgram
from emulator.program.forward_backward import Features
from emulator.program.loss_scale import LossScale
from emulator.program.optimised_graph import CacheEntry
from emulator.program.runtime import Stream
from emulator.program.training_program import Metrics, TrainingProgram
from emulator.program.training_spec import Optimiser, TrainingSpec
from emulator.program.worker_group import WorkerGroup

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
    "ObservationSpec",
    "ObservingProgram",
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
    "stream_of",
)


def compile_training(training: TrainingSpec, stream: Stream, cache_entry: CacheEntry | None = None) -> TrainingProgram:
    """A program whose `step(rates)` does len(rates) weight updates as `training` says. `cache_entry`: its place in the
    program cache."""
    return TrainingProgram(training, stream, cache_entry)


def compile_inference(inference: InferenceSpec, stream: Stream, cache_entry: CacheEntry | None = None) -> InferenceProgram:
    """A program whose `step(first, end)` adds the scores of `inference` up over micro-batches."""
    return InferenceProgram(inference, stream, cache_entry)


def stream_of(dataset: Callable[[], tf.data.Dataset], prepare: Callable[[Seed, Features], Features]) -> Stream:
    """The infeed: micro-batches of a host data set, prepared on the device; `prepare` gets the seed too."""

    def features(seed: Seed, element: Features, step: tf.Tensor, pass_index: tf.Tensor) -> Features:
        return prepare(seed, element)

    return Stream(features, dataset)
