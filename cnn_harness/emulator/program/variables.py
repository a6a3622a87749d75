"""The variables of a graph. This module stores, reads and updates weights and slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base import draws
from cnn_harness.emulator.layers import proxy_norm
from cnn_harness.emulator.layers.initial_values import filled, initial_value
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.plan import number_formats
from cnn_harness.emulator.plan.checkpoint_tensors import AMAX_HISTORY, EMA, FP32_COPY, LOSS_SCALE, STEP, STEP_SHAPE
from cnn_harness.emulator.plan.number_formats import BF16, FP16, FP32
from cnn_harness.emulator.plan.precision import SINGLE, Precision
from cnn_harness.emulator.program.optimised_graph import OptimisedGraph
from cnn_harness.Models._layers import Variable

_VARIABLE = "variable "  # the names of an optimised graph begin with these words.


class ProgramVariables:
    """The variables of one graph: the model, the optimiser slots of `trained` variables, and the number of updates done.

    The precision determines the dtypes of variables and slots. `loss_scale` is the first state of automatic loss scaling, or
    None. `averaged` means that exponential averages of trained variables and moving statistics are kept.
    """

    def __init__(
        self,
        variables: tuple[Variable, ...],
        seed: draws.Seed,
        slots: Mapping[str, float],
        trained: Callable[[str], bool] = lambda name: True,
        dtype: tf.DType = tf.float32,
        precision: Precision = SINGLE,
        loss_scale: Callable[[], tf.Tensor] | None = None,
        averaged: bool = False,
    ) -> None:
        self.model: dict[str, tf.Variable] = {}
        self.slots: dict[str, dict[str, tf.Variable]] = {}
        self.averages: dict[str, tf.Variable] = {}
        self._policy, self._dtype = PrecisionPolicy(precision, seed, dtype), dtype
        self._variables = {variable.name: variable for variable in variables}
        for name, variable in self._variables.items():
            self.model[name] = _variable(name, lambda v=variable: self._initial_weight(v, seed), variable.trainable)
            if variable.trainable and trained(name):
                first = {slot: lambda v=variable, x=x: self._initial_slot(v, x) for slot, x in slots.items()}
                if precision.has_fp32_copy(variable):
                    first[FP32_COPY] = partial(self._initial_copy, variable, seed)
                self.slots[name] = {slot: _variable(f"{name}/{slot}", value, False) for slot, value in first.items()}
            if averaged and trained(name):
                self.averages[name] = _variable(f"{name}/{EMA}", partial(self._initial_copy, variable, seed), False)
        if precision.scaled_kernels:
            shape = len(precision.scaled_kernels), 2
            self.model[AMAX_HISTORY] = _variable(AMAX_HISTORY, lambda: tf.zeros(shape), False)
        self.step = _variable(STEP, lambda: tf.zeros(STEP_SHAPE, tf.int64), False)
        self.loss_scale = _variable(LOSS_SCALE, loss_scale, False) if loss_scale else None

    def _initial_weight(self, variable: Variable, seed: draws.Seed) -> tf.Tensor:
        """Return the initial value of a variable in its storage format."""
        value = initial_value(variable, seed, self._dtype)
        return self._policy.cast_initial(self._policy.precision.stored_format(variable), value)

    def _initial_copy(self, variable: Variable, seed: draws.Seed) -> tf.Tensor:
        """Return the initial value of a variable in the dtype of the arithmetic."""
        return tf.cast(self._initial_weight(variable, seed), self._dtype)

    def _initial_slot(self, variable: Variable, value: float) -> tf.Tensor:
        """Return the initial value of a slot in its storage format."""
        return self._policy.cast_initial(self._policy.precision.slot_format(variable), filled(variable.shape, value))

    @property
    def saved(self) -> dict[str, tf.Variable]:
        """The variables that checkpoints have, by name."""
        slots = {f"{name}/{slot}": v for name, named in self.slots.items() for slot, v in named.items()}
        slots |= {f"{name}/{EMA}": v for name, v in self.averages.items()}
        state = {} if self.loss_scale is None else {LOSS_SCALE: self.loss_scale}
        return {**self.model, **slots, **state, STEP: self.step}

    def format_name(self, name: str) -> str:
        """Return the name of a saved variable's format, or "" if the variable's dtype is exactly the format."""
        own, _, slot = name.rpartition("/") if name not in self._variables else (name, "", "")
        if own not in self._variables or slot in (FP32_COPY, EMA):
            return ""
        precision = self._policy.precision
        stored = (precision.slot_format if slot else precision.stored_format)(self._variables[own])
        return "" if stored in (FP32, FP16, BF16) else stored.name

    def read(self) -> dict[str, tf.Tensor]:
        """Return the weights of the model in the formats that layers use."""
        values = {name: variable.read_value() for name, variable in self.model.items()}
        return {
            name: self._policy.cast_weight(self._variables[name], value) if name in self._variables else value
            for name, value in values.items()
        }

    def state(self, name: str) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the values of a variable that an update changes: the master weight and the slots."""
        slots = {slot: tf.cast(v.read_value(), self._dtype) for slot, v in self.slots[name].items()}
        return slots.pop(FP32_COPY, tf.cast(self.model[name].read_value(), self._dtype)), slots

    def assign(self, name: str, value: tf.Tensor, slots: Mapping[str, tf.Tensor], step: tf.Tensor) -> list[tf.Operation]:
        """Return operations that store the results of an update in the formats of the variables. `step` is the number of
        earlier updates."""
        variable, own = self._variables[name], self.slots[name]
        assignments = []
        if variable.proxy:
            value = proxy_norm.refreshed(variable.proxy, self._policy.round_update(variable, None, value, step))
        if FP32_COPY in own:
            assignments.append(own[FP32_COPY].assign(value, read_value=False))
        targets = {None: (self.model[name], value), **{slot: (own[slot], new) for slot, new in slots.items()}}
        for slot, (target, new) in targets.items():
            if not variable.proxy and FP32_COPY not in own:
                new = self._policy.round_update(variable, slot, new, step)
            assignments.append(target.assign(tf.cast(new, target.dtype.base_dtype), read_value=False))
        return assignments

    def stored(self, name: str) -> tf.Tensor:
        """Return the value of a variable as updates store it: the FP32 copy, if there is one."""
        return self.slots.get(name, {}).get(FP32_COPY, self.model[name]).read_value()

    def move_averages(self, decay: tf.Tensor) -> list[tf.Operation]:
        """Return operations that store decay * average + (1 - decay) * value for each averaged variable. For a proxy
        variable, compute the statistics from the averages of the other rows."""
        assignments = []
        for name, average in self.averages.items():
            variable, before = self._variables[name], average.read_value()
            after = before + (1 - decay) * (tf.cast(self.stored(name), self._dtype) - before)
            after = proxy_norm.refreshed(variable.proxy, after) if variable.proxy else after
            assignments.append(average.assign(after, read_value=False))
        return assignments


