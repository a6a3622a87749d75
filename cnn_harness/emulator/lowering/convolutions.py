"""The kernels of convolutions, in a table: the first row that fits is used. bench/NOTES.md has the measurements.

Groups of 16 are from *Making EfficientNet More Efficient* (Masters et al., 2021). ResNeXt (Xie et al., 2017) has groups of 4
and 8 channels, which are joined into groups of 16 with zeros among their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from cnn_harness.base.gradient_rules import Rule, by_rule, with_gradient
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.network import Network, Node
from cnn_harness.emulator.passes.target import Target
from cnn_harness.emulator.plan.number_formats import BF16, storage
from cnn_harness.emulator.plan.precision import Precision

Build = Callable[..., tf.Tensor]
FLOAT = "float32"
_CHANNELS = 16  # native kernels need groups of this number of channels, or of its multiples.
_SMALL_GROUPS = 4, 8  # groups of these sizes are joined into larger groups; smaller groups would add too many zeros.
_DEPTHWISE = 3, 5  # native kernels support depthwise convolutions of 3 x 3 and 5 x 5 pixels.
_LEVEL_CHANNELS = range(16, 64)  # with these numbers of input channels, oneDNN is as fast as the native kernels.
_SPLIT = 64  # with fewer channels, splitting FP16 numbers takes longer than matrix units save.
_VECTOR = 8  # with fewer channels than an AVX2 vector has numbers, oneDNN reads memory that it has not set.


class Site(NamedTuple):
    """A convolution, and the dtypes around it: of its operand, of the products and of its result."""

    node: Node
    target: Target
    operand: str
    products: str
    result: str
    exact: bool  # operands are FP32, whose sums and differences may be multiplied.
    scaled: bool

    @classmethod
    def of(cls, node: Node, precision: Precision, target: Target) -> Site:
        """Return what decides the kernel of a convolution."""
        scaled, formats = bool(precision.scaled_kernels), precision.operands_of(node.variable("kernel"))
        result = storage(precision.compute) if precision.rounds_results else FLOAT
        if formats.has_blocks:
            operand = FLOAT
        elif formats.activation.contains(precision.compute):
            operand = result
        else:
            operand = FLOAT if scaled else storage(formats.activation)
        products = storage(BF16) if precision.native_arithmetic and node.groups == 1 else FLOAT
        exact = not (precision.rounds_results or precision.rounds_operands)
        return cls(node, target, operand, products, result, exact, scaled)

    def has(self, operation: str) -> bool:
        """Return whether there is a native operation, which takes FP32 operands, and the products are FP32."""
        return self.products == FLOAT and f"emulator_{operation}" in self.target.native

    @property
    def stays_narrow(self) -> bool:
        """True if operand and result have 16 bits, and a kernel may round the result itself."""
        return self.operand != FLOAT != self.result and not self.scaled and self.node.pads_same

    @property
    def channels(self) -> int:
        """The number of input channels of a group after joining."""
        return self.node.source.channels // self.node.groups * _joined(self.node)

    @property
    def filters(self) -> int:
        """The number of output channels of a group after joining."""
        return self.node.shape.channels // self.node.groups * _joined(self.node)


def _joined(node: Node) -> int:
    """Return the number of groups that are joined into one, with zeros among the weights, or 1 if they stay separate."""
    channels, filters = node.source.channels // node.groups, node.shape.channels // node.groups
    several = _CHANNELS // channels if channels == filters and channels in _SMALL_GROUPS else 1
    return several if node.groups % several == 0 else 1


def _has_narrow_core(s: Site) -> bool:
    by_units = s.node.groups == 1 and s.products != FLOAT
    by_groups = s.node.groups > 1 and s.target.is_wide  # FP32 is 1.5 times as fast.
    core = "emulator_convolution" in s.target.native and not (s.node.is_depthwise or by_units or by_groups)
    return s.stays_narrow and core


def _has_split_units(s: Site) -> bool:
    fits = s.node.groups == 1 and s.operand == "float16" and min(s.channels, s.filters) >= _SPLIT
    return fits and s.target.has_units and _has_narrow_core(s)


def _has_filtering(s: Site) -> bool:
    fits = s.node.kernel == 3 and s.node.stride == 1 and s.channels % _CHANNELS == s.filters % _CHANNELS == 0
    return fits and s.target.training and s.exact and s.has("winograd_conv2d")


def _lacks_group_gradients(s: Site) -> bool:
    return s.node.groups > 1 and not (s.target.group_gradients and s.products == FLOAT)


def _has_weights_gradient(s: Site) -> bool:
    node = s.node
    if node.groups > 1:
        fits = s.channels == s.filters == _CHANNELS and s.target.is_wide
    else:
        fits = node.stride > 1 < node.kernel and s.filters % _CHANNELS == 0 and s.channels not in _LEVEL_CHANNELS
    return fits and s.has("conv_weights_gradient")


class Narrow(NamedTuple):
    """The roundings of a kernel that reads and returns 16-bit numbers."""

    result: Mapping[str, Any]  # arguments that tell a native operation how to round and store the result
    result_gradient: Callable[[tf.Tensor], tf.Tensor]  # returns the gradient of the result as products multiply it.
    input_gradient: Mapping[str, Any]  # arguments for rounding and storing the gradient of the input


_UNROUNDED = Narrow({"noise": ()}, lambda dy: dy, {"noise": ()})


def _with_gradients(
    x: tf.Tensor, weights: tf.Tensor, forward: Build, of_input: Build, of_weights: Build,
    result_gradient: Callable[[tf.Tensor], tf.Tensor] = lambda dy: dy,
) -> tf.Tensor:  # fmt: skip
    """Return forward(x, weights). The gradients are functions of (x, weights, gradient of the result)."""

    @with_gradient
    def convolution(x: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, Rule]:
        def rule(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            dy = result_gradient(dy)
            return of_input(x, weights, dy), of_weights(x, weights, dy)

        return forward(x, weights), rule

    return convolution(x, weights)


def _core(x: tf.Tensor, weights: tf.Tensor, node: Node, narrow: Narrow = _UNROUNDED, in_units: bool = False) -> tf.Tensor:
    kernels, sizes = library.load(), {"stride": node.stride, "groups": node.groups, "in_units": in_units}
    of_input = {"rows": x.shape[1], "columns": x.shape[2], **narrow.input_gradient, **sizes}
    return _with_gradients(
        x, weights,
        lambda x, weights: kernels.emulator_convolution(x=x, weights=weights, **sizes, **narrow.result),
        lambda x, weights, dy: kernels.emulator_convolution_input_gradient(dy=dy, weights=weights, **of_input),
        lambda x, weights, dy: kernels.emulator_convolution_weights_gradient(x=x, dy=dy, kernel=node.kernel, **sizes),
        narrow.result_gradient,
    )  # fmt: skip


def _units(x: tf.Tensor, weights: tf.Tensor, node: Node, narrow: Narrow) -> tf.Tensor:
    y = (_matrix_product if node.is_pointwise else plain)(x, tf.cast(weights, x.dtype), node)
    return by_rule("Identity", tf.identity, y, rule=lambda dy: tf.cast(narrow.result_gradient(dy), x.dtype))


def padded(window: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, node: Node) -> tf.Tensor:
    """Return window(x) with the padding of a node. `window` is an operation on windows of odd size with SAME padding.

    SYMMETRIC padding differs from SAME only if the stride is two and a side of x is even. Then add a row or column of zeros,
    and drop the last row or column of the result.
    """
    rows, columns = (1 - side % 2 for side in x.shape[1:3])
    if node.pads_same or not (rows or columns):
        return window(x)
    y = window(tf.pad(x, [[0, 0], [0, rows], [0, columns], [0, 0]]))
    return y[:, : y.shape[1] - rows, : y.shape[2] - columns]


def depthwise(x: tf.Tensor, weights: tf.Tensor, node: Node) -> tf.Tensor:
    """Return a depthwise convolution, with weights [kernel, kernel, 1, channels], by the operation of TensorFlow."""
    weights = tf.reshape(weights, [node.kernel, node.kernel, node.groups, 1])
    return tf.nn.depthwise_conv2d_native(x, weights, **_window(node))


def _window(node: Node) -> dict[str, Any]:
    return {"strides": [1, node.stride, node.stride, 1], "padding": "SAME"}


def _depthwise_own_gradient(x: tf.Tensor, weights: tf.Tensor, node: Node) -> tf.Tensor:
    """Use a native kernel for the gradient of the weights, which takes up to ten times as long in oneDNN."""

    def of_input(x: tf.Tensor, weights: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        if node.stride == 1:  # convolve with the rotated kernel, in two thirds of the time of oneDNN's gradient.
            return tf.nn.depthwise_conv2d_native(dy, tf.reverse(weights, [0, 1]), **_window(node))
        return tf.nn.depthwise_conv2d_native_backprop_input(tf.shape(x), weights, dy, **_window(node))

    def of_weights(x: tf.Tensor, weights: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        place = {"stride": node.stride, "kernel": node.kernel}
        return library.load().emulator_depthwise_weights_gradient(x=x, dy=dy, **place)

    weights = tf.reshape(weights, [node.kernel, node.kernel, node.groups, 1])
    return _with_gradients(x, weights, partial(tf.nn.depthwise_conv2d_native, **_window(node)), of_input, of_weights)


def _group_by_group(x: tf.Tensor, weights: tf.Tensor, node: Node) -> tf.Tensor:
    pairs = zip(tf.split(x, node.groups, -1), tf.split(weights, node.groups, -1))
    return tf.concat([tf.nn.conv2d(part, w, node.stride, "SAME") for part, w in pairs], -1)


def plain(x: tf.Tensor, weights: tf.Tensor, node: Node) -> tf.Tensor:
    """Return a convolution by the operation of TensorFlow."""
    return tf.nn.conv2d(x, weights, node.stride, "SAME")


def _join(weights: tf.Tensor, groups: int, joined: int) -> tf.Tensor:
    """Return weights for joined groups [height, width, joined * channels, filters]: blocks on a diagonal, and zeros."""
    height, width, channels, filters = weights.shape
    if joined == 1:
        return weights

    @with_gradient
    def join(weights: tf.Tensor) -> tuple[tf.Tensor, Rule]:
        blocks = tf.reshape(weights, [height, width, 1, channels, groups // joined, joined, filters // groups])
        whole = tf.reshape(blocks * _diagonal(joined), [height, width, joined * channels, filters])
        return whole, partial(_part, groups=groups, joined=joined)

    return join(weights)


def _part(weights: tf.Tensor, groups: int, joined: int) -> tf.Tensor:
    """Return the blocks on the diagonal, in the shape of the weights before `_join`."""
    height, width, channels, filters = weights.shape
    if joined == 1:
        return weights
    shape = [height, width, joined, channels // joined, groups // joined, joined, filters // groups]
    blocks = tf.reduce_sum(tf.where_v2(_diagonal(joined) > 0, tf.reshape(weights, shape), 0.0), 2)
    return tf.reshape(blocks, [height, width, channels // joined, filters])


def _diagonal(joined: int) -> tf.Tensor:
    """Return a mask [1, 1, joined, 1, 1, joined, 1]: 1 for input and output channels of the same original group, else 0."""
    return tf.reshape(tf.eye(joined), [1, 1, joined, 1, 1, joined, 1])


def _filtering(x: tf.Tensor, weights: tf.Tensor, node: Node) -> tf.Tensor:
    """Use Winograd's method: 16 results take 36 multiplications instead of 144, or 4 results take 16 instead of 36."""
    kernels, joined = library.load(), _joined(node)
    groups = node.groups // joined
    return _with_gradients(
        x, _join(weights, node.groups, joined),
        lambda x, weights: kernels.emulator_winograd_conv2d(x=x, weights=weights, groups=groups),
        lambda x, weights, dy: kernels.emulator_winograd_conv2d_backprop_input(dy=dy, weights=weights, groups=groups),
        lambda x, weights, dy: kernels.emulator_winograd_conv2d_backprop_filter(x=x, dy=dy, groups=groups),
    )  # fmt: skip


