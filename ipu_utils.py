"""The device layer's public face: (model, plan, data) -> compiled training and validation programs.

Says nothing of files, logs or command lines; the machinery is in `emulator/`.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from base.draws import Seed
from emulator.plan.plan import ExecutionPlan
from emulator.plan.precision import SINGLE, Precision
from emulator.plan.trace import Trace
from emulator.program.executor import Metrics, TrainingProgram
from emulator.program.frozen import IMAGE, PROBABILITIES, FrozenProgram, freeze, portable_graph
from emulator.program.group import WorkerGroup
from emulator.program.inference import InferenceProgram, Score
from emulator.program.optimised_graph import CacheEntry
from emulator.program.runtime import NextFeatures, Stream
from emulator.program.stages import Features
from emulator.program.training import LossScale, Optimiser, Training
from Models._segments import Segment

__all__ = (
    "IMAGE",
    "PROBABILITIES",
    "CacheEntry",
    "FrozenProgram",
    "InferenceProgram",
    "Metrics",
    "Seed",
    "Stream",
    "TrainingProgram",
    "WorkerGroup",
    "compile_inference",
    "compile_training",
    "freeze",
    "portable_graph",
    "stream_of",
)


def compile_training(
    segments: list[Segment],
    trace: Trace,
    plan: ExecutionPlan,
    *,
    seed: int,
    stream: Stream,
    loss: Callable[[tf.Tensor, Features], tf.Tensor],
    correct: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    optimiser: Optimiser,
    scale: LossScale,
    weight_decay: float = 0.0,
    decayed: Callable[[str], bool] = lambda name: True,
    trained: Callable[[str], bool] = lambda name: True,
    recording: bool = False,
    group: WorkerGroup | None = None,
    cache_entry: CacheEntry | None = None,
) -> TrainingProgram:
    """A program whose `step(rates)` does len(rates) weight updates as `plan` says.

    `loss`: (logits, features) -> [batch]; `correct`: (logits, labels) -> [batch]. `decayed`, `trained`: of a variable's
    name; the gradient pass ends before the first trained one. `scale`: the loss scale that fits the optimiser.
    `recording`: keep the times of the stages' cells for `profile`. `group`: the instances that do an update together, of
    which this process is one. `cache_entry`: the program's place in the program cache.
    """

    def training(seed: Seed, features: NextFeatures) -> Training:
        return Training(
            segments=segments,
            trace=trace,
            plan=plan,
            seed=seed,
            features=features,
            loss=loss,
            correct=correct,
            optimiser=optimiser,
            scale=scale,
            weight_decay=weight_decay,
            decayed=decayed,
            trained=trained,
            recording=recording,
            group=group,
        )

    return TrainingProgram(training, stream, plan, seed, group=group, cache_entry=cache_entry)


def compile_inference(
    segments: list[Segment],
    trace: Trace,
    *,
    stream: Stream,
    names: tuple[str, ...],
    sums: Callable[[tf.Tensor, tf.Tensor], dict[str, tf.Tensor]],
    shape: tuple[int, ...] = (),
    device: str = "/cpu:0",
    precision: Precision = SINGLE,
    seed: int = 0,
    cache_entry: CacheEntry | None = None,
) -> InferenceProgram:
    """A program whose `step(first, end)` adds up `sums(logits, labels)`, each of `shape`, over micro-batches, on the device
    `device`."""
    return InferenceProgram(
        segments, trace.variables, stream, Score(names, sums, shape), device, precision, seed, cache_entry
    )


def stream_of(dataset: Callable[[], tf.data.Dataset], prepare: Callable[[Seed, Features], Features]) -> Stream:
    """The infeed: micro-batches of a host data set, prepared on the device; `prepare` gets the seed too."""

    def features(seed: Seed, element: Features, step: tf.Tensor, m: tf.Tensor) -> Features:
        return prepare(seed, element)

    return Stream(features, dataset)
