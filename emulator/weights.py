"""The variables of a graph: how weights and slots are kept, used and updated."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from emulator import draws
from emulator.precision import OFF, SINGLE, Precision
from emulator.stages import rounding
from Models import _half, _proxy_norm
from Models._layers import Variable
from Models._tensor_layers import initial_value

STEP = "global_step"
FP32_COPY = "fp32"  # the slot


class Weights:
    """The variables of one graph: model, optimiser slots of those that are `trained`, the count of updates done.

    With half master weights, what gradients move and its slots are FP16 variables, unless a name is forced; moving
    statistics and the proxies are FP32 always.
    """

    def __init__(
        self,
        variables: tuple[Variable, ...],
        seed: int,
        slots: Mapping[str, float],
        trained: Callable[[str], bool] = lambda name: True,
        dtype: tf.DType = tf.float32,
        precision: Precision = SINGLE,
    ) -> None:
        self.model: dict[str, tf.Variable] = {}
        self.slots: dict[str, dict[str, tf.Variable]] = {}
        self._precision, self._seed, self._dtype = precision, seed, dtype
        self._variables = {variable.name: variable for variable in variables}
        for name, variable in self._variables.items():
            halved = precision.keeps_half(name) and variable.trainable and not variable.proxy
            own, copied = tf.half if halved else dtype, halved and precision.fp32_copy
            self.model[name] = _variable(name, lambda v=variable, k=own: initial_value(v, seed, k), variable.trainable)
            if variable.trainable and trained(name):
                kind = dtype if copied else own
                kept = {slot: lambda v=variable, x=x, k=kind: tf.cast(tf.fill(v.shape, x), k) for slot, x in slots.items()}
                if copied:
                    kept[FP32_COPY] = lambda v=variable: tf.cast(initial_value(v, seed, tf.half), dtype)
                self.slots[name] = {slot: _variable(f"{name}/{slot}", value, False) for slot, value in kept.items()}
        self.step = _variable(STEP, lambda: tf.zeros([], tf.int64), False)

    @property
    def saved(self) -> dict[str, tf.Variable]:
        """What a checkpoint holds, by name."""
        slots = {f"{name}/{slot}": v for name, named in self.slots.items() for slot, v in named.items()}
        return {**self.model, **slots, STEP: self.step}

    def read(self) -> dict[str, tf.Tensor]:
        """The model's weights as the layers use them."""
        return {name: self._used(self._variables[name], variable.read_value()) for name, variable in self.model.items()}

    def _used(self, variable: Variable, value: tf.Tensor) -> tf.Tensor:
        value = tf.cast(value, self._dtype)
        kept_half = self._precision.keeps_half(variable.name) and not variable.proxy
        if not self._precision.half or not variable.trainable or kept_half:
            return value
        halved = _half.on_grid(value, rounding(self._precision))
        return _proxy_norm.with_statistics_of(value, halved) if variable.proxy else halved

    def state(self, name: str) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """What an update moves: the master weights and the slots."""
        slots = {slot: tf.cast(v.read_value(), self._dtype) for slot, v in self.slots[name].items()}
        return slots.pop(FP32_COPY, tf.cast(self.model[name].read_value(), self._dtype)), slots

    def put(self, name: str, value: tf.Tensor, slots: Mapping[str, tf.Tensor], step: tf.Tensor) -> list[tf.Operation]:
        """The operations that store an update's results, as finely as they are kept; `step`: updates done before."""
        variable, kept = self._variables[name], self.slots[name]
        if variable.proxy:
            value = _proxy_norm.refreshed(variable.proxy, self._rounded(name, "value", value, step))
        found = [kept[FP32_COPY].assign(value, read_value=False)] if FP32_COPY in kept else []
        targets = {"value": (self.model[name], value), **{slot: (kept[slot], new) for slot, new in slots.items()}}
        for what, (target, new) in targets.items():
            if target.dtype.base_dtype == tf.half and FP32_COPY not in kept:
                new = self._rounded(name, what, new, step)
            found.append(target.assign(tf.cast(new, target.dtype.base_dtype), read_value=False))
        return found

    def _rounded(self, name: str, what: str, value: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """A half, where masters are; stochastic unless that is off."""
        if not self._precision.keeps_half(name):
            return value
        stochastic = self._precision.stochastic != OFF
        noise = (draws.bits(draws.key(self._seed, f"update/{name}/{what}"), step),) if stochastic else ()
        return _half.on_grid(value, rounding(self._precision, stochastic), noise)


def assign(session: tf.Session, variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray]) -> None:
    """Sets variables by name, through their initialisers, so that the graph does not grow."""
    feeds = {variable.initializer.inputs[1]: values[name] for name, variable in variables.items()}
    session.run([variable.initializer for variable in variables.values()], feeds)


def _variable(name: str, value: Callable[[], tf.Tensor], trainable: bool) -> tf.Variable:
    return tf.get_variable(name, initializer=value, trainable=trainable, use_resource=True)
