"""Layers that round operands of products, results and gradients to narrow formats. `emulator.layers.rounding` rounds.

If several layers read a tensor, the sum of the gradients that they return is rounded too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from base import draws
from base.gradient_rules import by_rule, with_gradient
from emulator.layers import activations, batch_norm, convolutions, group_norm
from emulator.layers.activations import LINEAR
from emulator.layers.rounding import (
    BACKWARD,
    Rounding,
    gradient_rounded,
    kernel_attributes,
    narrow_source,
    range_factor,
    recomputed,
    rounded,
    rounded_gradient,
    rounded_pixel_mean,
    scaled_gradient_rounded,
    scaled_value_rounded,
    storage_dtype,
    value_and_gradient_rounded,
    value_rounded,
    widened,
)
from emulator.layers.tensor_layers import TensorLayers
from emulator.native import library
from emulator.plan.checkpoint_tensors import AMAX_HISTORY
from Models._layers import ProxyRule
from Models._norms import BatchNorm, GroupNorm


class OperandRoundings(NamedTuple):
    """The roundings of a layer's operands. None means no rounding. If the layer's formats are scaled, `kernel_index` is the
    layer's row in the history of largest values (amax)."""

    activation: Rounding | None
    gradient: Rounding | None
    kernel_index: int | None = None


_UNROUNDED = OperandRoundings(None, None)


class OperandLayers(TensorLayers):
    """Layers with rounded operands, on tensors [batch, height, width, channels]."""

    _any_operands = False  # Winograd's method is not allowed, because sums of operands may not fit their format.

    def __init__(
        self,
        weights: dict[str, tf.Tensor],
        *,
        operands: Callable[[str], OperandRoundings] = lambda kernel: _UNROUNDED,
        **context: Any,
    ) -> None:
        """`operands` returns the roundings for the layer with a given kernel. TensorLayers has the other arguments.

        Stochastic rounding depends on (seed, segment, number of the rounding in the segment, sample position).
        """
        super().__init__(weights, **context)
        self._operands = operands
        self._segment, self._rounded = "", 0  # roundings are numbered, so that no two draw the same.

    def begin_segment(self, name: str) -> None:
        self._segment, self._rounded = name, 0

    def _round_operand(self, x: tf.Tensor, kernel: str) -> tf.Tensor:
        rounding, _, kernel_index = self._operands(kernel)
        if rounding is None:
            return x
        noise = self._noise_for(rounding, x.shape.rank)
        if kernel_index is None:
            return widened(value_rounded(x, rounding, noise, storage_dtype(rounding.format)))
        if self._watch is not None:
            self._watch.record_operand_amax(kernel_index, 0, x)
        return scaled_value_rounded(x, self._factor(kernel_index, 0, rounding), rounding, noise)

    def _round_product_gradient(self, y: tf.Tensor, kernel: str) -> tf.Tensor:
        _, rounding, kernel_index = self._operands(kernel)
        if rounding is None or not self._training:
            return y
        noise = self._noise_for(rounding, y.shape.rank)
        if kernel_index is None:
            return gradient_rounded(y, rounding, noise)
        rounded = scaled_gradient_rounded(y, self._factor(kernel_index, 1, rounding), rounding, noise)
        return rounded if self._watch is None else self._watch.record_gradient_amax(kernel_index, rounded)

    def _factor(self, kernel_index: int, kind: int, rounding: Rounding) -> tf.Tensor:
        """Return the power of two that scales a tensor into the range of its format. `kind` is 0 for an activation and 1 for
        a gradient."""
        return range_factor(self._weights[AMAX_HISTORY][kernel_index, kind], rounding.format)

    def _noise_for(self, rounding: Rounding, rank: int = 4) -> tuple[tf.Tensor, ...]:
        """Return the random bits [batch, 1, ...] for the next stochastic rounding, or () if rounding is not stochastic."""
        if not rounding.stochastic or self._positions is None:
            return ()
        self._rounded += 1
        key = draws.key(self._seed, f"rounding/{self._segment}/{self._rounded}")
        return (draws.bits(key, tf.reshape(self._positions, [-1] + [1] * (rank - 1))),)


@dataclass
class _GradientRounding:
    """Decide which layer rounds the gradient of a tensor. The answers are final after the forward pass, when all layers that
    read the tensor are known."""

    segment: str  # the readers are in this segment.
    rounded: bool  # True if the layer that produced the tensor can round the gradient.
    readers: int = 0
    on_grid: bool = True  # True if every reader returns numbers of the format.
    rounded_downstream: bool = False  # True if the next segment rounds the gradient.
    summed: tf.Tensor | None = None  # readers get this tensor; the gradients of all readers are added here.

    def needs_rounding(self) -> bool:
        """Return whether the layer that produced the tensor must round the gradient."""
        return self.readers + self.rounded_downstream != 1 or not self.on_grid

    def sum_needs_rounding(self) -> bool:
        """Return whether the sum of several readers' gradients must be rounded."""
        return self.readers > 1 and not self.rounded

    def summand_needs_rounding(self) -> bool:
        """Return whether the gradient of each reader must be rounded."""
        return self.readers > 1 or not self.rounded


