"""Layers that check their arithmetic. The first result or gradient that is not finite ends the session call with an error
that names the layer. Checks change no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from base.gradient_rules import by_rule
from emulator.layers.rounded_layers import OperandLayers, RoundedLayers
from emulator.layers.rounding import narrow_source, widened
from emulator.layers.tensor_layers import TensorLayers

MARK = "floating-point exception"
OVERFLOW, INVALID = "overflow or division by zero", "invalid operation (NaN)"
CHECKED = (
    "conv", "norm", "norm_activation", "proxy_norm_activation", "relu", "relu6", "swish", "sigmoid", "add", "gate",
    "max_pool", "global_mean", "dense", "dropout", "drop_path",
)  # fmt: skip


def check_finite(x: tf.Tensor, where: str) -> tf.Tensor:
    """Return x. If x is not finite, the session call fails with the message [MARK] [what happened] [where]."""
    kind = tf.where_v2(tf.reduce_any(tf.math.is_inf(x)), OVERFLOW, INVALID)
    finite = tf.reduce_all(tf.math.is_finite(x))
    with tf.control_dependencies([tf.raw_ops.Assert(condition=finite, data=[MARK, kind, where])]):
        return tf.identity(x)


def _checked_gradient(x: tf.Tensor, where: str) -> tf.Tensor:
    """Return x and check its gradient in the backward pass."""

    return by_rule("Identity", tf.identity, x, rule=lambda dy: check_finite(dy, where))


class CheckedLayers(TensorLayers):
    """Layers that check every result and gradient."""

    _layer = ""  # names the layer that is being built.

    def _layer_input(self, x: tf.Tensor, *, gradient_on_grid: bool = False) -> tf.Tensor:
        x = super()._layer_input(x, gradient_on_grid=gradient_on_grid)
        return widened(_checked_gradient(narrow_source(x), f"{self._layer}, backward"))


def _checking(name: str) -> Callable[..., Any]:
    """Return a method that builds the layer `name` and checks its results."""

    def layer(self: CheckedLayers, x: tf.Tensor, *rest: Any, **options: Any) -> Any:
        outer, where = self._layer, self.path(name)
        self._layer = where
        y = getattr(super(CheckedLayers, self), name)(x, *rest, **options)
        self._layer = outer
        first, *others = y if isinstance(y, tuple) else (y,)
        first = self._alias_gradient(check_finite(first, f"{where}, forward"), first)
        return (first, *others) if others else first

    return layer


for _name in CHECKED:
    setattr(CheckedLayers, _name, _checking(_name))


class CheckedOperandLayers(CheckedLayers, OperandLayers):
    """Layers with rounded operands that check every result and gradient."""


class CheckedRoundedLayers(CheckedLayers, RoundedLayers):
    """Layers in a narrow format that check every result and gradient."""
