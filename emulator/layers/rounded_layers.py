"""The layer vocabulary with rounding to narrow formats: operands of products, results, and gradients.

If several layers read one tensor, the sum of their gradients is rounded too. `emulator.layers.rounding` does the rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from base import draws
from emulator.layers import activations, batch_norm, group_norm
from emulator.layers.activations import LINEAR
from emulator.layers.rounding import (
    Rounding,
    gradient_rounded,
    range_factor,
    rounded_pixel_mean,
    scaled_gradient_rounded,
    scaled_value_rounded,
    value_and_gradient_rounded,
    value_rounded,
)
from emulator.layers.tensor_layers import TensorLayers
from emulator.native import library
from emulator.plan.checkpoint_tensors import AMAX_HISTORY
from Models._layers import ProxyRule
from Models._norms import BatchNorm, GroupNorm


class OperandRoundings(NamedTuple):
    """The roundings of a layer's operands; None if nothing needs rounding. `kernel_index`: the layer's row in the amax
    history, if its formats are scaled."""

    activation: Rounding | None
    gradient: Rounding | None
    kernel_index: int | None = None


_UNROUNDED = OperandRoundings(None, None)


class OperandLayers(TensorLayers):
    """The layer vocabulary with rounded operands, on tensors [batch, height, width, channels]."""

    _any_operands = False  # sums of two operands may not fit their format

    def __init__(
        self,
        weights: dict[str, tf.Tensor],
        *,
        operands: Callable[[str], OperandRoundings] = lambda kernel: _UNROUNDED,
        **context: Any,
    ) -> None:
        """`operands`: the roundings for the layer with a kernel of that name; `weights` and `context`: arguments of
        TensorLayers.

        Random rounding is keyed by (seed, segment, number of the rounding in the segment, sample position).
        """
        super().__init__(weights, **context)
        self._operands = operands
        self._segment, self._rounded = "", 0  # number of roundings in the segment, so that no two draw the same in any plan

    def begin_segment(self, name: str) -> None:
        self._segment, self._rounded = name, 0

    def _round_operand(self, x: tf.Tensor, kernel: str) -> tf.Tensor:
        rounding, _, kernel_index = self._operands(kernel)
        if rounding is None:
            return x
        noise = self._noise_for(rounding, x.shape.rank)
        if kernel_index is None:
            return value_rounded(x, rounding, noise)
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
        """Return the power of two that shifts a tensor into the range of its format. `kind`: 0 activation, 1 gradient."""
        return range_factor(self._weights[AMAX_HISTORY][kernel_index, kind], rounding.format)

    def _noise_for(self, rounding: Rounding, rank: int = 4) -> tuple[tf.Tensor, ...]:
        """Return the bits for the next random rounding, [batch, 1, ...]; empty if it is not random."""
        if not rounding.stochastic or self._positions is None:
            return ()
        self._rounded += 1
        key = draws.key(self._seed, f"rounding/{self._segment}/{self._rounded}")
        return (draws.bits(key, tf.reshape(self._positions, [-1] + [1] * (rank - 1))),)


@dataclass
class _GradientRounding:
    """Decides which layer rounds the gradient that arrives at a tensor. Everything is known only after the forward pass,
    when all readers are registered."""

    segment: str  # segment of the readers
    rounded: bool  # the layer that produced the tensor can round
    readers: int = 0
    on_grid: bool = True  # each reader returns a gradient in the format
    rounded_downstream: bool = False  # the next segment rounds
    summed: tf.Tensor | None = None  # the tensor that readers get, where their gradients are added

    def needs_rounding(self) -> bool:
        """Return whether the layer that produced the tensor must round the gradient."""
        return self.readers + self.rounded_downstream != 1 or not self.on_grid

    def sum_needs_rounding(self) -> bool:
        """Return whether the sum of several readers' gradients must be rounded."""
        return self.readers > 1 and not self.rounded

    def summand_needs_rounding(self) -> bool:
        """Return whether each reader's gradient must be rounded."""
        return self.readers > 1 or not self.rounded


