"""The specification of a training program: network, loss, update rule, loss scale and plan."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import tensorflow.compat.v1 as tf

from cnn_harness.base.draws import Seed
from cnn_harness.emulator.layers.watch import WatchedLayers
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.network.network import PRODUCTS, Network, Node
from cnn_harness.emulator.plan.fault import Fault
from cnn_harness.emulator.plan.number_formats import FP32, Format
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.program.forward_backward import Features
from cnn_harness.emulator.program.loss_scale import LossScale
from cnn_harness.emulator.program.worker_group import WorkerGroup
from cnn_harness.Models._layers import Variable


class Move(NamedTuple):
    """The input of an update rule for one variable `w`. Slots and gradient have the shape of `w`.

    * `decay` is the factor of weight decay: the rule first adds decay * w to the gradient.
    * `divisor` is the number by which the rule then divides the gradient.
    * `decayed_apart` is the value that decoupled weight decay uses after the rule, or None.
    """

    name: str
    w: tf.Tensor
    slots: dict[str, tf.Tensor]
    gradient: tf.Tensor
    decay: float | tf.Tensor = 0.0
    divisor: float | tf.Tensor = 1.0
    decayed_apart: tf.Tensor | None = None

    def row(self, k: int, name: str) -> Move:
        """Return the move of row k of the variable."""
        slots = {slot: x[k] for slot, x in self.slots.items()}
        apart = None if self.decayed_apart is None else self.decayed_apart[k]
        return self._replace(
            name=f"{self.name}/{name}", w=self.w[k], slots=slots, gradient=self.gradient[k], decayed_apart=apart
        )

    @property
    def whole_gradient(self) -> tf.Tensor:
        """The gradient after adding weight decay and dividing."""
        decayed = isinstance(self.decay, tf.Tensor) or self.decay != 0
        whole = self.gradient + self.w * self.decay if decayed else self.gradient
        return whole / self.divisor


class Optimiser(Protocol):
    """An update rule.

    * `slots` has the names of each variable's slots and their initial values.
    * `decoupled_decay` means that weight decay is not added to the gradient. Instead, the update subtracts learning rate x
      decay x variable (arXiv 1711.05101).
    * `has_norms` means that a step depends on norms of the whole variable.
    """

    slots: Mapping[str, float]
    decoupled_decay: bool = False
    has_norms: bool = False

    @abstractmethod
    def update(
        self, name: str, w: tf.Tensor, slots: dict[str, tf.Tensor], g: tf.Tensor, learning_rate: tf.Tensor, done: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the variable `name` and its slots after the update. `done` (int64) is the number of earlier updates that
        were not skipped."""

    def update_all(
        self, moves: Sequence[Move], learning_rate: tf.Tensor, done: tf.Tensor
    ) -> list[tuple[tf.Tensor, dict[str, tf.Tensor]]]:
        """Return each variable and its slots after the update. All moves have the same divisor."""
        return [self.update(m.name, m.w, m.slots, m.whole_gradient, learning_rate, done) for m in moves]


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """The specification of a training program.

    * `loss` maps (logits, features) to the loss of each sample, [batch].
    * `correct` maps (logits, labels) to the accuracy of each sample, [batch].
    * `decayed` returns whether weight decay applies to the variable with a given name.
    * `trained` returns whether updates change the variable with a given name.
    * `frozen` names moving statistics. Norms with these statistics use them in training too.
    * `clip_grad_norm` limits the norm of all gradients together, before weight decay; 0 means no limit.
    * `ema` is the decay of exponential moving averages of all variables that updates change; 0 means no averages.
    * `gradient_noise` means that the squared norms of gradients are measured.
    * `fingerprints` means that gradients and weights are hashed.
    * `fault` is the bit flip that is injected in this process.
    * `recording` means that the times of cells can be recorded.
    * `group` has the processes that train together.
    """

    network: Network
    plan: ExecutionPlan
    seed: int
    loss: Callable[[tf.Tensor, Features], tf.Tensor]
    correct: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    optimiser: Optimiser
    loss_scale: LossScale
    weight_decay: float
    decayed: Callable[[str], bool]
    trained: Callable[[str], bool] = lambda name: True
    frozen: frozenset[str] = frozenset()
    clip_grad_norm: float = 0.0
    ema: float = 0.0
    gradient_noise: bool = False
    fingerprints: bool = False
    fault: Fault | None = None
    recording: bool = False
    group: WorkerGroup | None = None
    dtype: tf.DType = tf.float32  # narrow formats are emulated in FP32.

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Every variable of the model."""
        return self.network.variables

    @property
    def updated_variables(self) -> tuple[Variable, ...]:
        """The variables that updates change, including moving statistics."""
        return tuple(variable for variable in self.variables if self.trained(variable.name))

    @property
    def watched_layers(self) -> WatchedLayers:
        """The layers with gradients in narrow formats, whose lost gradients are counted."""
        read_by = {node.inputs[0]: node.op for node in self.network.operations}
        products = [node for node in self.network.operations if node.op in PRODUCTS]
        narrow = {node.path: self._gradients_of(node) for node in products if self._gradients_of(node)}
        before_norm = frozenset(node.path for node in products if read_by.get(node.outputs[0], "norm") == "norm")
        return WatchedLayers(narrow, before_norm & narrow.keys())

    @property
    def gradient_limit(self) -> float:
        """The smallest gradient that overflows in the format of any gradient."""
        return min((each.overflow for formats in self.watched_layers.formats.values() for each in formats), default=math.inf)

    def _gradients_of(self, node: Node) -> tuple[Format, ...]:
        """Return the narrow formats to which the incoming gradient of a convolution or dense layer is rounded."""
        return tuple(each for each in self.plan.precision.gradients_of(node.variable("kernel")) if each != FP32)

    @cached_property
    def trained_names(self) -> frozenset[str]:
        """The names of the variables that gradients change."""
        return frozenset(variable.name for variable in self.updated_variables if variable.trainable)

    def policy(self, seed: Seed) -> PrecisionPolicy:
        """Return the policy that casts values to their formats. `seed` is the seed of the run, or its keys in the graph."""
        return PrecisionPolicy(self.plan.precision, seed, self.dtype)
