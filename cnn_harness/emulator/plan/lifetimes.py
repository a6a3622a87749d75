"""Count the values in memory: those that wait for the backward pass, and those in use during an operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from cnn_harness.emulator.network.network import Node

# Gradients need the inputs of all operations but these, and the results of few.
_NEED_NO_INPUT = ("relu", "relu6", "sigmoid", "add", "concat", "subsample", "global_mean", "dropout", "drop_path")
_NEED_RESULT = ("relu", "relu6", "sigmoid", "max_pool")
_IN_PLACE = ("norm", "add", "relu", "relu6")  # they write the result over an input, if nothing reads that later.


def kept(operations: Sequence[Node], joined: Collection[str] = ()) -> Counter[str]:
    """Return how many elements of one sample wait for the backward pass in each segment. The operations `joined` keep no
    input, because a kernel computes them together with the norm before them."""
    sizes: Counter[str] = Counter()
    for o, size in zip(operations, kept_by_each(operations, joined)):
        sizes[o.segment] += size
    return sizes


def kept_by_each(operations: Sequence[Node], joined: Collection[str] = ()) -> list[int]:
    """Return how many elements of one sample each operation adds to those that wait, as in `kept`."""
    needed = {value for o in operations if o.op not in (*_NEED_NO_INPUT, *joined) for value in o.inputs}
    return [o.shape.elements * (o.op in _NEED_RESULT or o.outputs[0] in needed) for o in operations]


def alive(operations: Sequence[Node]) -> Iterator[int]:
    """Yield how many elements of one sample are in memory during each operation: its result, and what it or a later one
    reads."""
    last = {value: place for place, o in enumerate(operations) for value in o.inputs}
    sizes: dict[int, int] = {}
    for place, o in enumerate(operations):
        sizes.setdefault(o.inputs[0], o.source.elements)
        before = sum(sizes.values())
        sizes = {value: size for value, size in sizes.items() if last[value] > place}
        overwrites = o.op in _IN_PLACE and sum(sizes.values()) < before
        yield before + (0 if overwrites else o.shape.elements)
        if o.outputs[0] in last:
            sizes[o.outputs[0]] = o.shape.elements
