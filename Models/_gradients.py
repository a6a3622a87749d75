"""Gradients that are written out.

TensorFlow's own `custom_gradient` registers a new gradient for every call, for the life of the process, and with it keeps
the whole graph alive. Here one registered gradient looks the rule up in the graph, which goes with the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

_NAME = "WrittenOut"  # of the registered gradient, and of the collection of a graph's rules
Rule = Callable[..., Any]


def with_gradient(function: Callable[..., tuple[tf.Tensor, Rule]]) -> Callable[..., tf.Tensor]:
    """The function of tensors with a gradient of its own: it returns its result and the rule for it, a function of the
    result's gradient that returns the gradient of its argument, or a sequence of those of all its arguments.

    Only what is passed as an argument is differentiated. The rule is called where the backward pass is built, once for each
    time that the result is differentiated.
    """

    def apply(*arguments: tf.Tensor) -> tf.Tensor:
        graph = tf.get_default_graph()
        # inside, the arguments are constants; the gradient ends at the operation that stands for the whole function
        result, rule = function(*arguments)
        with graph.gradient_override_map({"IdentityN": _NAME}):
            marked, *_ = tf.raw_ops.IdentityN(input=[result, *arguments])
        _rules(graph)[marked.op.name] = rule
        return marked

    return apply


@tf.RegisterGradient(_NAME)
def _gradient(operation: tf.Operation, dy: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor | None]:
    """Of the result and of the arguments, which the operation hands through so that TensorFlow finds them."""
    found = _rules(operation.graph)[operation.name](dy)
    return [None, *(found if isinstance(found, Sequence) else [found])]


def _rules(graph: tf.Graph) -> dict[str, Rule]:
    """By the name of the operation."""
    kept = graph.get_collection_ref(_NAME)
    if not kept:
        kept.append({})
    return kept[0]
