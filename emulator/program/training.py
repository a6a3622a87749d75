"""The numbers of a training program, whatever carries them out: network, loss, update rule, loss scale, and the plan."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import tensorflow.compat.v1 as tf

from base.draws import Seed
from emulator.layers.policy import PrecisionPolicy
from emulator.plan.formats import FP32, Format
from emulator.plan.plan import ExecutionPlan
from emulator.plan.precision import layer_of
from emulator.plan.trace import Operation, Trace
from emulator.program.group import WorkerGroup
from emulator.program.stages import Features
from Models._layers import Variable
from Models._segments import Segment


class Optimiser(Protocol):
    """An update rule. `slots`: the names of each variable's slots, with their initial values. `decoupled_decay`: weight
    decay takes its share of the variable itself, times the rate, and is not in the gradient (arXiv 1711.05101)."""

    slots: Mapping[str, float]
    decoupled_decay: bool = False

    @abstractmethod
    def update(
        self, name: str, w: tf.Tensor, slots: dict[str, tf.Tensor], g: tf.Tensor, learning_rate: tf.Tensor, done: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The variable `name` and its slots after the update; `done`: int64 updates before this one."""


BACK_OFF, LARGEST = "back-off", "largest"  # rules of automatic loss scaling
LEAST_SCALE, MOST_SCALE = 2.0**-24, 2.0**40
ROOM = 8.0  # between the largest gradient and its format's largest number, where the scale follows the largest


@dataclass(frozen=True)
class LossScale:
    """The loss is multiplied by `scale`; the update undoes it in the rate or in the gradient.

    SGD and momentum are linear in the gradient, so the rate is divided once; rules that are not divide the gradients before
    the update, as do all where the scale changes. `rule`: by which the run finds the scale, beginning with this one; "" if
    it keeps it. An update whose gradients overflow is skipped then. `period`: updates without overflow after which BACK_OFF
    doubles the scale.
    """

    scale: float | tf.Tensor
    undone_in_rate: bool
    rule: str = ""
    period: int = 2000

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss to differentiate."""
        return loss * self.scale

    def rate(self, rate: tf.Tensor) -> tf.Tensor:
        """The learning rate to update with."""
        return rate / self.scale if self.undone_in_rate else rate

    def gradient(self, gradient: tf.Tensor) -> tf.Tensor:
        """The gradient to update with."""
        return gradient if self.undone_in_rate else gradient / self.scale

    def first_state(self) -> tf.Tensor:
        """float32 [3]: the scale, the updates since it was changed, and those that were skipped."""
        return tf.stack([tf.constant(self.scale, tf.float32), 0.0, 0.0])

    def next_state(self, state: tf.Tensor, finite: tf.Tensor, largest: tf.Tensor, limit: float) -> tf.Tensor:
        """The state after an update whose gradients are `finite`, or not. `largest`: the largest that arrived at a layer,
        times the scale; `limit`: the least that overflows."""
        scale, since, skipped = tf.unstack(state)
        if self.rule == BACK_OFF:
            factor = tf.where_v2(since + 1 >= self.period, 2.0, 1.0)
        else:
            room = tf.floor(tf.math.log(limit / ROOM / tf.maximum(largest, 1e-30)) / math.log(2.0))
            factor = tf.pow(2.0, tf.minimum(room, 1.0))
        factor = tf.where_v2(finite, factor, 0.5)
        changed = tf.clip_by_value(scale * factor, LEAST_SCALE, MOST_SCALE)
        since = tf.where_v2(tf.equal(factor, 1.0), since + 1, 0.0)
        return tf.stack([changed, since, skipped + tf.where_v2(finite, 0.0, 1.0)])


@dataclass(frozen=True, kw_only=True)
class Training:
    """Everything that decides the numbers of a training program.

    `loss`: (logits, features) -> [batch]; `correct`: (logits, labels) -> [batch]. `decayed`, `trained`: whether weight decay
    applies to a variable of that name, and whether updates move it at all.
    """

    segments: list[Segment]
    trace: Trace
    plan: ExecutionPlan
    seed: int
    loss: Callable[[tf.Tensor, Features], tf.Tensor]
    correct: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    optimiser: Optimiser
    scale: LossScale
    weight_decay: float
    decayed: Callable[[str], bool]
    trained: Callable[[str], bool] = lambda name: True
    recording: bool = False  # of the cells' times
    group: WorkerGroup | None = None  # the instances that train together
    dtype: tf.DType = tf.float32  # of weights and arithmetic; half precision is emulated in FP32

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Every variable of the model."""
        return self.trace.variables

    @property
    def updated_variables(self) -> tuple[Variable, ...]:
        """The variables that an update moves, moving statistics among them."""
        return tuple(variable for variable in self.variables if self.trained(variable.name))

    @property
    def watched(self) -> tuple[Mapping[str, Sequence[Format]], frozenset[str]]:
        """The layers whose incoming gradients are counted, by the narrow formats that these come into, and those of them
        where a gradient of exactly 0 can come of underflow only: behind a norm, and at the end."""
        next_kinds = [operation.kind for operation in self.trace.operations[1:]] + ["norm"]
        products = [(o, after) for o, after in zip(self.trace.operations, next_kinds) if o.kind in ("conv", "dense")]
        narrow = {_layer_name(o): self._gradients_of(o) for o, _ in products if self._gradients_of(o)}
        dense = frozenset(_layer_name(o) for o, after in products if after == "norm")
        return narrow, dense & narrow.keys()

    @property
    def gradient_limit(self) -> float:
        """The least gradient that overflows in one of the formats that gradients come into."""
        return min((each.overflow for formats in self.watched[0].values() for each in formats), default=math.inf)

    def _gradients_of(self, operation: Operation) -> tuple[Format, ...]:
        """Return the formats below FP32 that the gradient arriving at a convolution or dense layer comes into."""
        return tuple(each for each in self.plan.precision.gradients_of(operation.variables[0].name) if each != FP32)

    @cached_property
    def trained_names(self) -> frozenset[str]:
        """The names of the variables that gradients move."""
        return frozenset(variable.name for variable in self.updated_variables if variable.trainable)

    def policy(self, seed: Seed) -> PrecisionPolicy:
        """The way in which each kind of value comes into its format; `seed`: this training's, as its graph has it."""
        return PrecisionPolicy(self.plan.precision, seed, self.dtype)

    def trained_by_segment(self) -> dict[str, tuple[str, ...]]:
        """The names of each segment's variables that gradients move."""
        by_segment: dict[str, tuple[str, ...]] = {}
        for operation in self.trace.operations:
            names = tuple(v.name for v in operation.variables if v.name in self.trained_names)
            by_segment[operation.segment] = by_segment.get(operation.segment, ()) + names
        return by_segment


def _layer_name(operation: Operation) -> str:
    """Return the path of a convolution or dense layer."""
    return layer_of(operation.variables[0].name)
