"""Record the network of a model. The model runs once on numbered values with shapes, without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod
from itertools import count
from typing import Any, NamedTuple

from cnn_harness.emulator.network.network import Network, Node, Shape
from cnn_harness.Models._layers import GLOROT, Initial, Layers, ProxyRule, Variable
from cnn_harness.Models._norms import GroupNorm, NoNorm, Norm
from cnn_harness.Models._segments import Segment


class NetworkError(Exception):
    """The dimensions of a model's layers do not fit together."""


class Value(NamedTuple):
    """A value of the network that is being recorded: its number and its shape."""

    number: int
    shape: Shape


def record(segments: list[Segment], image_size: int, channels: int = 3) -> Network:
    """Return the network of `segments` on images of image_size x image_size x channels."""
    recorder, ends = Recorder(), []
    x = image = recorder.value(Shape(image_size, image_size, channels))
    with recorder.scope("all"):
        for segment in segments:
            recorder.segment = segment.name
            x = segment.apply(recorder, x)
            ends.append(x.number)
    return Network(tuple(segment.name for segment in segments), tuple(recorder.nodes), (image.number,), tuple(ends))


def record_layers(build: Callable[..., Value], *shapes: Sequence[int]) -> Network:
    """Return the network that build(layers, *values) makes of values with these shapes."""
    recorder = Recorder()
    inputs = [recorder.value(Shape(*shape)) for shape in shapes]
    result = build(recorder, *inputs)
    return Network(("",), tuple(recorder.nodes), tuple(each.number for each in inputs), (result.number,))


class Recorder(Layers):
    """Layers that compute the shape of their result and record a node."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.segment, self._numbers = "", count()

    def value(self, shape: Shape) -> Value:
        return Value(next(self._numbers), shape)

    def channels(self, x: Value) -> int:
        return x.shape.channels

    def side(self, x: Value) -> int:
        return x.shape.height

    def conv(
        self, x: Value, filters: int, kernel: int, initial: Initial, *, stride: int = 1, groups: int = 1, bias: bool = False,
        padding: str = "SAME",
    ) -> Value:  # fmt: skip
        channels = x.shape.channels
        if channels % groups or filters % groups:
            counts = f"{channels} input and {filters} output channels"
            raise NetworkError(f"{self.path()}: {counts} do not divide into {groups} convolution groups")
        variables = [Variable(self.path("conv", "conv2d", "kernel"), (kernel, kernel, channels // groups, filters), initial)]
        if bias:
            variables.append(Variable(self.path("conv", "conv2d", "bias"), (filters,), 0.0))
        window = {"kernel": kernel, "stride": stride, "groups": groups, "padding": padding}
        return self._add("conv", x, shape=x.shape.strided(stride, filters), variables=tuple(variables), **window)

    def norm(self, x: Value, norm: Norm, *, zero_gamma: bool = False, scale: bool = True, centre: bool = True) -> Value:
        if isinstance(norm, NoNorm):
            return x
        fault = norm.fault(x.shape.channels)
        if fault:
            raise NetworkError(f"{self.path()}: {fault}")
        rows = norm.variables(zero_gamma=zero_gamma, scale=scale, centre=centre)
        variables = (Variable(self.path(norm.scope, name), (x.shape.channels,), *values) for name, *values in rows)
        return self._add("norm", x, norm=norm, variables=tuple(variables))

    def proxy_norm_activation(self, x: Value, norm: GroupNorm, rule: ProxyRule, *, scaled: bool) -> tuple[Value, Value]:
        x = self.norm(x, norm, scale=False, centre=False)
        variable = Variable(self.path("act", "proxy"), (6, 1, 1, x.shape.channels), 0.0, proxy=rule)
        factor = self.value(Shape(1, 1, x.shape.channels))
        y = self._add("proxy", x, second=factor, variables=(variable,), activation=rule.activation, scaled=scaled)
        return y, factor

    def add(self, x: Value, y: Value) -> Value:
        if x.shape != y.shape:
            raise NetworkError(f"{self.path()}: values of the shapes {tuple(x.shape)} and {tuple(y.shape)} cannot be added")
        return self._add("add", x, y)

    def concat(self, x: Value, y: Value) -> Value:
        return self._add("concat", x, y, shape=x.shape._replace(channels=x.shape.channels + y.shape.channels))

    def max_pool(self, x: Value, kernel: int, stride: int, *, padding: str = "SAME") -> Value:
        height, width, channels = x.shape
        lost = kernel - 1 if padding == "VALID" else 0
        if min(height, width) <= lost:
            raise NetworkError(f"{self.path()}: a {kernel}x{kernel} window does not fit into {height}x{width} pixels")
        shape = Shape(height - lost, width - lost, channels).strided(stride, channels)
        return self._add("max_pool", x, shape=shape, kernel=kernel, stride=stride, padding=padding)

    def global_mean(self, x: Value) -> Value:
        return self._add("global_mean", x, shape=Shape(1, 1, x.shape.channels))

    def subsample(self, x: Value, stride: int, channels: int) -> Value:
        return self._add("subsample", x, shape=x.shape.strided(stride, channels), stride=stride)

    def dense(self, x: Value, units: int) -> Value:
        variables = (
            Variable(self.path("dense", "kernel"), (x.shape.elements, units), GLOROT),
            Variable(self.path("dense", "bias"), (units,), 0.0),
        )
        return self._add("dense", x, shape=Shape(1, 1, units), variables=variables)

    def flatten(self, x: Value) -> Value:
        return self._add("flatten", x, shape=Shape(1, 1, x.shape.elements))

    def dropout(self, x: Value, rate: float) -> Value:
        return self._add("dropout", x, rate=rate) if rate > 0 else x

    def drop_path(self, x: Value, survival: float) -> Value:
        return self._add("drop_path", x, rate=survival) if survival < 1 else x

    def _add(
        self, op: str, *inputs: Value, shape: Shape | None = None, second: Value | None = None, **details: Any
    ) -> Value:
        """Record a node and return its result, which by default has the shape of the first input."""
        y = self.value(shape or inputs[0].shape)
        values = {
            "inputs": tuple(each.number for each in inputs), "outputs": tuple(each.number for each in (y, second) if each),
            "source": inputs[0].shape, "shape": y.shape,
        }  # fmt: skip
        self.nodes.append(Node(op=op, segment=self.segment, scope=self.path(), **values, **details))
        return y

    relu = partialmethod(_add, "relu")
    relu6 = partialmethod(_add, "relu6")
    swish = partialmethod(_add, "swish")
    sigmoid = partialmethod(_add, "sigmoid")
    gate = partialmethod(_add, "gate")
