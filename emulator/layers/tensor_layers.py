"""The vocabulary as TensorFlow operations: the reader that trains.

Weights come in as tensors by name, so that the caller decides how they are stored, cast and differentiated;
this module creates no variable. Random draws are keyed by (seed, layer, sample position).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from base import draws
from emulator.layers import activations, batch_norm, group_norm, half, proxy_norm
from emulator.layers.activations import LINEAR
from emulator.layers.half import Rounding
from emulator.layers.watch import GradientWatch
from Models._layers import Initial, Layers, ProxyRule, Variable
from Models._norms import BatchNorm, GroupNorm, NoNorm, Norm


def initial_value(variable: Variable, seed: draws.Seed, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Initial values as a function of (seed, name)."""
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
        # a normal cut at two deviations has 0.8796 of the uncut one's deviation
        values = tf.random.stateless_truncated_normal(variable.shape, key, stddev=deviation / 0.87962566103423978)
    return tf.cast(values, dtype)


@dataclass
class _Gradient:
    """The gradient that arrives at a tensor in the backward pass, and the layer that brings it onto FP16's grid. Both are
    known when the backward pass is built, for by then all readers are."""

    segment: str  # in which they read
    rounded: bool  # by the layer whose result the tensor is
    readers: int = 0
    fp16: bool = True  # each reader's own gradient is on FP16's grid
    arrives_half: bool = False  # the next segment sees to it
    summed: tf.Tensor | None = None  # what readers read, so that what they hand back meets in one place

    def needs_rounding(self) -> bool:
        """Return whether the layer whose result the tensor is rounds the gradient."""
        return self.readers + self.arrives_half != 1 or not self.fp16

    def sum_needs_rounding(self) -> bool:
        """Return whether the sum of several readers' gradients is rounded."""
        return self.readers > 1 and not self.rounded

    def summand_needs_rounding(self) -> bool:
        """Return whether a gradient is rounded where a reader hands it back."""
        return self.readers > 1 or not self.rounded


