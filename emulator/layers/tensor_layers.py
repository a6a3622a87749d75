"""Layers made of TensorFlow operations, for training.

The caller passes weights as tensors by name and decides how they are stored and cast. This module creates no variables.
Random draws depend on (seed, layer, sample position).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from base import draws
from emulator.layers import activations, batch_norm, convolutions, group_norm, proxy_norm
from emulator.layers.activations import LINEAR
from emulator.layers.rounding import recomputed
from emulator.layers.watch import GradientWatch
from Models._layers import Initial, Layers, ProxyRule, Variable
from Models._norms import BatchNorm, GroupNorm, NoNorm, Norm


def initial_value(variable: Variable, seed: draws.Seed, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Return the initial value of a variable. Random values depend on seed and name only."""
    if variable.proxy:
        return proxy_norm.initial(variable.proxy, variable.shape[-1], dtype)
    if not isinstance(variable.initial, Initial):
        return tf.fill(variable.shape, tf.constant(variable.initial, dtype))
    fan_in, fan_out = variable.fans
    fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2, "fixed": 1}
    fan = fans[variable.initial.mode]
    deviation = math.sqrt(variable.initial.scale / max(fan, 1))
    key = draws.stateless_seed(seed, f"initial/{variable.name}")
    if variable.initial.distribution == "uniform":
        limit = math.sqrt(3.0) * deviation
        values = tf.random.stateless_uniform(variable.shape, key, -limit, limit)
    else:
        # Truncation at two deviations multiplies the deviation of a normal distribution by 0.8796.
        values = tf.random.stateless_truncated_normal(variable.shape, key, stddev=deviation / 0.87962566103423978)
    return tf.cast(values, dtype)


class _LocalNorm(NamedTuple):
    """A batch norm that the native kernel computes: the arguments (x, gamma, beta, parts, epsilon), and the names of the
    moving statistics."""

    arguments: tuple[Any, ...]
    moments: tuple[str, ...]


