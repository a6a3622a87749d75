"""The vocabulary for inference in other runtimes: FP32, by operations that every one of them has. No native kernel, no
function that XLA compiles, no gradient, and convolutions as such, which converters quantise and fuse."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from emulator.layers import batch_norm, group_norm, proxy_norm
from emulator.layers.activations import LINEAR
from emulator.layers.tensor_layers import TensorLayers
from Models._layers import Initial, ProxyRule
from Models._norms import GroupNorm, Norm


class PortableLayers(TensorLayers):
    """The vocabulary on FP32 tensors [batch, height, width, channels], of a batch of any size; inference alone."""

    def conv(
        self, x: tf.Tensor, filters: int, kernel: int, initial: Initial, *, stride: int = 1, groups: int = 1,
        bias: bool = False,
    ) -> tf.Tensor:  # fmt: skip
        weights = self._weights[self.path("conv", "conv2d", "kernel")]
        if groups == filters == self.channels(x) and groups > 1:
            depthwise = tf.reshape(weights, [kernel, kernel, filters, 1])
            y = tf.nn.depthwise_conv2d_native(x, depthwise, [1, stride, stride, 1], "SAME")
        else:
            y = tf.nn.conv2d(x, weights, stride, "SAME")
        return tf.nn.bias_add(y, self._weights[self.path("conv", "conv2d", "bias")]) if bias else y

    def norm(
        self, x: tf.Tensor, policy: Norm, *, zero_gamma: bool = False, scale: bool = True, centre: bool = True
    ) -> tf.Tensor:
        if isinstance(policy, GroupNorm):
            return self._group_norm(x, policy, LINEAR, scale=scale, centre=centre)
        return super().norm(x, policy, zero_gamma=zero_gamma, scale=scale, centre=centre)

    def norm_activation(self, x: tf.Tensor, policy: Norm, activation: str) -> tf.Tensor:
        return self._activation(self.norm(x, policy), activation)

    def _group_norm(
        self, x: tf.Tensor, policy: Norm, activation: str, *, scale: bool = True, centre: bool = True
    ) -> tf.Tensor:
        with self.scope(policy.scope):
            gamma, beta = self._affine(x, scale=scale, centre=centre)
        return self._activation(_group_normed(x, gamma, beta, policy), activation)

    def _normed(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, policy: Norm, activation: str) -> tf.Tensor:
        moving = self._weights[self.path("moving_mean")], self._weights[self.path("moving_variance")]
        return self._activation(batch_norm.inference(x, gamma, beta, moving, policy.epsilon), activation)

    def proxy_norm_activation(
        self, x: tf.Tensor, policy: Norm, rule: ProxyRule, *, scaled: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        own = tf.unstack(self._weights[self.path("act", "proxy")])
        beta, gamma, mean, inverse = (tf.reshape(own[row], [-1]) for row in proxy_norm.ROWS[:4])
        y = self._activation(_group_normed(x, gamma, beta, policy), rule.activation) - mean
        return y * inverse if scaled else y, own[proxy_norm.INVERSE_DEVIATION][None]

    def swish(self, x: tf.Tensor) -> tf.Tensor:
        return x * tf.sigmoid(x)

    def gate(self, x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return x * factor


def _group_normed(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, policy: Norm) -> tf.Tensor:
    mean, r = group_norm.statistics(x, policy)
    factor = r * gamma
    return x * factor + (beta - mean * factor)