def _own_gradient(x: tf.Tensor, weights: tf.Tensor, node: Node) -> tf.Tensor:
    """Use a native kernel for the gradient of the weights, which takes up to three times as long in oneDNN."""
    joined = _joined(node)

    def of_input(x: tf.Tensor, weights: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        operands = {"input_sizes": tf.shape(x), "filter": weights, "out_backprop": dy}
        return tf.raw_ops.Conv2DBackpropInput(**operands, **_window(node))

    def of_weights(x: tf.Tensor, weights: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        sizes = {"stride": node.stride, "kernel": node.kernel, "groups": node.groups // joined}
        return _part(library.load().emulator_conv_weights_gradient(x=x, dy=dy, **sizes), node.groups, joined)

    return _with_gradients(x, weights, partial(plain, node=node), of_input, of_weights)


def _matrix_product(x: tf.Tensor, weights: tf.Tensor, node: Node) -> tf.Tensor:
    """Use a matrix product, because TensorFlow computes its gradients up to twice as fast."""
    channels, filters = weights.shape[2:]
    y = tf.matmul(tf.reshape(x, [-1, channels]), tf.reshape(weights, [channels, filters]))
    return tf.reshape(y, [-1, *x.shape[1:3], filters])


def subsample(x: tf.Tensor, stride: int) -> tf.Tensor:
    """Return every `stride`-th pixel of x [batch, height, width, channels] in both directions.

    TensorFlow's strided slice and its gradient are slow, because they copy single numbers in one thread. This function
    copies blocks of adjacent numbers instead. For the gradient, it uses average pooling with windows of one pixel.
    """
    _, height, width, channels = x.shape
    if stride == 1:
        return x

    @with_gradient
    def subsampled(x: tf.Tensor) -> tuple[tf.Tensor, Rule]:
        if height % stride or width % stride:
            y = x[:, ::stride, ::stride, :]
        else:
            rows, columns = height // stride, width // stride
            blocks = tf.reshape(x, [-1, rows, stride, columns, stride * channels])
            y = tf.reshape(tf.slice(blocks, [0] * 5, [-1, rows, 1, columns, channels]), [-1, rows, columns, channels])

        def rule(dy: tf.Tensor) -> tf.Tensor:
            pool = {"ksize": [1, 1, 1, 1], "strides": [1, stride, stride, 1], "padding": "VALID"}
            return tf.raw_ops.AvgPoolGrad(orig_input_shape=tf.shape(x), grad=dy, **pool)

        return y, rule

    return subsampled(x)


class Kernel(NamedTuple):
    """A row of `KERNELS`: the convolutions that a kernel fits, and its code."""

    fits: Callable[[Site], bool]
    build: Build  # a function of (x, weights, node), with SAME padding.
    rounds_result: bool = False  # the code rounds the result itself; another argument is a `Narrow`.
    rounds_input: bool = False  # the code rounds the gradient of its input, too.


KERNELS = {
    "16-bit units": Kernel(  # oneDNN on BF16 tensors
        lambda s: s.stays_narrow and s.operand == s.products == s.result and s.node.groups == 1, _units, rounds_result=True
    ),
    "FP16 in units": Kernel(
        _has_split_units, partial(_core, in_units=True), rounds_result=True, rounds_input=True
    ),  # units.h
    "16-bit core": Kernel(_has_narrow_core, _core, rounds_result=True, rounds_input=True),  # convolution.cc
    "filtering": Kernel(_has_filtering, _filtering),  # winograd.cc
    "depthwise, own gradient": Kernel(  # depthwise_gradient.cc
        lambda s: s.node.is_depthwise and s.node.kernel in _DEPTHWISE and s.has("depthwise_weights_gradient"),
        _depthwise_own_gradient,
    ),
    "depthwise": Kernel(lambda s: s.node.is_depthwise, depthwise),
    "core": Kernel(lambda s: _lacks_group_gradients(s) and s.has("convolution"), _core),  # convolution.cc
    "group by group": Kernel(_lacks_group_gradients, _group_by_group),
    "own gradient": Kernel(_has_weights_gradient, _own_gradient),  # conv_gradient.cc
    "matrix product": Kernel(lambda s: s.node.is_pointwise, _matrix_product),
    "subsampled product": Kernel(  # oneDNN's gradient of the weights is wrong on processors with AVX2 alone.
        lambda s: s.node.kernel == 1 < s.node.stride and s.node.groups == 1 and s.channels < _VECTOR,
        lambda x, weights, node: _matrix_product(subsample(x, node.stride), weights, node),
    ),
    "plain": Kernel(lambda s: True, plain),
}


def kernels(network: Network, precision: Precision, target: Target) -> Network:
    """Return the network in which each convolution names its kernel."""

    def named(node: Node) -> list[Node]:
        if node.op != "conv":
            return [node]
        site = Site.of(node, precision, target)
        return [replace(node, computed_by=next(name for name, kernel in KERNELS.items() if kernel.fits(site)))]

    return network.rewritten(named)
