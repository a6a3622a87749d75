"""Gradients that are written out, and the backward pass.

TensorFlow's own `custom_gradient` registers a new gradient for every call, for the life of the process, and with it keeps
the whole graph alive. Here one registered gradient looks the rule up in the graph, which goes with the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import gradients_util

_NAME = "WrittenOut"  # of the registered gradient, and of the collection of a graph's rules
Rule = Callable[..., Any]


class _WrittenOut(NamedTuple):
    rule: Rule
    before: int  # inputs of the operation that have no gradient, before those that have


def with_gradient(function: Callable[..., tuple[tf.Tensor, Rule]]) -> Callable[..., tf.Tensor]:
    """The function of tensors with a gradient of its own: it returns its result and the rule for it, a function of the
    result's gradient that returns the gradient of its argument, or a sequence of those of all its arguments.

    Arguments alone are differentiated. The rule is called where the backward pass is built, once for each
    time that the result is differentiated.
    """

    def apply(*arguments: tf.Tensor) -> tf.Tensor:
        graph = tf.get_default_graph()
        # inside, the arguments are constants; the gradient ends at the operation that stands for the whole function
        result, rule = function(*arguments)
        with graph.gradient_override_map({"IdentityN": _NAME}):
            marked, *_ = tf.raw_ops.IdentityN(input=[result, *arguments])
        _rules(graph)[marked.op.name] = _WrittenOut(rule, 1)
        return marked

    return apply


def by_rule(kind: str, make: Callable[..., tf.Tensor], x: tf.Tensor, *others: tf.Tensor, rule: Rule) -> tf.Tensor:
    """make(x, *others), one operation of that kind, whose gradient for x is rule(gradient of the result)."""
    graph = tf.get_default_graph()
    with graph.gradient_override_map({kind: _NAME}):
        y = make(x, *others)
    if y.op.type != kind:
        raise TypeError(f"{y.op.name} is an operation {y.op.type}, and not {kind}")
    y.op._gradient_function = None  # that of a function's call, which would go before
    _rules(graph)[y.op.name] = _WrittenOut(rule, 0)
    return y


def gradients(ys: Any, xs: Sequence[tf.Tensor], given: Any = None) -> list[tf.Tensor | None]:
    """Like tf.gradients, but make no gradients of 0 for what `with_gradient` hands through and nobody differentiates."""
    graph = tf.get_default_graph()
    with graph._mutation_lock():
        return gradients_util._GradientsHelper(ys, list(xs), given, src_graph=graph, optimize_identity_n=True)


@tf.RegisterGradient(_NAME)
def _gradient(operation: tf.Operation, dy: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor | None]:
    """Return the gradients of the operation's inputs by its rule."""
    rule, before = _rules(operation.graph)[operation.name]
    dx = rule(dy)
    of_inputs = [None] * before + list(dx if isinstance(dx, Sequence) else [dx])
    return of_inputs + [None] * (len(operation.inputs) - len(of_inputs))


def _rules(graph: tf.Graph) -> dict[str, _WrittenOut]:
    """Return a graph's rules, by the name of the operation."""
    rules = graph.get_collection_ref(_NAME)
    if not rules:
        rules.append({})
    return rules[0]
