"""Functions of tensors that are traced once, and called in whatever graph: one operation instead of many. While a graph is
written with them, XLA can compile them beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.func_graph import FuncGraph

_OUTSIDE = tf.Graph()  # stays empty
_compiler: ThreadPoolExecutor | None = None  # of the function that is traced now
TensorFunction = Callable[..., Any]


@contextmanager
def compiling_ahead(wanted: bool = True) -> Iterator[None]:
    """Inside, if that is `wanted`, a thread compiles each function that is traced, so that XLA finds it on the disk when the
    graph runs; the end waits for the last one. Writing a graph keeps one core busy, and this another."""
    global _compiler
    if not wanted or _compiler:
        yield
        return
    _compiler = compiler = ThreadPoolExecutor(1)
    try:
        yield
    except BaseException:
        compiler.shutdown(cancel_futures=True)
        raise
    finally:
        _compiler = None
        compiler.shutdown()


def _run_once(function: Any) -> None:
    """Run a traced function on zeros, by itself: XLA compiles what runs. An error is dropped, as it comes again where the
    function is used."""
    with suppress(Exception), tf.Graph().as_default() as graph:
        outputs = function(*(tf.zeros(x.shape, x.dtype) for x in function.inputs))
        config = tf.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.Session(graph=graph, config=config) as session:
            session.run([x.op for x in tf.nest.flatten(outputs)])


def compiled(function: TensorFunction) -> TensorFunction:
    """The function, compiled by XLA for each combination of shapes that it is called with."""
    return _called(function, tf.function(function, jit_compile=True, autograph=False), by_xla=True)


def traced(function: TensorFunction) -> TensorFunction:
    """The function as it is; TensorFlow puts its operations in the place of the call when it optimises the graph."""
    return _called(function, tf.function(function, autograph=False), by_xla=False)


def _called(function: TensorFunction, traceable: Any, by_xla: bool) -> TensorFunction:
    """A function traced outside of every program's graph, once for all: a trace keeps the graph alive around it. Calls go
    through the concrete function, as `traceable` itself would leave the context of a surrounding loop."""

    @wraps(function)
    def call(*tensors: tf.Tensor) -> Any:
        if isinstance(tf.get_default_graph(), FuncGraph):
            return function(*tensors)  # already inside of a traced function
        with _OUTSIDE.as_default(), context.eager_mode():
            traced_before = traceable.experimental_get_tracing_count()
            concrete = traceable.get_concrete_function(*(tf.TensorSpec(x.shape, x.dtype) for x in tensors))
        if _compiler and by_xla and traceable.experimental_get_tracing_count() > traced_before:
            _compiler.submit(_run_once, concrete)
        return concrete(*tensors)

    return call
