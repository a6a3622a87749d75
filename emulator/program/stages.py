"""A pass of the network: several micro-batches forward and backward through the stages, each on its device.

The backward pass is an explicit chain over chunks of segments: with recomputation a chunk keeps its input only
and runs forward again when its output's gradient arrives, with the same draws. A gradient never crosses a chunk
but through the tensor at its boundary, whatever the plan, so that every plan computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf

from emulator.layers.gradient_rules import gradients
from emulator.layers.policy import PrecisionPolicy
from emulator.layers.watch import GradientWatch
from emulator.plan.plan import ExecutionPlan
from emulator.plan.schedules import BACKWARD, FORWARD
from emulator.program.cells import Cells
from Models import _segments
from Models._segments import Segment

Features = Mapping[str, tf.Tensor]
LOSS, ACCURACY, LOST_GRADIENTS, LARGEST_GRADIENT = "loss", "accuracy", "lost gradients", "largest gradient"
LARGEST_OPERANDS = "largest operands"


@dataclass(frozen=True)
class Chunk:
    """Segments that are differentiated together, and the trained variables they use."""

    segments: list[Segment]
    variables: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network that a pass computes."""

    stages: tuple[tuple[Chunk, ...], ...]
    plan: ExecutionPlan
    policy: PrecisionPolicy
    loss: Callable[[tf.Tensor, Features], tf.Tensor]
    correct: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    scaled: Callable[[tf.Tensor], tf.Tensor]
    sync_mean: Callable[[tf.Tensor], tf.Tensor] | None = None  # the mean over instances that share batch-norm statistics

    def trained_before(self, stage: int, chunk: int) -> bool:
        """Return whether a gradient is wanted of what goes into a chunk."""
        before = [each for chunks in self.stages[:stage] for each in chunks] + list(self.stages[stage][:chunk])
        return any(each.variables for each in before)


def chunks(
    plan: ExecutionPlan, segments: list[Segment], variables: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[Chunk, ...], ...]:
    """Each stage's chunks: with recomputation its segments one by one, otherwise all in one. `variables`: the trained
    ones of each segment."""
    named = {segment.name: segment for segment in segments}

    def chunk(names: tuple[str, ...]) -> Chunk:
        return Chunk([named[name] for name in names], tuple(v for name in names for v in variables.get(name, ())))

    if plan.options.enable_recomputation:
        return tuple(tuple(chunk((name,)) for name in names) for names in plan.stages)
    return tuple((chunk(names),) for names in plan.stages)


@dataclass
class _Pass:
    """A pass in the making: the inputs and outputs of its chunks, and their batch statistics."""

    network: Network
    values: Mapping[str, tf.Tensor]
    positions: tf.Tensor
    watch: GradientWatch
    inputs: dict[tuple[int, int], tf.Tensor] = field(default_factory=dict)
    outputs: dict[tuple[int, int], tf.Tensor] = field(default_factory=dict)
    statistics: dict[str, tf.Tensor] = field(default_factory=dict)

    def run(self, chunk: Chunk, x: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The chunk's output and batch statistics."""
        network = self.network
        layers = network.policy.layers(
            self.values, training=True, positions=self.positions, norm_parts=network.plan.fold, watch=self.watch,
            sync_mean=network.sync_mean,
        )  # fmt: skip
        return _segments.run(chunk.segments, layers, x), layers.statistics

    def forward(self, stage: int, x: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The stage's output, and the batch statistics found on the way."""
        of_stage: list[tf.Tensor] = []
        for c, chunk in enumerate(self.network.stages[stage]):
            self.inputs[stage, c] = x
            x, statistics = self.run(chunk, x)
            self.outputs[stage, c] = x
            self.statistics |= statistics
            of_stage += statistics.values()
        return x, of_stage

    def backward(self, stage: int, dy: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The gradients of the stage's input and of its trained variables. A chunk whose gradient arrives at once still
        has its activations; the others, with recomputation, run again. Before the first trained variable it ends."""
        of_variables: dict[str, tf.Tensor] = {}
        network = self.network
        last = (len(network.stages) - 1, len(network.stages[-1]) - 1)
        for c, chunk in reversed(list(enumerate(network.stages[stage]))):
            further = network.trained_before(stage, c)
            if not chunk.variables and not further:
                break
            x, y = self.inputs[stage, c], self.outputs[stage, c]
            if network.plan.options.enable_recomputation and (stage, c) != last:
                x = _after(x, (dy,))
                y, _ = self.run(chunk, x)  # its statistics have been counted
            dxs = gradients(y, [self.values[name] for name in chunk.variables] + ([x] if further else []), dy)
            of_variables |= dict(zip(chunk.variables, dxs))
            dy = dxs[-1] if further else dy
        return dy, of_variables


def run_pass(
    network: Network, values: Mapping[str, tf.Tensor], features: Features, cells: Cells, watch: GradientWatch
) -> dict[str, tf.Tensor]:
    """Loss, accuracy, gradients and statistics of one pass by name, and what gradients were lost."""
    plan = network.plan
    work = _Pass(network, values, plan.random_position(features["position"]), watch)
    x, of_variables = features["image"], {}
    for stage in range(len(network.stages)):
        with tf.device(plan.stage_devices[stage]):
            x, statistics = work.forward(stage, cells.begin(stage, FORWARD, x))
            x = cells.end(stage, FORWARD, x, statistics)
    with tf.device(plan.stage_devices[-1]):
        logits = tf.identity(x)
        loss = tf.reduce_mean(network.loss(logits, features))
        accuracy = tf.reduce_mean(network.correct(logits, features["label"]))
        (dy,) = gradients(network.scaled(loss), [logits])
        dy = network.policy.cast_loss_gradient(dy, work.positions)
    for stage in reversed(range(len(network.stages))):
        with tf.device(plan.stage_devices[stage]):
            dy, of_stage = work.backward(stage, cells.begin(stage, BACKWARD, dy))
            dy = cells.end(stage, BACKWARD, dy, [g for g in of_stage.values() if g is not None])
        of_variables |= of_stage
    lost = {LOST_GRADIENTS: watch.lost()} if watch.names else {}
    if watch.with_largest:
        lost[LARGEST_GRADIENT] = watch.largest()
    if plan.precision.scaled_kernels:
        lost[LARGEST_OPERANDS] = watch.operands(len(plan.precision.scaled_kernels))
    return {LOSS: _after(loss, tuple(cells.side_effects)), ACCURACY: accuracy, **of_variables, **work.statistics, **lost}


def _after(x: tf.Tensor, earlier: tuple[tf.Tensor | tf.Operation, ...]) -> tf.Tensor:
    """x, but not before `earlier` exist."""
    with tf.control_dependencies(list(earlier)):
        return tf.identity(x)