class TensorLayers(Layers):
    """Layers on tensors [batch, height, width, channels]."""

    _any_operands = True  # Winograd's method is allowed, which multiplies sums of operands.

    def __init__(
        self,
        weights: Mapping[str, tf.Tensor],
        *,
        training: bool,
        seed: draws.Seed = 0,
        positions: tf.Tensor | None = None,
        norm_parts: int = 1,
        watch: GradientWatch | None = None,
        sync_mean: Callable[[tf.Tensor], tf.Tensor] | None = None,
        product_dtype: tf.DType | None = None,
        frozen: Collection[str] = (),
    ) -> None:
        """Results have the dtype of the weights.

        * `weights` has the value of every variable by full name.
        * `positions` (int64 [batch], in training only) numbers each sample over all epochs. Random draws depend on it.
        * `norm_parts` is the number of equal parts of the batch that have separate batch-norm statistics.
        * `watch` counts the gradients that narrow formats lose.
        * `sync_mean` returns the mean of a tensor over the processes that share batch-norm statistics.
        * `product_dtype` is the dtype of convolutions and matrix products. None means the dtype of the weights.
        * `frozen` names moving statistics. Norms with these statistics use them in training too.
        """
        super().__init__()
        self.statistics: dict[str, tf.Tensor] = {}  # maps each moving statistic to its value on this micro-batch.
        self._weights = weights
        self._training = training
        self._seed = seed
        self._positions = positions
        self._norm_parts = norm_parts
        self._watch = watch
        self._sync_mean = sync_mean
        self._product_dtype = product_dtype
        self._frozen = frozen
        # _linear_norms has the results of batch norms; _sums has the sums of a batch norm and a shortcut.
        self._linear_norms: dict[Any, _LocalNorm] = {}
        self._sums: dict[Any, tuple[_LocalNorm, tf.Tensor]] = {}

    def _layer_input(self, x: tf.Tensor, *, gradient_on_grid: bool = False) -> tf.Tensor:
        """Return a layer's input. Subclasses round or check the gradient of the input. `gradient_on_grid` means that the
        layer returns numbers of the compute format if its incoming gradient has such numbers."""
        return x

    def _result(self, x: tf.Tensor) -> tf.Tensor:
        """Return a layer's output. Subclasses round the output."""
        return x

    def _round_operand(self, x: tf.Tensor, kernel: str) -> tf.Tensor:
        """Return the operand that the layer with this kernel multiplies. Subclasses round the operand."""
        return x

    def _round_product_gradient(self, y: tf.Tensor, kernel: str) -> tf.Tensor:
        """Return the product with a kernel. Subclasses round its gradient, which the backward pass multiplies."""
        return y

    def _factors(self, weights: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return weights and activations in the dtype of products. Products of groups have the dtype of the activations,
        because TensorFlow is slow at products of groups in 16 bits."""
        of_groups = weights.shape[-2] != x.shape[-1]
        dtype = x.dtype if of_groups else self._product_dtype or x.dtype
        return tf.cast(weights, dtype), tf.cast(x, dtype)

    def _as_results(self, y: tf.Tensor) -> tf.Tensor:
        """Return a product in the dtype of results."""
        return tf.cast(y, tf.float32) if y.dtype == self._product_dtype else y

    def _alias_gradient(self, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
        """Return `new`, which replaces the tensor `old`. Subclasses copy what they know about `old`."""
        return new

    def channels(self, x: tf.Tensor) -> int:
        return x.shape[-1]

    def side(self, x: tf.Tensor) -> int:
        return x.shape[1]

    def conv(
        self,
        x: tf.Tensor,
        filters: int,
        kernel: int,
        initial: Initial,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        padding: str = "SAME",
    ) -> tf.Tensor:
        name = self.path("conv", "conv2d", "kernel")
        x = self._round_operand(self._layer_input(x), name)
        y = self._product(x, self._weights[name], name, stride, padding)
        if bias:
            y = self._biased(y, self._weights[self.path("conv", "conv2d", "bias")])
        return self._watched(y, "conv")

    def _product(self, x: tf.Tensor, weights: tf.Tensor, kernel: str, stride: int, padding: str) -> tf.Tensor:
        """Return the convolution of x with a kernel. Subclasses round the result and its gradient."""

        def convolution(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
            weights, x = self._factors(weights, x)
            winograd = self._training and self._any_operands
            window = partial(convolutions.convolve, weights=weights, stride=stride, winograd=winograd)
            return self._as_results(convolutions.padded(window, x, stride, padding))

        return self._result(self._round_product_gradient(recomputed(convolution)(x, weights), kernel))

    def _biased(self, x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return self._result(tf.nn.bias_add(self._layer_input(x, gradient_on_grid=True), bias))

    def _watched(self, y: tf.Tensor, kind: str) -> tf.Tensor:
        """Return a layer's result and count the incoming gradients in the backward pass."""
        return y if self._watch is None else self._alias_gradient(self._watch.watch_gradient(y, self.path(kind)), y)

    def norm(
        self, x: tf.Tensor, norm: Norm, *, zero_gamma: bool = False, scale: bool = True, centre: bool = True
    ) -> tf.Tensor:
        return self._normed(x, norm, LINEAR, scale=scale, centre=centre)

    def norm_activation(self, x: tf.Tensor, norm: Norm, activation: str) -> tf.Tensor:
        return self._normed(x, norm, activation)

    def _normed(self, x: tf.Tensor, norm: Norm, activation: str, *, scale: bool = True, centre: bool = True) -> tf.Tensor:
        if isinstance(norm, NoNorm):
            return self._activation(x, activation)
        with self.scope(norm.scope):
            dtype = tf.float32 if x.dtype.size == 2 else x.dtype
            gamma = self._weights[self.path("gamma")] if scale else tf.ones(x.shape[-1:], dtype)
            beta = self._weights[self.path("beta")] if centre else tf.zeros(x.shape[-1:], dtype)
            return getattr(self, NORMS[type(norm)])(x, gamma, beta, norm, activation)

    def _activation(self, x: tf.Tensor, activation: str) -> tf.Tensor:
        return x if activation == LINEAR else getattr(self, activation)(x)

    def _group_norm(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, norm: GroupNorm, activation: str) -> tf.Tensor:
        return group_norm.group_norm(self._layer_input(x, gradient_on_grid=True), gamma, beta, norm, activation)

    def _batch_norm(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, norm: BatchNorm, activation: str) -> tf.Tensor:
        x = self._layer_input(x)
        if not self._uses_batch_statistics():
            moving = tuple(self._weights[self.path(name)] for name in MOMENTS)
            if self._training:
                return batch_norm.frozen_batch_norm(x, gamma, beta, moving, norm.epsilon, activation)
            done = batch_norm.native_inference(x, gamma, beta, moving, norm.epsilon, activation)
            if done is not None:
                return done
            return self._activation(batch_norm.inference(x, gamma, beta, moving, norm.epsilon), activation)
        batch = (x, gamma, beta, self._norm_parts, norm.epsilon)
        activated = None if self._sync_mean else batch_norm.native_batch_norm(*batch, activation)
        if activated:
            normed = activated
            if activation == LINEAR and self._any_operands:
                self._linear_norms[normed.y.ref()] = _LocalNorm(batch, tuple(map(self.path, MOMENTS)))
        elif self._sync_mean:
            normed = batch_norm.sync_batch_norm(*batch, self._sync_mean)
        else:
            normed = batch_norm.local_batch_norm(*batch)
        y = self._with_statistics(normed)
        return y if activated else self._activation(y, activation)

    def _uses_batch_statistics(self) -> bool:
        """Return whether this batch norm uses the statistics of the batch, not moving statistics."""
        return self._training and self.path(MOMENTS[0]) not in self._frozen

    def _with_statistics(self, normed: batch_norm.Normed) -> tf.Tensor:
        """Return the values of a batch norm, and record its mean and variance as statistics of the micro-batch."""
        self.statistics |= dict(zip(map(self.path, MOMENTS), (normed.mean, normed.variance)))
        return normed.y

    def proxy_norm_activation(
        self, x: tf.Tensor, norm: GroupNorm, rule: ProxyRule, *, scaled: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        own = tf.unstack(self._weights[self.path("act", "proxy")])
        rows = tuple(tf.reshape(own[row], [-1]) for row in proxy_norm.ROWS[:4])
        y = self._proxy_norm(x, rows, norm, rule.activation, scaled)
        return y, own[proxy_norm.INVERSE_DEVIATION][None]

    def _proxy_norm(self, x: tf.Tensor, rows: group_norm.Rows, norm: GroupNorm, activation: str, scaled: bool) -> tf.Tensor:
        return group_norm.proxy_norm(self._layer_input(x, gradient_on_grid=True), rows, norm, activation, scaled=scaled)

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        x = self._layer_input(x, gradient_on_grid=True)
        if x.ref() not in self._sums:
            return tf.nn.relu(x)
        # One operation replaces norm, sum and ReLU. TensorFlow does not run these, because nothing reads their results.
        norm, shortcut = self._sums[x.ref()]
        y, *moments = batch_norm.native_batch_norm(*norm.arguments, activations.RELU, shortcuts=(shortcut,))
        self.statistics |= dict(zip(norm.moments, moments))
        return y

    def relu6(self, x: tf.Tensor) -> tf.Tensor:
        return recomputed(tf.nn.relu6)(self._layer_input(x, gradient_on_grid=True))

    def swish(self, x: tf.Tensor) -> tf.Tensor:
        return activations.swish(self._layer_input(x, gradient_on_grid=True))

    def sigmoid(self, x: tf.Tensor) -> tf.Tensor:
        return self._result(tf.sigmoid(self._layer_input(x)))

    def add(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        x, y = (self._layer_input(each, gradient_on_grid=True) for each in (x, y))
        total = self._result(x + y)
        for normed, shortcut in ((y, x), (x, y)):
            # If other layers also read the norm, its gradient is a sum, which the joined operation cannot compute.
            alone = normed.ref() in self._linear_norms and len(normed.consumers()) == 1
            if alone and normed.shape == shortcut.shape:
                self._sums[total.ref()] = self._linear_norms[normed.ref()], shortcut
                break
        return total

    def gate(self, x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return activations.gate(self._layer_input(x), self._layer_input(factor))

    def concat(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.concat([self._layer_input(x, gradient_on_grid=True), self._layer_input(y, gradient_on_grid=True)], -1)

    def max_pool(self, x: tf.Tensor, kernel: int, stride: int, *, padding: str = "SAME") -> tf.Tensor:
        if padding == "VALID":
            return recomputed(lambda x: tf.nn.max_pool2d(x, kernel, stride, padding))(self._layer_input(x))
        window = partial(tf.nn.max_pool2d, ksize=kernel, strides=stride, padding="SAME")
        return recomputed(lambda x: convolutions.padded(window, x, stride, padding))(self._layer_input(x))

    def global_mean(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(x, axis=[1, 2], keepdims=True)

    def subsample(self, x: tf.Tensor, stride: int, channels: int) -> tf.Tensor:
        missing = channels - self.channels(x)
        x = self._every(self._layer_input(x, gradient_on_grid=True), stride)
        return tf.pad(x, [[0, 0], [0, 0], [0, 0], [missing // 2, missing - missing // 2]])

    def _every(self, x: tf.Tensor, stride: int) -> tf.Tensor:
        return convolutions.subsample(x, stride)

    def dense(self, x: tf.Tensor, units: int) -> tf.Tensor:
        kernel, bias = (self.path("dense", name) for name in ("kernel", "bias"))
        weights, operand = self._factors(self._weights[kernel], self._round_operand(_flat(self._layer_input(x)), kernel))
        product = self._round_product_gradient(self._as_results(tf.matmul(operand, weights)), kernel)
        return self._watched(self._biased(self._result(product), self._weights[bias]), "dense")

    def flatten(self, x: tf.Tensor) -> tf.Tensor:
        return _flat(self._layer_input(x, gradient_on_grid=True))

    def dropout(self, x: tf.Tensor, rate: float) -> tf.Tensor:
        if not self._training or rate <= 0:
            return x
        elements = tf.reshape(tf.range(math.prod(x.shape[1:]), dtype=tf.int64), [1, *x.shape[1:]])
        return self._keep(x, 1 - rate, "dropout", self._per_sample(), elements)

    def drop_path(self, x: tf.Tensor, survival: float) -> tf.Tensor:
        if not self._training or survival >= 1:
            return x
        return self._keep(x, survival, "drop_path", self._per_sample())

    def _per_sample(self) -> tf.Tensor:
        return tf.reshape(self._positions, [-1, 1, 1, 1])

    def _keep(self, x: tf.Tensor, probability: float, what: str, *counters: tf.Tensor) -> tf.Tensor:
        drawn = draws.uniform(draws.key(self._seed, self.path(what)), *counters)
        x = self._layer_input(x)
        return self._result(x * (tf.cast(drawn < probability, x.dtype) / probability))


MOMENTS = "moving_mean", "moving_variance"  # these are the variables of batch norm that hold moving statistics.
# NORMS has names of methods, so that subclasses can replace them. Each computes a norm and the activation after it.
NORMS = {GroupNorm: "_group_norm", BatchNorm: "_batch_norm"}


def _flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, math.prod(x.shape[1:])])
