"""Count a model's parameters, multiply-adds and activations. The model runs on shapes, without TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from Models import _segments
from Models._layers import GLOROT, Initial, Layers, ProxyRule, Variable
from Models._norms import GroupNorm, NoNorm, Norm
from Models._segments import Segment


class TraceError(Exception):
    """The dimensions of a model's layers do not fit together."""


class Shape(NamedTuple):
    """The shape of one sample's activation; a vector is 1 x 1 x channels."""

    height: int
    width: int
    channels: int

    @property
    def elements(self) -> int:
        """The number of values in the activation of one sample."""
        return self.height * self.width * self.channels


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A layer as the cost model sees it. All counts are for the forward pass of one sample."""

    segment: str
    name: str
    kind: str
    source: Shape
    result: Shape
    multiply_adds: int = 0
    kernel: int = 0
    stride: int = 1
    groups: int = 1
    norm: Norm | None = None
    variables: tuple[Variable, ...] = ()


@dataclass(frozen=True)
class Trace:
    """The operations of a model in order, and the names of its segments (blocks of layers)."""

    segments: tuple[str, ...]
    operations: tuple[Operation, ...]

    @cached_property
    def by_segment(self) -> dict[str, tuple[Operation, ...]]:
        """The operations of each segment. A segment that only returns its input has no operations."""
        return {name: tuple(o for o in self.operations if o.segment == name) for name in self.segments}

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Every variable, in the order of creation."""
        return tuple(variable for operation in self.operations for variable in operation.variables)

    @cached_property
    def norms(self) -> frozenset[type[Norm]]:
        """The kinds of norms in the network; Models._norms.KINDS lists all kinds."""
        return frozenset(type(operation.norm) for operation in self.operations if operation.norm)

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
        strides = {(operation.segment, operation.source.height, operation.stride) for operation in self.operations}
        return math.prod(stride for _, _, stride in strides)

    @property
    def multiply_adds(self) -> int:
        """The number of multiply-adds of convolutions and dense layers in the forward pass of one sample."""
        return sum(operation.multiply_adds for operation in self.operations)

    @property
    def activation_elements(self) -> int:
        """The number of values in the outputs of convolutions and dense layers for one sample."""
        return sum(operation.result.elements for operation in self.operations if operation.kind in ("conv", "dense"))

    def activation_bytes(self, bytes_per_element: int) -> int:
        """Return the number of bytes of all layers' outputs for one sample."""
        return bytes_per_element * sum(operation.result.elements for operation in self.operations)


def trace(segments: list[Segment], image_size: int, channels: int = 3) -> Trace:
    """Return the trace of `segments` on images of image_size x image_size x channels."""
    layers = CountingLayers()
    _segments.run(segments, layers, Shape(image_size, image_size, channels))
    return Trace(tuple(segment.name for segment in segments), tuple(layers.operations))


class CountingLayers(Layers):
    """Layers that compute the shape of their result and record their operation."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._segment = ""

    def begin_segment(self, name: str) -> None:
        self._segment = name

    def channels(self, x: Shape) -> int:
        return x.channels

    def side(self, x: Shape) -> int:
        return x.height

    def conv(
        self,
        x: Shape,
        filters: int,
        kernel: int,
        initial: Initial,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        padding: str = "SAME",
    ) -> Shape:
        if x.channels % groups or filters % groups:
            raise TraceError(
                f"{self.path()}: {x.channels} input and {filters} output channels do not divide into {groups} "
                f"convolution groups"
            )
        result = Shape(_strided(x.height, stride), _strided(x.width, stride), filters)
        weights = (kernel, kernel, x.channels // groups, filters)
        variables = [Variable(self.path("conv", "conv2d", "kernel"), weights, initial)]
        if bias:
            variables.append(Variable(self.path("conv", "conv2d", "bias"), (filters,), 0.0))
        multiply_adds = result.elements * kernel * kernel * (x.channels // groups)
        return self._add(
            "conv", x, result, multiply_adds=multiply_adds, kernel=kernel, stride=stride, groups=groups,
            variables=tuple(variables),
        )  # fmt: skip

    def norm(self, x: Shape, norm: Norm, *, zero_gamma: bool = False, scale: bool = True, centre: bool = True) -> Shape:
        if isinstance(norm, NoNorm):
            return x
        fault = norm.fault(x.channels)
        if fault:
            raise TraceError(f"{self.path()}: {fault}")
        rows = norm.variables(zero_gamma=zero_gamma, scale=scale, centre=centre)
        variables = tuple(Variable(self.path(norm.scope, name), (x.channels,), *values) for name, *values in rows)
        return self._add("norm", x, x, norm=norm, variables=variables)

    def proxy_norm_activation(self, x: Shape, norm: GroupNorm, rule: ProxyRule, *, scaled: bool) -> tuple[Shape, Shape]:
        x = self.norm(x, norm, scale=False, centre=False)
        proxy = Variable(self.path("act", "proxy"), (6, 1, 1, x.channels), 0.0, proxy=rule)
        return self._add("proxy " + rule.activation, x, x, variables=(proxy,)), Shape(1, 1, x.channels)

    def relu(self, x: Shape) -> Shape:
        return self._add("relu", x, x)

    def relu6(self, x: Shape) -> Shape:
        return self._add("relu6", x, x)

    def swish(self, x: Shape) -> Shape:
        return self._add("swish", x, x)

    def sigmoid(self, x: Shape) -> Shape:
        return self._add("sigmoid", x, x)

    def add(self, x: Shape, y: Shape) -> Shape:
        return self._add("add", x, x)

    def gate(self, x: Shape, factor: Shape) -> Shape:
        return self._add("gate", x, x)

    def concat(self, x: Shape, y: Shape) -> Shape:
        return self._add("concat", x, Shape(x.height, x.width, x.channels + y.channels))

    def max_pool(self, x: Shape, kernel: int, stride: int, *, padding: str = "SAME") -> Shape:
        lost = kernel - 1 if padding == "VALID" else 0
        if min(x.height, x.width) <= lost:
            raise TraceError(f"{self.path()}: a {kernel}x{kernel} window does not fit into {x.height}x{x.width} pixels")
        result = Shape(_strided(x.height - lost, stride), _strided(x.width - lost, stride), x.channels)
        return self._add("max_pool", x, result, kernel=kernel, stride=stride)

    def global_mean(self, x: Shape) -> Shape:
        return self._add("global_mean", x, Shape(1, 1, x.channels))

    def subsample(self, x: Shape, stride: int, channels: int) -> Shape:
        result = Shape(_strided(x.height, stride), _strided(x.width, stride), channels)
        return self._add("subsample", x, result, stride=stride)

    def dense(self, x: Shape, units: int) -> Shape:
        variables = (
            Variable(self.path("dense", "kernel"), (x.elements, units), GLOROT),
            Variable(self.path("dense", "bias"), (units,), 0.0),
        )
        return self._add("dense", x, Shape(1, 1, units), multiply_adds=x.elements * units, variables=variables)

    def flatten(self, x: Shape) -> Shape:
        return Shape(1, 1, x.elements)

    def dropout(self, x: Shape, rate: float) -> Shape:
        return self._add("dropout", x, x) if rate > 0 else x

    def drop_path(self, x: Shape, survival: float) -> Shape:
        return self._add("drop_path", x, x) if survival < 1 else x

    def _add(self, kind: str, source: Shape, result: Shape, **details: Any) -> Shape:
        self.operations.append(
            Operation(segment=self._segment, name=self.path(), kind=kind, source=source, result=result, **details)
        )
        return result


def _strided(side: int, stride: int) -> int:
    return -(-side // stride)
