"""A network as a value: its operations in order. Each is a `Node`, which names the values that it reads and returns.

`recorder.py` records the network of a model. The passes in `emulator/passes` rewrite it, the lowerings in
`emulator/lowering` build TensorFlow's operations from it, and the planner counts it. Values are numbers, not tensors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from typing import Any, NamedTuple

from cnn_harness.Models._layers import Variable
from cnn_harness.Models._norms import Norm

LINEAR = "linear"  # an activation that changes nothing
PRODUCTS = "conv", "dense"


class Op(NamedTuple):
    """The facts about an operation that passes and counts need."""

    rounds_gradient: bool = False  # it can round the gradient that arrives at its result.
    keeps_gradients: bool = False  # it returns gradients of the format if such a gradient arrives.
    keeps_values: bool = False  # its results are numbers of the format without rounding.
    activation: bool = False  # a norm may compute it, too.
    moves: bool = False  # it computes nothing, so there is nothing to check.
    free: bool = False  # it costs neither time nor memory.


_MOVES = Op(keeps_gradients=True, keeps_values=True, moves=True)
OPS = {
    "conv": Op(rounds_gradient=True),
    "dense": Op(rounds_gradient=True),
    "bias": Op(rounds_gradient=True, keeps_gradients=True),
    "norm": Op(rounds_gradient=True, keeps_gradients=True),
    "proxy": Op(),
    "proxy_norm": Op(keeps_gradients=True),
    "relu": Op(keeps_gradients=True, keeps_values=True, activation=True),
    "relu6": Op(keeps_gradients=True, keeps_values=True, activation=True),
    "swish": Op(rounds_gradient=True, keeps_gradients=True, activation=True),
    "sigmoid": Op(rounds_gradient=True),
    "add": Op(rounds_gradient=True, keeps_gradients=True),
    "gate": Op(rounds_gradient=True),
    "concat": _MOVES,
    "max_pool": Op(keeps_values=True),
    "global_mean": Op(rounds_gradient=True, keeps_gradients=True),
    "subsample": _MOVES,
    "flatten": _MOVES._replace(free=True),
    "dropout": Op(rounds_gradient=True),
    "drop_path": Op(rounds_gradient=True),
    "conv_norm": Op(),
    "conv_bias": Op(),
    **dict.fromkeys(("sum_gradients", "check", "count", "observe"), _MOVES),  # passes insert these.
}


class Shape(NamedTuple):
    """The shape of one sample's activation; a vector is 1 x 1 x channels."""

    height: int
    width: int
    channels: int

    @property
    def elements(self) -> int:
        """The number of values in the activation of one sample."""
        return self.height * self.width * self.channels

    def strided(self, stride: int, channels: int) -> Shape:
        """Return the shape of every `stride`-th pixel, with another number of channels."""
        return Shape(-(-self.height // stride), -(-self.width // stride), channels)


class Read(NamedTuple):
    """The treatment of the gradient that a node returns for one input."""

    draw: int | None  # the number of its rounding; None means that the node does not round it.
    adds: bool  # other nodes read the value too, so the gradient stays FP32 until it is added.


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Who rounds the values around a node in narrow formats. Numbers of roundings are keys of random draws in a segment."""

    reads: tuple[Read | None, ...] = ()  # an entry for each input; None means that the gradient stays as it is.
    result: int | None = None  # the number of the result's rounding.
    pixels: int | None = None  # the number of the rounding of a mean over pixels, before the result's.
    rounds_gradient: bool = False  # the node rounds the gradient of its result.
    operand: int | None = None  # the number of the rounding of what a product multiplies.
    gradient: int | None = None  # the same for the gradient of its result.


@dataclass(frozen=True, kw_only=True)
class Node:
    """An operation of the network, for one sample."""

    op: str  # a row of OPS
    inputs: tuple[int, ...]  # the numbers of the values that it reads.
    outputs: tuple[int, ...]
    segment: str  # the part of the model that has the node.
    scope: str  # the path of the layer.
    source: Shape  # the shape of the first input.
    shape: Shape  # the shape of the first output.
    variables: tuple[Variable, ...] = ()
    kernel: int = 0
    stride: int = 1
    groups: int = 1
    padding: str = "SAME"
    norm: Norm | None = None
    activation: str = LINEAR
    rate: float = 0.0  # the probability of dropout, or the survival rate of drop-path.
    scaled: bool = False  # proxy norm multiplies its result by the inverse deviation.
    label: str = ""  # the name of the layer in the model, if it is not `op`.
    formats: Formats = Formats()
    checked: bool = False
    fused: tuple[str, ...] = ()  # the operations that were fused.
    computed_by: str = ""  # the kernel of a convolution.

    @property
    def path(self) -> str:
        """The path of the layer in the model, e.g. all/b1/0/1/conv."""
        return "/".join(filter(None, (self.scope, self.label or self.op)))

    @property
    def multiply_adds(self) -> int:
        """The number of multiply-adds of a convolution or dense layer in the forward pass of one sample."""
        if self.op == "dense":
            return self.source.elements * self.shape.channels
        return self.shape.elements * self.kernel**2 * (self.source.channels // self.groups) if self.op == "conv" else 0

    @property
    def is_depthwise(self) -> bool:
        """True if each filter of a convolution reads one channel, and each channel has one filter."""
        return self.op == "conv" and self.groups == self.source.channels == self.shape.channels > 1

    @property
    def is_pointwise(self) -> bool:
        """True for a convolution of single pixels, which is a matrix product."""
        return self.op == "conv" and self.kernel == self.stride == self.groups == 1

    @property
    def pads_same(self) -> bool:
        """True if the padding has the effect of SAME."""
        return self.padding == "SAME" or self.stride == 1

    def variable(self, name: str) -> str | None:
        """Return the full name of the variable whose name ends with `name`, or None."""
        return next((v.name for v in self.variables if v.name.rpartition("/")[2] == name), None)

    def inserted(self, op: str, value: int, result: int, shape: Shape, **details: Any) -> Node:
        """Return another node of this layer, from one value to another of the same shape."""
        place = {"segment": self.segment, "scope": self.scope, "source": shape, "shape": shape}
        return Node(op=op, inputs=(value,), outputs=(result,), **place, **details)


@dataclass(frozen=True)
class Network:
    """The nodes of a network in order, and the names of its segments (blocks of layers)."""

    segments: tuple[str, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]  # the numbers of the values that enter.
    ends: tuple[int, ...]  # the value that leaves each segment. The pass `fuse` is certain to keep only the last one.

    @property
    def output(self) -> int:
        """The number of the value that leaves the network."""
        return self.ends[-1]

    def rewritten(self, rewrite: Callable[[Node], Iterable[Node]]) -> Network:
        """Return the network that has the nodes rewrite(node) in place of each node."""
        return replace(self, nodes=tuple(new for node in self.nodes for new in rewrite(node)))

    def block(self, names: Sequence[str]) -> Network:
        """Return neighbouring segments as a network of their own."""
        first, end = self.segments.index(names[0]), self.segments.index(names[-1]) + 1
        entering = self.inputs if first == 0 else (self.ends[first - 1],)
        kept = tuple(node for node in self.nodes if node.segment in names)
        return Network(self.segments[first:end], kept, entering, self.ends[first:end])

    def blocks(self, stages: Iterable[Sequence[str]], by_segment: bool) -> tuple[tuple[Network, ...], ...]:
        """Return the blocks of each stage, whose gradients are computed together. If `by_segment`, each segment is a
        block, for example because it keeps its input and runs forward again. Passes run on each block, so nothing is fused
        across a cut."""
        cut = ([(name,) for name in names] if by_segment else [names] for names in stages)
        return tuple(tuple(self.block(names) for names in blocks) for blocks in cut)

    def without_classifier(self) -> Network:
        """Return the network up to the input of its dense layer."""
        place = next(k for k, node in enumerate(self.nodes) if node.op == "dense")
        return replace(self, nodes=self.nodes[:place], ends=(*self.ends[:-1], self.nodes[place].inputs[0]))

    def readers(self) -> Counter[int]:
        """Return how often each value is read. The network's result counts as read once more."""
        return Counter([self.output, *(value for node in self.nodes for value in node.inputs)])

    def new_values(self) -> count[int]:
        """Yield numbers that no value has."""
        return count(1 + max(chain(self.inputs, *(node.outputs for node in self.nodes))))

    @cached_property
    def operations(self) -> tuple[Node, ...]:
        """The nodes that cost time or memory."""
        return tuple(node for node in self.nodes if not OPS[node.op].free)

    @cached_property
    def by_segment(self) -> dict[str, tuple[Node, ...]]:
        """The operations of each segment. A segment that only returns its input has no operations."""
        return {name: tuple(o for o in self.operations if o.segment == name) for name in self.segments}

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Every variable, in the order of creation."""
        return tuple(variable for node in self.nodes for variable in node.variables)

    @cached_property
    def norms(self) -> frozenset[type[Norm]]:
        """The kinds of norms in the network; Models._norms.KINDS lists all kinds."""
        return frozenset(type(node.norm) for node in self.nodes if node.norm)

    @property
    def parameters(self) -> int:
        """The number of parameters, including moving statistics, that the log line `Total Parameters:` shows."""
        return sum(variable.elements for variable in self.variables)

    @property
    def trainable_parameters(self) -> int:
        """The number of parameters that gradients change."""
        return sum(variable.elements for variable in self.variables if variable.trainable)

    @property
    def stride(self) -> int:
        """The stride of the whole network: the side of the image divided by the side of the last feature map."""
        strides = {(node.segment, node.source.height, node.stride) for node in self.nodes}
        return math.prod(stride for _, _, stride in strides)

    @property
    def multiply_adds(self) -> int:
        """The number of multiply-adds of convolutions and dense layers in the forward pass of one sample."""
        return sum(node.multiply_adds for node in self.nodes)

    def activation_bytes(self, bytes_per_element: int) -> int:
        """Return the number of bytes of all layers' outputs for one sample."""
        return bytes_per_element * sum(node.shape.elements for node in self.operations)


def operation(node: Node) -> str:
    """Return a description such as conv 3x3/2 in 32 groups, depthwise 5x5, norm + relu."""
    if node.fused:
        return " + ".join(node.fused)
    name = "depthwise" if node.is_depthwise else node.op
    if node.kernel:
        name += f" {node.kernel}x{node.kernel}" + (f"/{node.stride}" if node.stride > 1 else "")
        return name + (f" in {node.groups} groups" if node.groups > 1 and not node.is_depthwise else "")
    return f"{name} + {node.activation}" if node.activation != LINEAR else name
