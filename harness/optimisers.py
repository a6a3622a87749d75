"""Weight update rules, written against TensorFlow's own training kernels, and the loss scale that fits each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow.compat.v1 as tf


@dataclass(frozen=True)
class LossScale:
    """The loss is multiplied by `scale`; the update undoes it in the rate or in the gradient.

    SGD and momentum are linear in the gradient, so the rate is divided once; rules that are not divide the
    gradients before the update.
    """

    scale: float
    undone_in_rate: bool

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss to differentiate."""
        return loss * self.scale

    def rate(self, rate: tf.Tensor) -> tf.Tensor:
        """The learning rate to update with."""
        return rate / self.scale if self.undone_in_rate else rate

    def gradient(self, gradient: tf.Tensor) -> tf.Tensor:
        """The gradient to update with."""
        return gradient if self.undone_in_rate else gradient / self.scale


class Optimiser(ABC):
    """One update rule. `slots` names its state per variable, with its initial value."""

    slots: Mapping[str, float] = {}
    linear = True  # in the gradient: the loss scale may be undone in the rate

    @abstractmethod
    def apply(
        self, variable: tf.Variable, slots: Mapping[str, tf.Variable], gradient: tf.Tensor, rate: tf.Tensor
    ) -> tf.Operation:
        """The operation that moves `variable` and its slots."""


class SGD(Optimiser):
    """w -= rate * g."""

    def apply(
        self, variable: tf.Variable, slots: Mapping[str, tf.Variable], gradient: tf.Tensor, rate: tf.Tensor
    ) -> tf.Operation:
        return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


@dataclass(frozen=True)
class Momentum(Optimiser):
    """a = momentum * a + g; w -= rate * a."""

    momentum: float
    slots = {"Momentum": 0.0}

    def apply(
        self, variable: tf.Variable, slots: Mapping[str, tf.Variable], gradient: tf.Tensor, rate: tf.Tensor
    ) -> tf.Operation:
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle, accum=slots["Momentum"].handle, lr=rate, grad=gradient,
            momentum=tf.constant(self.momentum, gradient.dtype),
        )  # fmt: skip


def make(name: str, momentum: float) -> Optimiser:
    """The optimiser of `--optimiser`."""
    return {"SGD": SGD, "momentum": lambda: Momentum(momentum)}[name]()
