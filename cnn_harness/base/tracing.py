"""Trace a function of tensors once, so that every graph can call it as one operation instead of many.

XLA can compile traced functions in another thread while the graph is built.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.func_graph import FuncGraph

_OUTSIDE = tf.Graph()  # the empty graph in which functions are traced
_ahead = threading.local()  # `compiler` is set inside `compiling_ahead`, for this thread
TensorFunction = Callable[..., Any]


@contextmanager
def compiling_ahead(wanted: bool = True) -> Iterator[None]:
    """Inside, compile each traced function in a thread, so that XLA finds it on disk when the graph runs.

    The exit waits for the last function. Building a graph keeps only one core busy, so the thread uses a second core. If
    `wanted` is false, nothing is compiled ahead.
    """
    if not wanted or getattr(_ahead, "compiler", None):
        yield
        return
    _ahead.compiler = compiler = ThreadPoolExecutor(1)
    try:
        yield
    except BaseException:
        compiler.shutdown(cancel_futures=True)
        raise
    finally:
        _ahead.compiler = None
        compiler.shutdown()


def _run_once(function: Any) -> None:
    """Run a traced function on zeros, so that XLA compiles it. Ignore errors, because they recur when the graph runs."""
    with suppress(Exception), tf.Graph().as_default() as graph:
        outputs = function(*(tf.zeros(x.shape, x.dtype) for x in function.inputs))
        config = tf.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.Session(graph=graph, config=config) as session:
            session.run([x.op for x in tf.nest.flatten(outputs)])


def compiled(function: TensorFunction) -> TensorFunction:
    """Return a version of the function that XLA compiles for each combination of argument shapes."""
    return _called(function, tf.function(function, jit_compile=True, autograph=False), by_xla=True)


def traced(function: TensorFunction) -> TensorFunction:
    """Return a version of the function that is traced but not compiled. TensorFlow inlines it when it optimises graphs."""
    return _called(function, tf.function(function, autograph=False), by_xla=False)


def _called(function: TensorFunction, traceable: Any, by_xla: bool) -> TensorFunction:
    """Return a function that is traced in an empty graph, because a traced function keeps the graph around it in memory.

    Each call uses the concrete function, because a call of `traceable` would leave the context of a surrounding loop.
    """

    @wraps(function)
    def call(*tensors: tf.Tensor) -> Any:
        if isinstance(tf.get_default_graph(), FuncGraph):
            return function(*tensors)  # already inside a traced function
        with _OUTSIDE.as_default(), context.eager_mode():
            traced_before = traceable.experimental_get_tracing_count()
            concrete = traceable.get_concrete_function(*(tf.TensorSpec(x.shape, x.dtype) for x in tensors))
        compiler = getattr(_ahead, "compiler", None)
        if compiler and by_xla and traceable.experimental_get_tracing_count() > traced_before:
            compiler.submit(_run_once, concrete)
        return concrete(*tensors)

    return call
