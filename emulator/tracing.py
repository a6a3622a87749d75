"""Functions of tensors that are traced once, and called in whatever graph: one operation instead of many."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.func_graph import FuncGraph

_OUTSIDE = tf.Graph()  # stays empty
Pass = Callable[..., Any]


def compiled(function: Pass) -> Pass:
    """The function, compiled by XLA for each combination of shapes that it is called with."""
    return _called(function, tf.function(function, jit_compile=True, autograph=False))


def traced(function: Pass) -> Pass:
    """The function as it is; TensorFlow puts its operations in the place of the call when it optimises the graph."""
    return _called(function, tf.function(function, autograph=False))


def _called(function: Pass, made: Any) -> Pass:
    """It is traced outside of every program's graph, once for all of them: a traced function keeps the graph alive that it
    was traced in. The call goes through the concrete function: the other way leaves the context of a loop that it is in."""

    @wraps(function)
    def call(*tensors: tf.Tensor) -> Any:
        if isinstance(tf.get_default_graph(), FuncGraph):
            return function(*tensors)  # it is part of another one
        with _OUTSIDE.as_default(), context.eager_mode():
            concrete = made.get_concrete_function(*(tf.TensorSpec(x.shape, x.dtype) for x in tensors))
        return concrete(*tensors)

    return call
