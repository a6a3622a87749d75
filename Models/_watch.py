"""Eyes on the arithmetic: what stops at the first result that is not finite and names its layer, and what counts the
gradients that FP16 loses. Neither changes a bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from Models._tensor_layers import TensorLayers

MARK = "floating-point exception"
SMALLEST, FIRST_BEYOND = 2.0**-25, 65520.0  # to the nearest half: the largest that becomes 0, the least that overflows
OVERFLOW, INVALID = "overflow or division by zero", "invalid operation (NaN)"
CHECKED = (
    "conv", "norm", "norm_activation", "proxy_norm_activation", "relu", "relu6", "swish", "sigmoid", "add", "gate",
    "max_pool", "global_mean", "dense", "dropout", "drop_path",
)  # fmt: skip


def checked(x: tf.Tensor, where: str) -> tf.Tensor:
    """x; where it is not finite the session call fails with [MARK] [what happened] [where]."""
    kind = tf.where_v2(tf.reduce_any(tf.math.is_inf(x)), OVERFLOW, INVALID)
    finite = tf.reduce_all(tf.math.is_finite(x))
    with tf.control_dependencies([tf.raw_ops.Assert(condition=finite, data=[MARK, kind, where])]):
        return tf.identity(x)


def _checked_gradient(x: tf.Tensor, where: str) -> tf.Tensor:
    """x, the gradient that is handed back for it checked."""

    @tf.custom_gradient
    def apply(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return tf.identity(x), lambda dy: checked(dy, where)

    return apply(x)


class CheckedLayers(TensorLayers):
    """The vocabulary, every result and every gradient checked."""


def _checking(name: str) -> Callable[..., Any]:
    """The layer `name`, with checks around it."""

    def layer(self: CheckedLayers, x: tf.Tensor, *rest: Any, **options: Any) -> Any:
        where = self.path(name)
        x, *rest = (_checked_gradient(v, f"{where}, backward") if isinstance(v, tf.Tensor) else v for v in (x, *rest))
        y = getattr(super(CheckedLayers, self), name)(x, *rest, **options)
        first, *others = y if isinstance(y, tuple) else (y,)
        first = checked(first, f"{where}, forward")
        return (first, *others) if others else first

    return layer


for _name in CHECKED:
    setattr(CheckedLayers, _name, _checking(_name))


class GradientWatch:
    """Counts, in the backward pass of one call, the gradients that arrive at the results of convolutions and dense layers
    and that FP16 has made 0, or that overflowed: of the call's first picture, as a sample."""

    def __init__(self, names: tuple[str, ...], dense: frozenset[str]) -> None:
        """`names`: paths of the layers. `dense`: of those, where a gradient of exactly 0 can come of underflow only, as
        behind a norm; elsewhere noughts are not counted."""
        self.names = names
        self._dense = dense
        self._found: dict[str, tf.Tensor] = {}

    def watched(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """x, the gradient that arrives at it counted."""
        if name not in self.names:
            return x

        @tf.custom_gradient
        def apply(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def gradient(dy: tf.Tensor) -> tf.Tensor:
                size = tf.abs(dy[:1])
                noughts = size <= SMALLEST if name in self._dense else tf.zeros_like(size, tf.bool)
                beyond = tf.logical_not(size < FIRST_BEYOND)
                self._found[name] = tf.stack([tf.reduce_mean(tf.cast(each, tf.float32)) for each in (noughts, beyond)])
                return dy

            return tf.identity(x), gradient

        return apply(x)

    def lost(self) -> tf.Tensor:
        """float32 [layers, 2]: the shares that underflowed and that overflowed; after the backward pass."""
        return tf.stack([self._found.get(name, tf.zeros([2])) for name in self.names])