class RoundedLayers(OperandLayers):
    """The layer vocabulary on FP32 tensors [batch, height, width, channels] whose values are numbers of the compute
    format."""

    def __init__(self, weights: dict[str, tf.Tensor], *, rounding: Rounding, **context: Any) -> None:
        """`rounding`: of results and gradients; `weights` and `context`: arguments of OperandLayers."""
        super().__init__(weights, **context)
        self._rounding = rounding
        self._gradients: dict[str, _GradientRounding] = {}  # by name of the tensor
        self._parameters: set[str] = set()  # names of tensors that depend on weights only

    def _result(self, x: tf.Tensor) -> tf.Tensor:
        gradient = _GradientRounding(self._segment, rounded=True)
        y = value_and_gradient_rounded(x, self._rounding, self._noise(x.shape.rank), needs_rounding=gradient.needs_rounding)
        self._gradients[y.name] = gradient
        return y

    def _noise(self, rank: int = 4) -> tuple[tf.Tensor, ...]:
        """Return the bits for the rounding of the next result, as `_noise_for`."""
        return self._noise_for(self._rounding, rank)

    def _rounded_by_layer(self, y: tf.Tensor) -> tf.Tensor:
        """Return the output of a layer that itself rounds its result and the gradient that arrives there."""
        self._gradients[y.name] = _GradientRounding(self._segment, rounded=True)
        return y

    def _layer_input(self, x: tf.Tensor, *, gradient_on_grid: bool = False) -> tf.Tensor:
        """Return a layer's input; its gradient is rounded in the backward pass.

        Nothing is assumed about a tensor from the previous segment: segments may be differentiated separately, and the
        results must be the same to the bit.
        """
        if not self._training or x.name in self._parameters:
            return x
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
        if gradient_on_grid:
            return gradient.summed
        return gradient_rounded(
            gradient.summed,
            self._rounding,
            self._noise(x.shape.rank),
            needs_rounding=gradient.summand_needs_rounding,
        )

    def _alias_gradient(self, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
        if old.name in self._gradients:
            self._gradients[new.name] = self._gradients[old.name]
        return new

    def _group_norm(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, norm: GroupNorm, activation: str) -> tf.Tensor:
        x = self._layer_input(x, gradient_on_grid=True)
        return self._rounded_by_layer(group_norm.group_norm(x, gamma, beta, norm, activation, self._rounding, self._noise()))

    def _batch_norm(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, norm: BatchNorm, activation: str) -> tf.Tensor:
        if self._uses_batch_statistics() and not self._sync_mean and library.load_for(x):
            batch = self._layer_input(x, gradient_on_grid=True), gamma, beta, self._norm_parts, norm.epsilon
            normed = batch_norm.native_batch_norm(*batch, activation, self._rounding, self._noise())
            return self._rounded_by_layer(self._with_statistics(normed))
        y = super()._batch_norm(x, gamma, beta, norm, LINEAR)
        if activation == LINEAR:
            return self._result(y)
        return self._rounded_by_layer(activations.rounded_activation(y, activation, self._rounding, self._noise()))

    def _proxy_norm(self, x: tf.Tensor, rows: group_norm.Rows, norm: GroupNorm, activation: str, scaled: bool) -> tf.Tensor:
        x, rounding = self._layer_input(x, gradient_on_grid=True), self._rounding
        # not _rounded_by_layer: the incoming gradient is added up in FP32, so it must be rounded before
        return group_norm.proxy_norm(x, rows, norm, activation, scaled=scaled, rounding=rounding, noise=self._noise())

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
        return self._result(activations.gate(self._layer_input(x), self._layer_input(factor)))

    def global_mean(self, x: tf.Tensor) -> tf.Tensor:
        return self._result(rounded_pixel_mean(self._layer_input(x, gradient_on_grid=True), self._rounding, self._noise()))
