"""Layers for inference with fused operations, which return the same bits as separate operations.

One native kernel (emulator/native/conv_norm.cc) computes a gate or mean, the pointwise or depthwise convolution after it,
the batch norm or bias, and the activation. Layers are built one by one, so operations before a fused operation already
exist. TensorFlow does not run these operations, because nothing reads their results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow.compat.v1 as tf

from emulator.layers.activations import LINEAR, RELU, RELU6, SWISH
from emulator.layers.tensor_layers import MOMENTS, TensorLayers
from emulator.native import library
from Models._layers import Initial
from Models._norms import BatchNorm

SIGMOID = "sigmoid"


@dataclass(frozen=True)
class _Convolution:
    """The arguments of a convolution. `gate` [batch, 1, 1, channels] multiplies x. `of_mean` means that the input is the
    mean of x over pixels."""

    x: tf.Tensor
    weights: tf.Tensor  # the shape is [kernel, kernel, channels of a group, filters].
    stride: int = 1
    bias: tf.Tensor | None = None
    gate: tf.Tensor | None = None
    of_mean: bool = False

    @property
    def is_depthwise(self) -> bool:
        """True if every channel has its own kernel."""
        return self.weights.shape[2] == 1 and self.weights.shape[3] == self.x.shape[-1] > 1

    @property
    def is_pointwise(self) -> bool:
        """True if kernels are 1 x 1 and there is one group."""
        return self.weights.shape[0] == self.stride == 1 and self.weights.shape[2] == self.x.shape[-1]

    @property
    def kernels(self) -> ModuleType | None:
        """The native operations, or None if they are not built for this processor."""
        built = library.load_for(self.x)
        return built if hasattr(built, "emulator_pointwise_conv_norm") else None

    def with_norm(self, **norm: Any) -> tf.Tensor | None:
        """Return the convolution with batch norm and activation, or None if no native operation computes them together.

        `norm` has gamma, beta, mean and variance, each [filters], then epsilon and the name of the activation.
        """
        kernels = self.kernels
        if not kernels or self.bias is not None or self.of_mean:
            return None
        norm |= {"x": self.x, "weights": self.weights, "stride": self.stride}
        if self.is_depthwise and self.gate is None:
            return kernels.emulator_depthwise_conv_norm(**norm)
        gates = [] if self.gate is None else [self.gate]
        return kernels.emulator_pointwise_conv_norm(gate=gates, **norm) if self.is_pointwise else None

    def with_activation(self, activation: str) -> tf.Tensor | None:
        """Return the convolution with bias and activation, or None if no native operation computes them together."""
        kernels = self.kernels
        if not kernels or self.bias is None or self.gate is not None or not self.is_pointwise:
            return None
        return kernels.emulator_pointwise_conv_bias(
            x=self.x, weights=self.weights, bias=self.bias, activation=activation, of_mean=self.of_mean
        )


class FusedLayers(TensorLayers):
    """Layers for inference on tensors [batch, height, width, channels] in the dtype of the weights."""

    def __init__(self, weights: Mapping[str, tf.Tensor]) -> None:
        super().__init__(weights, training=False)
        # maps a result to the convolution, gate or mean that computes it.
        self._convolutions: dict[Any, _Convolution] = {}
        self._gates: dict[Any, tuple[tf.Tensor, tf.Tensor]] = {}
        self._means: dict[Any, tf.Tensor] = {}

    def conv(
        self, x: tf.Tensor, filters: int, kernel: int, initial: Initial, *, stride: int = 1, groups: int = 1,
        bias: bool = False, padding: str = "SAME",
    ) -> tf.Tensor:  # fmt: skip
        y = super().conv(x, filters, kernel, initial, stride=stride, groups=groups, bias=bias, padding=padding)
        if padding != "SAME" and stride > 1:
            return y  # the native operations use SAME padding.
        weights = self._weights[self.path("conv", "conv2d", "kernel")]
        added = self._weights[self.path("conv", "conv2d", "bias")] if bias else None
        source, gate = self._gates.get(x.ref(), (x, None))
        if x.ref() in self._means:
            convolution = _Convolution(self._means[x.ref()], weights, stride, added, of_mean=True)
        else:
            convolution = _Convolution(source, weights, stride, added, gate)
        self._convolutions[y.ref()] = convolution
        return y

    def gate(self, x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        y = super().gate(x, factor)
        if factor.shape[0] is not None and factor.shape[0] == x.shape[0]:
            self._gates[y.ref()] = x, factor
        return y

    def global_mean(self, x: tf.Tensor) -> tf.Tensor:
        y = super().global_mean(x)
        self._means[y.ref()] = x
        return y

    def _batch_norm(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, norm: BatchNorm, activation: str) -> tf.Tensor:
        source, (mean, variance) = self._convolutions.get(x.ref()), (self._weights[self.path(name)] for name in MOMENTS)
        done = source and source.with_norm(
            gamma=gamma, beta=beta, mean=mean, variance=variance, epsilon=norm.epsilon, activation=activation
        )
        return super()._batch_norm(x, gamma, beta, norm, activation) if done is None else done

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        return self._activated(x, RELU, super().relu)

    def relu6(self, x: tf.Tensor) -> tf.Tensor:
        return self._activated(x, RELU6, super().relu6)

    def swish(self, x: tf.Tensor) -> tf.Tensor:
        return self._activated(x, SWISH, lambda x: x * tf.sigmoid(x))

    def sigmoid(self, x: tf.Tensor) -> tf.Tensor:
        return self._activated(x, SIGMOID, super().sigmoid)

    def _activated(self, x: tf.Tensor, activation: str, otherwise: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        source = self._convolutions.get(x.ref())
        done = source and source.with_activation(activation)
        return otherwise(x) if done is None else done

    def dense(self, x: tf.Tensor, units: int) -> tf.Tensor:
        y = super().dense(x, units)
        weights, bias = (self._weights[self.path("dense", name)] for name in ("kernel", "bias"))
        source = self._means.get(x.ref())
        pixels = tf.reshape(x, [-1, 1, 1, weights.shape[0]]) if source is None else source
        done = _Convolution(pixels, weights[None, None], 1, bias, of_mean=source is not None).with_activation(LINEAR)
        return y if done is None else tf.reshape(done, [-1, units])