@dataclass(frozen=True)
class VariableHandle:
    """The names of a variable's value, of the tensor to feed for a new value, and of the operation that sets it.

    `format_name` is the name of the variable's format, or "" if the variable's dtype is exactly the format.
    """

    format_name: str
    dtype: tf.DType
    shape: tf.TensorShape
    read: str
    value: str
    set: str


class VariableHandles:
    """Read and set the variables of a program in its session. `saved` has all variables of a checkpoint, `model` the
    variables of the model."""

    def __init__(self, saved: Mapping[str, VariableHandle], model: Sequence[str]) -> None:
        self.saved = dict(saved)
        self.model = {name: self.saved[name] for name in model}

    @classmethod
    def of(cls, weights: ProgramVariables) -> VariableHandles:
        """Return handles of the variables, and add read operations to the graph."""
        saved = {
            name: VariableHandle(
                weights.format_name(name),
                v.dtype.base_dtype,
                v.shape,
                v.read_value().name,
                v.initializer.inputs[1].name,
                v.initializer.name,
            )
            for name, v in weights.saved.items()
        }
        return cls(saved, list(weights.model))

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names of values, feeds and operations of all variables, for an optimised graph."""
        return {f"{_VARIABLE}{name}": (handle.read, handle.value, handle.set) for name, handle in self.saved.items()}

    def metadata(self) -> dict[str, Any]:
        """Return formats, dtypes and shapes of all variables, for an optimised graph."""
        specs = {
            name: [handle.format_name, handle.dtype.name, handle.shape.as_list()] for name, handle in self.saved.items()
        }
        return {"variables": specs, "model": list(self.model)}

    @classmethod
    def from_optimised_graph(cls, graph: OptimisedGraph) -> VariableHandles:
        """Return the handles, given the results of `names` and `metadata`."""
        saved = {
            name: VariableHandle(format_name, tf.as_dtype(dtype), tf.TensorShape(shape), *graph.names[f"{_VARIABLE}{name}"])
            for name, (format_name, dtype, shape) in graph.metadata["variables"].items()
        }
        return cls(saved, graph.metadata["model"])

    def values(self, session: tf.Session) -> dict[str, np.ndarray]:
        """Return the values of all variables by name. If a format has a dtype, values are in that dtype."""
        values = session.run({name: handle.read for name, handle in self.saved.items()})
        grids = {
            name: number_formats.by_name(handle.format_name) for name, handle in self.saved.items() if handle.format_name
        }
        return {name: grids[name].stored(value) if name in grids else value for name, value in values.items()}

    def assign(self, session: tf.Session, values: Mapping[str, np.ndarray], names: Iterable[str]) -> None:
        """Set the variables with these names. Raise KeyError if a value is missing."""
        feeds = {}
        for name in names:
            grid = self.saved[name].format_name
            feeds[self.saved[name].value] = number_formats.by_name(grid).rounded(values[name]) if grid else values[name]
        session.run([self.saved[name].set for name in names], feeds)


def _variable(name: str, value: Callable[[], tf.Tensor], trainable: bool) -> tf.Variable:
    """Return a variable whose value can be set by feeding a tensor."""

    def initial() -> tf.Tensor:
        first = value()
        return tf.placeholder_with_default(first, first.shape)

    return tf.get_variable(name, initializer=initial, trainable=trainable, use_resource=True)
