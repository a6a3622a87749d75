"""FP32 layers for inference in other runtimes, made of operations that every runtime supports.

These layers use no native kernels, no functions compiled by XLA, and no gradients. Convolutions are not replaced by other
operations, so that converters can quantise and fuse them.
"""

from __future__ import annotations

from functools import partial

import tensorflow.compat.v1 as tf

from emulator.layers import batch_norm, convolutions, group_norm
from emulator.layers.tensor_layers import TensorLayers
from Models._layers import Initial
from Models._norms import BatchNorm, GroupNorm


class PortableLayers(TensorLayers):
    """Layers for inference on FP32 tensors [batch, height, width, channels] of any batch size."""

    def conv(
        self, x: tf.Tensor, filters: int, kernel: int, initial: Initial, *, stride: int = 1, groups: int = 1,
        bias: bool = False, padding: str = "SAME",
    ) -> tf.Tensor:  # fmt: skip
        weights = self._weights[self.path("conv", "conv2d", "kernel")]
        if groups == filters == self.channels(x) and groups > 1:
            depthwise = tf.reshape(weights, [kernel, kernel, filters, 1])
            strides = [1, stride, stride, 1]
            window = partial(tf.nn.depthwise_conv2d_native, filter=depthwise, strides=strides, padding="SAME")
        else:
            window = partial(tf.nn.conv2d, filter=weights, strides=stride, padding="SAME")
        y = convolutions.padded(window, x, stride, padding)
        return tf.nn.bias_add(y, self._weights[self.path("conv", "conv2d", "bias")]) if bias else y

    def _group_norm(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, norm: GroupNorm, activation: str) -> tf.Tensor:
        mean, r = group_norm.statistics(x, norm)
        factor = r * gamma
        return self._activation(x * factor + (beta - mean * factor), activation)

    def _batch_norm(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, norm: BatchNorm, activation: str) -> tf.Tensor:
        mean, variance = self._weights[self.path("moving_mean")], self._weights[self.path("moving_variance")]
        if _of_groups(x):
            # TensorFlow would fuse a batch norm or a sum with the convolution, and can run the result only with oneDNN.
            factor = gamma * tf.math.rsqrt(variance + norm.epsilon)
            return self._activation(x * factor - (mean * factor - beta), activation)
        return self._activation(batch_norm.inference(x, gamma, beta, (mean, variance), norm.epsilon), activation)

    def _proxy_norm(self, x: tf.Tensor, rows: group_norm.Rows, norm: GroupNorm, activation: str, scaled: bool) -> tf.Tensor:
        beta, gamma, mean, inverse = rows
        y = self._group_norm(x, gamma, beta, norm, activation) - mean
        return y * inverse if scaled else y

    def swish(self, x: tf.Tensor) -> tf.Tensor:
        return x * tf.sigmoid(x)

    def gate(self, x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return x * factor

    def _every(self, x: tf.Tensor, stride: int) -> tf.Tensor:
        return x[:, ::stride, ::stride, :]


def _of_groups(x: tf.Tensor) -> bool:
    """Return whether x is the result of a grouped convolution."""
    if x.op.type != "Conv2D":
        return False
    source, kernels = x.op.inputs
    return source.shape[3] != kernels.shape[2]
