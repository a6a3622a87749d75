"""A network as a value: its operations in order. Each is a `Node`, which names the values that it reads and returns.

`recorder.py` records the network of a model. The passes in `emulator/passes` rewrite it, the lowerings in
`emulator/lowering` build TensorFlow's operations from it, and the planner counts it. Values are numbers, not tensors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from typing import Any, NamedTuple

from Models._layers import Variable
from Models._norms import Norm

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


class Read(NamedTuple):
    """The treatment of the gradient that a node returns for one input."""

    draw: int | None  # the number of its rounding; None means that the node does not round it.
    adds: bool  # other nodes read the value too, so the gradient stays FP32 until it is added.


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Who rounds the values around a node in narrow formats. Roundings are numbered within a segment, for random draws.

    * `reads` has an entry for each input; None means that the gradient stays as it is.
    * `result` and `pixels` number the roundings of the result, and of a mean over pixels before it.
    * `rounds_gradient` means that the node rounds the gradient of its result.
    * `operand` and `gradient` number the roundings of what a product multiplies: its input, and the gradient of its result.
    """

    reads: tuple[Read | None, ...] = ()
    result: int | None = None
    pixels: int | None = None
    rounds_gradient: bool = False
    operand: int | None = None
    gradient: int | None = None


@dataclass(frozen=True, kw_only=True)
class Node:
    """An operation of the network, for one sample. `op` is its kind, such as "conv".

    * `inputs` and `outputs` number the values that it reads and returns.
    * `segment` is the part of the model that has the node, and `scope` the path of the layer.
    * `source` and `shape` are the shapes of the first input and of the first output.
    * `rate` is the probability of dropout, or the survival rate of drop-path.
    * `scaled` means that proxy norm multiplies its result by the inverse deviation.
    * `label` is the name of the layer in the model, if it is not `op`.
    * The passes set `formats`, `checked`, `fused` (the operations that were fused) and `computed_by` (the kernel of a
      convolution).
    """

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    segment: str
    scope: str
    source: Shape
    shape: Shape
    variables: tuple[Variable, ...] = ()
    kernel: int = 0
    stride: int = 1
    groups: int = 1
    padding: str = "SAME"
    norm: Norm | None = None
    activation: str = LINEAR
    rate: float = 0.0
    scaled: bool = False
    label: str = ""
    formats: Formats = Formats()
    checked: bool = False
    fused: tuple[str, ...] = ()
    computed_by: str = ""

    @property
    def path(self) -> str:
        """The path of the layer in the model, e.g. all/b1/0/1/conv."""
        return "/".join(filter(None, (self.scope, self.label or self.op)))

    @property
    def multiply_adds(self) -> int:
        """The number of multiply-adds of a convolution or dense layer in the forward pass of one sample."""
        if self.op not in PRODUCTS:
            return 0
        if self.op == "dense":
            return self.source.elements * self.shape.channels
        return self.shape.elements * self.kernel**2 * (self.source.channels // self.groups)

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
    """The nodes of a network in order, and the names of its segments (blocks of layers).

    `inputs` numbers the values that enter, and `ends` the value that leaves each segment. Only the last of these ends is
    certain to exist after the pass `fuse`.
    """

    segments: tuple[str, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def output(self) -> int:
        """The number of the value that leaves the network."""
        return self.ends[-1]

    def block(self, names: Collection[str]) -> Network:
        """Return neighbouring segments as a network of their own."""
        places = [self.segments.index(name) for name in names]
        first, last = min(places), max(places)
        entering = self.inputs if first == 0 else (self.ends[first - 1],)
        kept = tuple(node for node in self.nodes if node.segment in names)
        return Network(self.segments[first : last + 1], kept, entering, self.ends[first : last + 1])

    def blocks(self, stages: Iterable[Sequence[str]], recomputation: bool) -> tuple[tuple[Network, ...], ...]:
        """Return the blocks of each stage, whose gradients are computed together. With recomputation, each segment is a
        block, which keeps its input and runs forward again. Passes run on each block, so nothing is fused across a cut."""
        cut = ([(name,) for name in names] if recomputation else [names] for names in stages)
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
