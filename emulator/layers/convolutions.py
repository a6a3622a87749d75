"""Choose the fastest operation for each convolution, and subsample shortcut connections.

In 16 bits, one native kernel computes all convolutions but depthwise ones (emulator/native/convolution.cc). In FP32, native
kernels are used where they are faster than oneDNN, if they are built for AVX-512. Convolutions with 3 x 3 kernels use
Winograd's minimal filtering (winograd.cc). Depthwise convolutions (depthwise_gradient.cc), and convolutions with a stride or
with groups of 16 channels (conv_gradient.cc), use native kernels only for the gradient of the weights. Without oneDNN, the
kernel for 16 bits computes convolutions in groups.

Groups of 16 are from *Making EfficientNet More Efficient* (Masters et al., 2021). ResNeXt (Xie et al., 2017) has groups of 4
and 8 channels, which are joined into groups of 16 with zeros among their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.util import _pywrap_util_port

from base.gradient_rules import Rule, with_gradient
from emulator.layers.rounding import narrow_source
from emulator.native import library

_NATIVE_GROUP = 16  # native kernels need groups of 16 input and 16 output channels.
_SMALL_GROUPS = (4, 8)  # groups of these sizes are joined into larger groups; smaller groups would add too many zeros.
_NATIVE_FILTERS = 16  # the output channels of an ungrouped convolution must be a multiple of this.
_NATIVE_DEPTHWISE = (3, 5)  # native kernels support depthwise convolutions of 3 x 3 and 5 x 5 pixels.
_LEVEL_CHANNELS = range(16, 64)  # with these numbers of input channels, oneDNN is as fast as the native kernels.
_WINOGRAD_CHANNELS = 16  # the input and output channels of a group must be multiples of this.


def convolve(x: tf.Tensor, weights: tf.Tensor, stride: int, *, winograd: bool) -> tf.Tensor:
    """Return the SAME-padded convolution of x [batch, height, width, channels].

    `weights` has the shape [kernel, kernel, channels of a group, filters], which also gives the number of groups. `winograd`
    allows Winograd's method, which multiplies sums and differences of the operands.
    """
    kernel, of_group, filters = weights.shape[1:]
    groups = x.shape[-1] // of_group
    joined = _joined_groups(of_group, filters // groups, groups)
    if winograd and kernel == 3 and stride == 1 and _fits_winograd(of_group * joined, filters // groups * joined):
        kernels = library.load_for(x)
        if hasattr(kernels, "emulator_winograd_conv2d"):
            return _winograd(kernels, x, _join(weights, groups, joined), groups // joined)
    if is_depthwise(x, weights):
        return _depthwise(x, tf.reshape(weights, [kernel, kernel, filters, 1]), stride)
    if groups > 1 and not _native_group_gradients(x.dtype):
        kernels = library.load_for(x)
        if kernels:
            return native_convolution(kernels, x, weights, stride)
        pairs = zip(tf.split(x, groups, -1), tf.split(weights, groups, -1))
        return tf.concat([tf.nn.conv2d(part, w, stride, "SAME") for part, w in pairs], -1)
    if _fits_native_gradient(of_group * joined, filters // groups * joined, kernel, stride, groups):
        kernels = library.load_for(x)
        if hasattr(kernels, "emulator_conv_weights_gradient"):
            return _with_native_gradient(kernels, x, weights, stride, joined)
    if kernel == stride == groups == 1:
        return _pointwise(x, weights)
    return tf.nn.conv2d(x, weights, stride, "SAME")


def native_convolution(
    kernels: ModuleType,
    x: tf.Tensor,
    weights: tf.Tensor,
    stride: int,
    results: Mapping[str, Any] | None = None,
    arriving: Callable[[tf.Tensor], tf.Tensor] = lambda dy: dy,
) -> tf.Tensor:
    """Return the SAME-padded convolution of x, of FP32 or 16 bits, in any groups.

    `results` says how the result is rounded and stored (see `kernel_attributes`); by default, it is FP32 and not rounded.
    `arriving` returns the gradient of the result as it is multiplied. The gradient of x is FP32 and not rounded.
    """
    sizes = {"stride": stride, "groups": x.shape[-1] // weights.shape[2]}

    @with_gradient
    def convolution(x: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, Rule]:
        def rule(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            dy, side = narrow_source(arriving(dy)), {"rows": x.shape[1], "columns": x.shape[2]}
            return (
                kernels.emulator_convolution_input_gradient(dy=dy, weights=weights, noise=(), **side, **sizes),
                kernels.emulator_convolution_weights_gradient(x=x, dy=dy, kernel=weights.shape[0], **sizes),
            )

        return kernels.emulator_convolution(x=x, weights=weights, **sizes, **(results or {"noise": ()})), rule

    return convolution(x, weights)


def is_depthwise(x: tf.Tensor, weights: tf.Tensor) -> bool:
    """Return whether each filter reads one channel, and each channel has one filter."""
    return weights.shape[2] == 1 < weights.shape[3] == x.shape[-1]


def padded(window: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, stride: int, padding: str) -> tf.Tensor:
    """Return window(x) with the given padding. `window` is an operation on windows of odd size with SAME padding.

    SYMMETRIC padding differs from SAME only if the stride is two and a side of x is even. Then add a row or column of zeros,
    and drop the last row or column of the result.
    """
    if padding == "SAME" or stride == 1:
        return window(x)
    rows, columns = (1 - side % 2 for side in x.shape[1:3])
    y = window(tf.pad(x, [[0, 0], [0, rows], [0, columns], [0, 0]]) if rows or columns else x)
    return y[:, : y.shape[1] - rows, : y.shape[2] - columns] if rows or columns else y


def _depthwise(x: tf.Tensor, weights: tf.Tensor, stride: int) -> tf.Tensor:
    """Return a depthwise convolution with weights [kernel, kernel, channels, 1]. A native kernel computes the gradient of
    the weights up to ten times as fast as oneDNN."""
    kernel, kernels, place = weights.shape[0], library.load_for(x), {"strides": [1, stride, stride, 1], "padding": "SAME"}
    if kernel not in _NATIVE_DEPTHWISE or not hasattr(kernels, "emulator_depthwise_weights_gradient"):
        return tf.nn.depthwise_conv2d_native(x, weights, **place)

    @with_gradient
    def convolution(x: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, Rule]:
        def rule(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            if stride == 1:  # convolve with the rotated kernel, in two thirds of the time of oneDNN's gradient.
                dx = tf.nn.depthwise_conv2d_native(dy, tf.reverse(weights, [0, 1]), **place)
            else:
                dx = tf.nn.depthwise_conv2d_native_backprop_input(tf.shape(x), weights, dy, **place)
            return dx, kernels.emulator_depthwise_weights_gradient(x=x, dy=dy, stride=stride, kernel=kernel)

        return tf.nn.depthwise_conv2d_native(x, weights, **place), rule

    return convolution(x, weights)


def _joined_groups(channels: int, filters: int, groups: int) -> int:
    """Return the number of groups that are joined into one, or 1 if they stay separate. Each has `channels` input channels
    and `filters` output channels."""
    joined = _NATIVE_GROUP // channels if channels == filters and channels in _SMALL_GROUPS else 1
    return 1 if groups % joined else joined


def _join(weights: tf.Tensor, groups: int, joined: int) -> tf.Tensor:
    """Return weights [height, width, joined * channels, filters] in which each group joins `joined` groups. The original
    weights are blocks on a diagonal; all other weights are zero."""
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


def _fits_winograd(channels: int, filters: int) -> bool:
    return channels % _WINOGRAD_CHANNELS == filters % _WINOGRAD_CHANNELS == 0


def _winograd(kernels: ModuleType, x: tf.Tensor, weights: tf.Tensor, groups: int) -> tf.Tensor:
    """Return a convolution with 3 x 3 kernels, computed by Winograd's method. Forward and backward, 16 results take 36
    multiplications instead of 144, or 4 results take 16 instead of 36."""

    @with_gradient
    def convolution(x: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, Rule]:
        def rule(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return (
                kernels.emulator_winograd_conv2d_backprop_input(dy=dy, weights=weights, groups=groups),
                kernels.emulator_winograd_conv2d_backprop_filter(x=x, dy=dy, groups=groups),
            )

        return kernels.emulator_winograd_conv2d(x=x, weights=weights, groups=groups), rule

    return convolution(x, weights)


def _fits_native_gradient(channels: int, filters: int, kernel: int, stride: int, groups: int) -> bool:
    """Return whether the native kernel for the gradient of the weights is faster than oneDNN. Each group has `channels`
    input channels and `filters` output channels."""
    if groups > 1:
        return channels == filters == _NATIVE_GROUP
    few_or_many = channels not in _LEVEL_CHANNELS
    return stride > 1 and kernel > 1 and filters % _NATIVE_FILTERS == 0 and few_or_many


def _with_native_gradient(kernels: ModuleType, x: tf.Tensor, weights: tf.Tensor, stride: int, joined: int) -> tf.Tensor:
    """Return a convolution. A native kernel computes the gradient of the weights up to three times as fast as oneDNN."""
    kernel, _, channels = weights.shape[:3]
    groups = x.shape[-1] // channels

    @with_gradient
    def convolution(x: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, Rule]:
        def rule(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            place = {"strides": [1, stride, stride, 1], "padding": "SAME"}
            dw = kernels.emulator_conv_weights_gradient(x=x, dy=dy, stride=stride, kernel=kernel, groups=groups // joined)
            return (
                tf.raw_ops.Conv2DBackpropInput(input_sizes=tf.shape(x), filter=weights, out_backprop=dy, **place),
                _part(dw, groups, joined),
            )

        return tf.nn.conv2d(x, weights, stride, "SAME"), rule

    return convolution(x, weights)


def _pointwise(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return a convolution with weights [1, 1, channels, filters], computed as a matrix product. TensorFlow computes the
    gradients of a matrix product up to twice as fast."""
    channels, filters = weights.shape[2:]
    y = tf.matmul(tf.reshape(x, [-1, channels]), tf.reshape(weights, [channels, filters]))
    return tf.reshape(y, [-1, *x.shape[1:3], filters])


