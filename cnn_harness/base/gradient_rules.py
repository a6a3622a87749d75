"""Operations with custom gradients, and the backward pass.

TensorFlow's `custom_gradient` registers a gradient for every call. The registry keeps every graph in memory until the
process ends. Here, one registered gradient looks up the rule in the graph, so the rules are freed with the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import gradients_util

_NAME = "WrittenOut"  # name of the registered gradient, and of the collection that holds a graph's rules
Rule = Callable[..., Any]


class _WrittenOut(NamedTuple):
    rule: Rule
    before: int  # number of leading inputs without a gradient


def with_gradient(function: Callable[..., tuple[tf.Tensor, Rule]]) -> Callable[..., tf.Tensor]:
    """Give a function of tensors a custom gradient.

    `function` returns its result and a rule. The rule maps the result's gradient to the gradient of the argument, or to
    a sequence with the gradient of each argument. Only arguments are differentiated, not captured tensors. The rule runs
    each time the result is differentiated, while the backward pass is built.
    """

    def apply(*arguments: tf.Tensor) -> tf.Tensor:
        graph = tf.get_default_graph()
        # Differentiation stops at this IdentityN, which represents the whole function.
        result, rule = function(*arguments)
        with graph.gradient_override_map({"IdentityN": _NAME}):
            marked, *_ = tf.raw_ops.IdentityN(input=[result, *arguments])
        _rules(graph)[marked.op.name] = _WrittenOut(rule, 1)
        return marked

    return apply


def by_rule(kind: str, make: Callable[..., tf.Tensor], x: tf.Tensor, *others: tf.Tensor, rule: Rule) -> tf.Tensor:
    """Return make(x, *others), which must create one operation of the type `kind`.

    The gradient with respect to x is rule(gradient of the result).
    """
    graph = tf.get_default_graph()
    with graph.gradient_override_map({kind: _NAME}):
        y = make(x, *others)
    if y.op.type != kind:
        raise TypeError(f"{y.op.name} is a {y.op.type} operation, not {kind}")
    y.op._gradient_function = None  # otherwise the gradient of a function call would take precedence
    _rules(graph)[y.op.name] = _WrittenOut(rule, 0)
    return y


def gradients(ys: Any, xs: Sequence[tf.Tensor], given: Any = None) -> list[tf.Tensor | None]:
    """Do the same as tf.gradients, without zero gradients for arguments of `with_gradient` that need no gradient."""
    graph = tf.get_default_graph()
    with graph._mutation_lock():
        return gradients_util._GradientsHelper(ys, list(xs), given, src_graph=graph, optimize_identity_n=True)


def operations_for(ys: Iterable[tf.Tensor], without: Collection[tf.Operation]) -> set[tf.Operation]:
    """Return the operations that compute tensors from the results of other operations (`without`)."""
    left, found = [y.op for y in ys], set()
    while left:
        operation = left.pop()
        if operation not in found and operation not in without:
            found.add(operation)
            left += [*(x.op for x in operation.inputs), *operation.control_inputs]
    return found


def delay(operations: Iterable[tf.Operation], gate: tf.Tensor) -> None:
    """Let operations of the same loop wait for a gate. An Enter brings a value into the loop, so it cannot wait."""
    for operation in operations:
        if operation.type != "Enter":
            operation._add_control_input(gate.op)


@tf.RegisterGradient(_NAME)
def _gradient(operation: tf.Operation, dy: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor | None]:
    """Return the gradients of an operation's inputs, computed by its rule."""
    rule, before = _rules(operation.graph)[operation.name]
    dx = rule(dy)
    of_inputs = [None] * before + list(dx if isinstance(dx, Sequence) else [dx])
    return of_inputs + [None] * (len(operation.inputs) - len(of_inputs))


def _rules(graph: tf.Graph) -> dict[str, _WrittenOut]:
    """Return a graph's rules by operation name."""
    rules = graph.get_collection_ref(_NAME)
    if not rules:
        rules.append({})
    return rules[0]