class TensorLayers(Layers):
    """The vocabulary on tensors [batch, height, width, channels]."""

    def __init__(
        self,
        weights: Mapping[str, tf.Tensor],
        *,
        training: bool,
        seed: draws.Seed = 0,
        positions: tf.Tensor | None = None,
        norm_parts: int = 1,
        rounding: Rounding | None = None,
        watch: GradientWatch | None = None,
        sync_mean: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ) -> None:
        """`weights`: every variable's value by full name. `positions` [batch] int64: each sample's place in the
        endless training order, the counter of its draws (needed in training only). `norm_parts`: the equal parts of
        the batch whose batch-norm statistics are kept apart. `rounding`: every result is half, and so is every gradient
        that a layer hands back, and their sum where several layers read one tensor; without it they are what the weights
        are. `watch` counts the gradients that arrive.
        `sync_mean`: the mean of a tensor over the processes whose batch-norm statistics are one."""
        super().__init__()
        self.statistics: dict[str, tf.Tensor] = {}  # moving statistic -> what this micro-batch says of it
        self._weights = weights
        self._training = training
        self._seed = seed
        self._positions = positions
        self._norm_parts = norm_parts
        self._rounding = rounding
        self._watch = watch
        self._sync_mean = sync_mean
        self._segment, self._rounded = "", 0  # results so far, of one segment: no two draw the same in any plan
        self._gradients: dict[str, _Gradient] = {}  # by the name of the tensor that they belong to
        self._parameters: set[str] = set()  # names of tensors that are made of weights alone

    def _result(self, x: tf.Tensor) -> tf.Tensor:
        """Return a layer's output, in the precision that it computes in."""
        if self._rounding is None:
            return x
        gradient = _Gradient(self._segment, rounded=True)
        y = half.half(x, self._rounding, self._noise(x.shape.rank), arriving=gradient.needs_rounding)
        self._gradients[y.name] = gradient
        return y

    def _halved(self, y: tf.Tensor) -> tf.Tensor:
        """Return the output of a layer that rounds that, and the gradient which arrives there, by itself."""
        if self._rounding is not None:
            self._gradients[y.name] = _Gradient(self._segment, rounded=True)
        return y

    def _read(self, x: tf.Tensor, *, fp16_gradient: bool = False) -> tf.Tensor:
        """Return a layer's input. The gradient that leaves a layer is half, and so is the sum of several layers' gradients.
        `fp16_gradient`: the layer's own gradient is on FP16's grid, given one that is.

        Where x comes from the segment before, nothing is known of who made it: segments may be differentiated apart, and
        the bits must not depend on that."""
        if self._rounding is None or not self._training or x.name in self._parameters:
            return x
        gradient = self._gradients.get(x.name)
        if gradient is None or gradient.segment != self._segment:
            if gradient is not None:
                gradient.arrives_half = True
            gradient = self._gradients[x.name] = _Gradient(self._segment, rounded=False)
        if gradient.summed is None:
            noise = self._noise(x.shape.rank)
            gradient.summed = half.half_back(x, self._rounding, noise, arriving=gradient.sum_needs_rounding)
        gradient.readers += 1
        gradient.fp16 &= fp16_gradient
        if fp16_gradient:
            return gradient.summed
        return half.half_back(
            gradient.summed, self._rounding, self._noise(x.shape.rank), arriving=gradient.summand_needs_rounding
        )

    def _same(self, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
        """`new`, which stands for `old` from here on."""
        if old.name in self._gradients:
            self._gradients[new.name] = self._gradients[old.name]
        return new

    def _noise(self, rank: int = 4) -> tuple[tf.Tensor, ...]:
        """Return the bits that decide the next result's random rounding, [batch, 1, ...]; nothing if it is not random."""
        if self._rounding is None or not self._rounding.stochastic or self._positions is None:
            return ()
        self._rounded += 1
        key = draws.key(self._seed, f"rounding/{self._segment}/{self._rounded}")
        return (draws.bits(key, tf.reshape(self._positions, [-1] + [1] * (rank - 1))),)

    def begin_segment(self, name: str) -> None:
        self._segment, self._rounded = name, 0

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
    ) -> tf.Tensor:
        weights = self._weights[self.path("conv", "conv2d", "kernel")]
        x = self._read(x)
        if groups == filters == self.channels(x) and groups > 1:
            depthwise = tf.reshape(weights, [kernel, kernel, filters, 1])
            y = tf.nn.depthwise_conv2d_native(x, depthwise, [1, stride, stride, 1], "SAME")
        elif groups > 1 and not _native_group_gradients(x.dtype):
            pairs = zip(tf.split(x, groups, -1), tf.split(weights, groups, -1))
            y = tf.concat([tf.nn.conv2d(part, w, stride, "SAME") for part, w in pairs], -1)
        elif kernel == stride == groups == 1:
            y = _pointwise(x, weights)
        else:
            y = tf.nn.conv2d(x, weights, stride, "SAME")
        y = self._result(y)
        if bias:
            y = self._biased(y, self._weights[self.path("conv", "conv2d", "bias")])
        return self._watched(y, "conv")

    def _biased(self, x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return self._result(tf.nn.bias_add(self._read(x, fp16_gradient=True), bias))

    def _watched(self, y: tf.Tensor, kind: str) -> tf.Tensor:
        """A layer's result, the gradients that arrive at it counted."""
        return y if self._watch is None else self._same(self._watch.watched(y, self.path(kind)), y)

    def norm(
        self, x: tf.Tensor, policy: Norm, *, zero_gamma: bool = False, scale: bool = True, centre: bool = True
    ) -> tf.Tensor:
        return NORMS[type(policy)](self, x, policy, LINEAR, scale=scale, centre=centre)

    def norm_activation(self, x: tf.Tensor, policy: Norm, activation: str) -> tf.Tensor:
        return NORMS[type(policy)](self, x, policy, activation)

    def _activation(self, x: tf.Tensor, activation: str) -> tf.Tensor:
        return x if activation == LINEAR else getattr(self, activation)(x)

    def _unchanged(self, x: tf.Tensor, policy: Norm, activation: str, **_: bool) -> tf.Tensor:
        return self._activation(x, activation)

    def _affine(self, x: tf.Tensor, *, scale: bool, centre: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """gamma and beta [channels] of the norm in the present scope: 1 and 0 where they are not trained."""
        gamma = self._weights[self.path("gamma")] if scale else tf.ones(x.shape[-1:], x.dtype)
        return gamma, self._weights[self.path("beta")] if centre else tf.zeros(x.shape[-1:], x.dtype)

    def _group_norm(
        self, x: tf.Tensor, policy: Norm, activation: str, *, scale: bool = True, centre: bool = True
    ) -> tf.Tensor:
        with self.scope(policy.scope):
            gamma, beta = self._affine(x, scale=scale, centre=centre)
        x = self._read(x, fp16_gradient=True)
        return self._halved(group_norm.group_norm(x, gamma, beta, policy, activation, self._rounding, self._noise()))

    def _batch_norm(
        self, x: tf.Tensor, policy: Norm, activation: str, *, scale: bool = True, centre: bool = True
    ) -> tf.Tensor:
        x = self._read(x)
        with self.scope(policy.scope):
            gamma, beta = self._affine(x, scale=scale, centre=centre)
            if self._rounding is None:
                return self._normed(x, gamma, beta, policy, activation)
            y = self._normed(x, gamma, beta, policy, LINEAR)
        if activation == LINEAR:
            return self._result(y)
        return self._halved(activations.halved_activation(y, activation, self._rounding, self._noise()))

    def _normed(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, policy: Norm, activation: str) -> tf.Tensor:
        """Batch norm and an activation in the precision of x; training's moments become the micro-batch's statistics."""
        names = self.path("moving_mean"), self.path("moving_variance")
        if not self._training:
            moving = self._weights[names[0]], self._weights[names[1]]
            done = batch_norm.inference_by_kernels(x, gamma, beta, moving, policy.epsilon, activation)
            if done is not None:
                return done
            return self._activation(batch_norm.inference(x, gamma, beta, moving, policy.epsilon), activation)
        batch = (x, gamma, beta, self._norm_parts, policy.epsilon)
        activated = None if self._sync_mean else batch_norm.by_kernels(*batch, activation)
        if activated:
            normed = activated
        elif self._sync_mean:
            normed = batch_norm.of_processes(*batch, self._sync_mean)
        else:
            normed = batch_norm.of_batch(*batch)
        self.statistics |= {names[0]: normed.mean, names[1]: normed.variance}
        return normed.y if activated else self._activation(normed.y, activation)

    def proxy_norm_activation(
        self, x: tf.Tensor, policy: Norm, rule: ProxyRule, *, scaled: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        proxy = self._weights[self.path("act", "proxy")]
        own = tf.unstack(proxy)
        rows = tuple(tf.reshape(own[row], [-1]) for row in proxy_norm.ROWS[:4])
        x = self._read(x, fp16_gradient=True)
        y = group_norm.proxy_norm(
            x, rows, policy, rule.activation, scaled=scaled, rounding=self._rounding, noise=self._noise()
        )
        factor = own[proxy_norm.INVERSE_DEVIATION][None]
        self._parameters.add(factor.name)
        return y, factor  # not _halved: FP32 sums are made of what arrives, so that it must be half before

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(self._read(x, fp16_gradient=True))

    def relu6(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu6(self._read(x, fp16_gradient=True))

    def swish(self, x: tf.Tensor) -> tf.Tensor:
        return self._halved(activations.swish(self._read(x, fp16_gradient=True), self._rounding, self._noise()))

    def sigmoid(self, x: tf.Tensor) -> tf.Tensor:
        return self._result(tf.sigmoid(self._read(x)))

    def add(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return self._result(self._read(x, fp16_gradient=True) + self._read(y, fp16_gradient=True))

    def gate(self, x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        if self._rounding is None and factor.name not in self._parameters:
            return activations.gate(self._read(x), self._read(factor))
        return self._result(self._read(x) * self._read(factor))

    def concat(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.concat([self._read(x, fp16_gradient=True), self._read(y, fp16_gradient=True)], -1)

    def max_pool(self, x: tf.Tensor, kernel: int, stride: int, *, padding: str = "SAME") -> tf.Tensor:
        return tf.nn.max_pool2d(self._read(x), kernel, stride, padding)

    def global_mean(self, x: tf.Tensor) -> tf.Tensor:
        if self._rounding is None:
            return tf.reduce_mean(x, axis=[1, 2], keepdims=True)
        return self._result(half.pixel_mean(self._read(x, fp16_gradient=True), self._rounding, self._noise()))

    def subsample(self, x: tf.Tensor, stride: int, channels: int) -> tf.Tensor:
        missing = channels - self.channels(x)
        x = self._read(x, fp16_gradient=True)
        return tf.pad(x[:, ::stride, ::stride, :], [[0, 0], [0, 0], [0, 0], [missing // 2, missing - missing // 2]])

    def dense(self, x: tf.Tensor, units: int) -> tf.Tensor:
        kernel, bias = (self._weights[self.path("dense", name)] for name in ("kernel", "bias"))
        product = self._result(tf.matmul(_flat(self._read(x)), kernel))
        return self._watched(self._biased(product, bias), "dense")

    def flatten(self, x: tf.Tensor) -> tf.Tensor:
        return _flat(self._read(x, fp16_gradient=True))

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
        return self._result(self._read(x) * (tf.cast(drawn < probability, x.dtype) / probability))


# the method of each kind of norm, which does the activation after the norm too
NORMS = {GroupNorm: TensorLayers._group_norm, BatchNorm: TensorLayers._batch_norm, NoNorm: TensorLayers._unchanged}


def _pointwise(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """A convolution by kernels of one pixel, weights [1, 1, channels, filters], as a product of matrices: both gradients are
    products then, which TensorFlow does in up to half the time of a convolution's."""
    channels, filters = weights.shape[2:]
    y = tf.matmul(tf.reshape(x, [-1, channels]), tf.reshape(weights, [channels, filters]))
    return tf.reshape(y, [-1, *x.shape[1:3], filters])


def _flat(x: tf.Tensor) -> tf.Tensor:
    """[batch, all of a sample's numbers]."""
    return tf.reshape(x, [-1, math.prod(x.shape[1:])])


def _native_group_gradients(dtype: tf.DType) -> bool:
    """Return whether TensorFlow differentiates grouped convolutions itself: on the CPU only with oneDNN, only in FP32."""
    return dtype == tf.float32 and os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") != "0"