def _native_group_gradients(dtype: tf.DType) -> bool:
    """Return whether TensorFlow computes gradients of grouped convolutions. On the CPU, this needs FP32 and oneDNN.
    TensorFlow uses oneDNN by default on CPUs with AVX-512 or AMX."""
    return dtype == tf.float32 and _pywrap_util_port.IsMklEnabled()


def subsample(x: tf.Tensor, stride: int) -> tf.Tensor:
    """Return every `stride`-th pixel of x [batch, height, width, channels] in both directions.

    TensorFlow's strided slice and its gradient are slow, because they copy single numbers in one thread. This function
    copies blocks of adjacent numbers instead. For the gradient, it uses average pooling with windows of one pixel.
    """
    height, width, channels = x.shape[1:]
    rows, columns = -(-height // stride), -(-width // stride)
    if stride == 1:
        return x

    @with_gradient
    def subsampled(x: tf.Tensor) -> tuple[tf.Tensor, Rule]:
        if height % stride or width % stride:
            y = x[:, ::stride, ::stride, :]
        else:
            blocks = tf.reshape(x, [-1, rows, stride, columns, stride * channels])
            y = tf.reshape(tf.slice(blocks, [0] * 5, [-1, rows, 1, columns, channels]), [-1, rows, columns, channels])

        def rule(dy: tf.Tensor) -> tf.Tensor:
            pool = {"ksize": [1, 1, 1, 1], "strides": [1, stride, stride, 1], "padding": "VALID"}
            return tf.raw_ops.AvgPoolGrad(orig_input_shape=tf.shape(x), grad=dy, **pool)

        return y, rule

    return subsampled(x)