class RoundedLayers(OperandLayers):
    """The layer vocabulary on tensors [batch, height, width, channels] of the compute format.

    Tensors between layers have the narrowest dtype that holds the format. Inside a layer they are FP32.
    """

    def __init__(self, weights: dict[str, tf.Tensor], *, rounding: Rounding, **context: Any) -> None:
        """`rounding` rounds results and gradients. OperandLayers has the other arguments."""
        super().__init__(weights, **context)
        self._rounding = rounding
        self._dtype = storage_dtype(rounding.format)
        self._gradients: dict[str, _GradientRounding] = {}  # keys are names of tensors.
        self._parameters: set[str] = set()  # these tensors depend on weights only.

    def _result(self, x: tf.Tensor) -> tf.Tensor:
        gradient = _GradientRounding(self._segment, rounded=True)
        y = value_and_gradient_rounded(
            x, self._rounding, self._noise(x.shape.rank), needs_rounding=gradient.needs_rounding, dtype=self._dtype
        )
        self._gradients[y.name] = gradient
        return y

    def _stored(self, y: tf.Tensor) -> tf.Tensor:
        """Return FP32 numbers of the compute format in the dtype of tensors between layers."""
        return y if y.dtype == self._dtype else value_rounded(y, replace(self._rounding, stochastic=False), (), self._dtype)

    def _noise(self, rank: int = 4) -> tuple[tf.Tensor, ...]:
        return self._noise_for(self._rounding, rank)

    def _rounded_by_layer(self, y: tf.Tensor) -> tf.Tensor:
        """Return the output of a layer that rounds its own result and the incoming gradient."""
        y = self._stored(y)
        self._gradients[y.name] = _GradientRounding(self._segment, rounded=True)
        return y

    def _layer_input(self, x: tf.Tensor, *, gradient_on_grid: bool = False) -> tf.Tensor:
        """Return a layer's input and round its gradient in the backward pass.

        The gradient of a tensor from the previous segment is always rounded, because the backward passes of segments may be
        separate, and separate passes must give the same bits.
        """
        if not self._training or x.name in self._parameters:
            return widened(x)
        gradient = self._gradients.get(x.name)
        if gradient is None or gradient.segment != self._segment:
            if gradient is not None:
                gradient.rounded_downstream = True
            gradient = self._gradients[x.name] = _GradientRounding(self._segment, rounded=False)
        if gradient.summed is None:
            noise = self._noise(x.shape.rank)
            gradient.summed = gradient_rounded(x, self._rounding, noise, needs_rounding=gradient.sum_needs_rounding)
        gradient.readers += 1
        gradient.on_grid &= gradient_on_grid
        noise = () if gradient_on_grid else self._noise(x.shape.rank)

        def summand(dy: tf.Tensor) -> tf.Tensor:
            dtype = tf.float32 if gradient.readers > 1 else x.dtype  # sums of gradients are FP32.
            is_rounded = gradient_on_grid or dy.dtype != tf.float32
            if not is_rounded and gradient.summand_needs_rounding():
                return rounded_gradient(dy, self._rounding, noise, dtype)
            return widened(dy) if dtype == tf.float32 else dy

        return widened(by_rule("Identity", tf.identity, gradient.summed, rule=summand))

    def _alias_gradient(self, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
        if old.name in self._gradients:
            self._gradients[new.name] = self._gradients[old.name]
        return new

    def _product(self, x: tf.Tensor, weights: tf.Tensor, kernel: str, stride: int, padding: str) -> tf.Tensor:
        source, kernels, (_, operand_rounding, scaled) = narrow_source(x), library.load_for(x), self._operands(kernel)
        ungrouped = weights.shape[2] == x.shape[-1]
        by_processor = source.dtype == self._product_dtype == self._dtype and ungrouped
        by_kernel = hasattr(kernels, "emulator_convolution") and not convolutions.is_depthwise(x, weights)
        simple = source is not x and scaled is None and (padding == "SAME" or stride == 1)
        if not (simple and (by_processor or (by_kernel and not (ungrouped and self._product_dtype)))):
            return super()._product(x, weights, kernel, stride, padding)
        operand_noise = self._noise_for(operand_rounding) if operand_rounding and self._training else ()
        noise, gradient = self._noise(), _GradientRounding(self._segment, rounded=True)

        def arriving(dy: tf.Tensor) -> tf.Tensor:
            """Return the gradient of the result as the products of the gradients read it."""
            dy = self._arriving(dy, gradient, noise)
            if operand_rounding:
                dtype = storage_dtype(operand_rounding.format)
                dy = rounded(widened(dy), operand_rounding, operand_noise, BACKWARD, dtype)
            return dy

        if by_processor:
            y = convolutions.convolve(source, tf.cast(weights, source.dtype), stride, winograd=False)
            y = by_rule("Identity", tf.identity, y, rule=lambda dy: tf.cast(arriving(dy), source.dtype))
        else:
            y = convolutions.native_convolution(kernels, source, weights, stride, self._stored_results(noise), arriving)
        self._gradients[y.name] = gradient
        return y

    def _arriving(self, dy: tf.Tensor, gradient: _GradientRounding, noise: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Return the gradient of a result, rounded if this layer must round it."""
        return rounded_gradient(dy, self._rounding, noise, self._dtype) if gradient.needs_rounding() else dy

    def _stored_results(self, noise: tuple[tf.Tensor, ...]) -> dict[str, Any]:
        """Return the arguments that tell a native operation how to round and store its results."""
        return {**kernel_attributes(self._rounding, noise), "V": self._dtype}

    def _by_kernel(self, operation: Callable[..., tf.Tensor], rule: Callable[..., Any], *sources: tf.Tensor) -> tf.Tensor:
        """Return operation(*sources), rounded by a native kernel. `rule` returns the gradients of the sources."""
        noise, gradient = self._noise(), _GradientRounding(self._segment, rounded=True)

        @with_gradient
        def apply(*sources: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
            return operation(*sources, **self._stored_results(noise)), lambda dy: rule(self._arriving(dy, gradient, noise))

        y = apply(*sources)
        self._gradients[y.name] = gradient
        return y

    def add(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        x, y = (self._layer_input(each, gradient_on_grid=True) for each in (x, y))
        kernels, sources = library.load_for(x), (narrow_source(x), narrow_source(y))
        if kernels is None or sources[0] is x or sources[1] is y:
            return self._result(x + y)
        return self._by_kernel(lambda x, y, **r: kernels.emulator_sum(x=x, other=y, **r), lambda dy: (dy, dy), *sources)

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        x = self._layer_input(x, gradient_on_grid=True)
        kernels, source = library.load_for(x), narrow_source(x)
        if kernels is None or source is x:
            return self._stored(recomputed(tf.nn.relu)(x))

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return kernels.emulator_relu_gradient(x=y, dy=dy)

        y = by_rule("EmulatorRelu", lambda x: kernels.emulator_relu(x=x), source, rule=gradient)
        return y

    def _group_norm(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, norm: GroupNorm, activation: str) -> tf.Tensor:
        x = self._layer_input(x, gradient_on_grid=True)
        return self._rounded_by_layer(group_norm.group_norm(x, gamma, beta, norm, activation, self._rounding, self._noise()))

    def _batch_norm(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, norm: BatchNorm, activation: str) -> tf.Tensor:
        if self._uses_batch_statistics() and not self._sync_mean and library.load_for(x, library.STORED):
            batch = self._layer_input(x, gradient_on_grid=True), gamma, beta, self._norm_parts, norm.epsilon
            normed = batch_norm.native_batch_norm(*batch, activation, self._rounding, self._noise())
            return self._rounded_by_layer(self._with_statistics(normed))
        y = super()._batch_norm(x, gamma, beta, norm, LINEAR)
        if activation == LINEAR:
            return self._result(y)
        return self._rounded_by_layer(activations.rounded_activation(y, activation, self._rounding, self._noise()))

    def _proxy_norm(self, x: tf.Tensor, rows: group_norm.Rows, norm: GroupNorm, activation: str, scaled: bool) -> tf.Tensor:
        x, results = self._layer_input(x, gradient_on_grid=True), {"rounding": self._rounding, "noise": self._noise()}
        # Do not call _rounded_by_layer: the norm sums the incoming gradient in FP32, so it must be rounded before.
        return self._stored(group_norm.proxy_norm(x, rows, norm, activation, scaled=scaled, **results))

    def proxy_norm_activation(
        self, x: tf.Tensor, norm: GroupNorm, rule: ProxyRule, *, scaled: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        y, factor = super().proxy_norm_activation(x, norm, rule, scaled=scaled)
        self._parameters.add(factor.name)
        return y, factor

    def swish(self, x: tf.Tensor) -> tf.Tensor:
        x = self._layer_input(x, gradient_on_grid=True)
        return self._rounded_by_layer(activations.swish(x, self._rounding, self._noise()))

    def gate(self, x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        x, factor = self._layer_input(x), self._layer_input(factor)
        kernels, source = library.load_for(x), narrow_source(x)
        if kernels is None or source is x or factor.shape[0] != x.shape[0]:
            return self._result(activations.gate(x, factor))

        def gradients(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tuple(kernels.emulator_gate_gradient(x=source, factor=factor, dy=dy))

        return self._by_kernel(lambda x, f, **r: kernels.emulator_gate(x=x, factor=f, **r), gradients, source, factor)

    def global_mean(self, x: tf.Tensor) -> tf.Tensor:
        return self._result(rounded_pixel_mean(self._layer_input(x, gradient_on_grid=True), self._rounding, self._noise()))


def _storing(name: str) -> Callable[..., tf.Tensor]:
    """Return a method that builds the layer `name` and stores its result."""

    def layer(self: RoundedLayers, *arguments: Any, **options: Any) -> tf.Tensor:
        return self._stored(getattr(super(RoundedLayers, self), name)(*arguments, **options))

    return layer


for _name in ("relu6", "concat", "max_pool", "subsample", "flatten"):  # these layers need no rounding.
    setattr(RoundedLayers, _name, _storing(_name))
