"""One call of the network: several micro-batches forward and backward through the stages, each on its device.

The backward pass is an explicit chain over chunks of segments: with recomputation a chunk keeps its input only
and runs forward again when its output's gradient arrives, with the same draws. A gradient never crosses a chunk
but through the tensor at its boundary, whatever the plan, so that every plan computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import tensorflow.compat.v1 as tf

from emulator.plan import ExecutionPlan
from Models import _segments
from Models._segments import Segment
from Models._tensor_layers import TensorLayers

LOSS, ACCURACY = "loss", "accuracy"
Tokens = tuple[tuple[tf.Tensor, ...], ...]  # per stage, of its last backward cells, oldest first


@dataclass(frozen=True)
class Chunk:
    """Segments that are differentiated together, and the trained variables they use."""

    stage: int
    segments: list[Segment]
    variables: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Network:
    """What a call computes."""

    chunks: tuple[Chunk, ...]
    plan: ExecutionPlan
    seed: int
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    hits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    scaled: Callable[[tf.Tensor], tf.Tensor]


def chunks(plan: ExecutionPlan, segments: list[Segment], variables: Mapping[str, tuple[str, ...]]) -> tuple[Chunk, ...]:
    """The plan's chunks: with recomputation every segment, otherwise every stage. `variables`: the trained ones of
    each segment."""
    named = {segment.name: segment for segment in segments}
    found = []
    for stage, names in enumerate(plan.stages):
        for group in [(name,) for name in names] if plan.recompute else [names]:
            used = tuple(variable for name in group for variable in variables.get(name, ()))
            found.append(Chunk(stage, [named[name] for name in group], used))
    return tuple(found)


@dataclass
class _Pass:
    """A call in the making."""

    network: Network
    values: Mapping[str, tf.Tensor]
    positions: tf.Tensor
    statistics: dict[str, tf.Tensor] = field(default_factory=dict)

    def forward(self, chunk: Chunk, x: tf.Tensor, first_time: bool) -> tf.Tensor:
        """The chunk's output; only the first time do batch statistics count."""
        layers = TensorLayers(
            self.values, training=True, seed=self.network.seed, positions=self.positions,
            norm_parts=self.network.plan.fold,
        )  # fmt: skip
        y = _segments.run(chunk.segments, layers, x)
        if first_time:
            self.statistics |= layers.statistics
        return y


def call(
    network: Network, values: Mapping[str, tf.Tensor], features: Mapping[str, tf.Tensor], tokens: Tokens
) -> tuple[dict[str, tf.Tensor], Tokens]:
    """Loss, accuracy, gradients and statistics of one call by name, and the tokens for the next."""
    work = _Pass(network, values, features["position"])
    plan = network.plan
    x, inputs, outputs = features["image"], [], []
    started: set[int] = set()
    for chunk in network.chunks:
        with tf.device(plan.device(chunk.stage)):
            if chunk.stage not in started:
                started.add(chunk.stage)
                x = _after(x, tokens[chunk.stage][:1])
            inputs.append(x)
            x = work.forward(chunk, x, first_time=True)
            outputs.append(x)
    with tf.device(plan.device(network.chunks[-1].stage)):
        logits = tf.identity(x)
        loss = tf.reduce_mean(network.loss(logits, features["label"]))
        accuracy = tf.reduce_mean(network.hits(logits, features["label"]))
        (dy,) = tf.gradients(network.scaled(loss), [logits])
    gradients, ends = _backward(work, inputs, outputs, dy)
    moved = tuple((*old[1:], ends[stage]) if old else () for stage, old in enumerate(tokens))
    return {LOSS: loss, ACCURACY: accuracy, **gradients, **work.statistics}, moved


def _backward(
    work: _Pass, inputs: list[tf.Tensor], outputs: list[tf.Tensor], dy: tf.Tensor
) -> tuple[dict[str, tf.Tensor], dict[int, tf.Tensor]]:
    """Gradients by variable, and for each stage a token that its backward cell has ended."""
    gradients: dict[str, tf.Tensor] = {}
    ends: dict[int, tf.Tensor] = {}
    plan, last = work.network.plan, len(inputs) - 1
    for c in range(last, -1, -1):
        chunk = work.network.chunks[c]
        with tf.device(plan.device(chunk.stage)):
            x, y = inputs[c], outputs[c]
            if plan.recompute and c < last:
                x = _after(x, (dy,))
                y = work.forward(chunk, x, first_time=False)
            wanted = [work.values[name] for name in chunk.variables] + ([x] if c else [])
            found = tf.gradients(y, wanted, dy) if wanted else []
            gradients |= dict(zip(chunk.variables, found))
            with tf.control_dependencies([g for g in found if g is not None]):
                ends[chunk.stage] = tf.constant(0)
            dy = found[-1] if c else dy
    return gradients, ends


def _after(x: tf.Tensor, earlier: tuple[tf.Tensor, ...]) -> tf.Tensor:
    """x, but not before `earlier` exist."""
    with tf.control_dependencies(list(earlier)):
        return tf.identity(x)
