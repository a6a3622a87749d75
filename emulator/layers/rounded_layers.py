"""The vocabulary in half precision: results are on FP16's grid, as are the gradients that layers hand back, and their sum
where several layers read one tensor. `emulator.layers.grid` has the rounding itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from base import draws
from emulator.layers import activations, batch_norm, grid, group_norm
from emulator.layers.activations import LINEAR
from emulator.layers.grid import Rounding
from emulator.layers.tensor_layers import TensorLayers
from emulator.native import library
from emulator.plan.checkpoint_tensors import FORMAT_MAXIMA
from Models._layers import ProxyRule
from Models._norms import BatchNorm, GroupNorm


class OperandRoundings(NamedTuple):
    """The roundings of what a layer multiplies; None for a format that has every number that comes. `row`: of the layer in
    the table of largest numbers, if its formats follow them."""

    activation: Rounding | None
    gradient: Rounding | None
    row: int | None = None


_UNROUNDED = OperandRoundings(None, None)


class OperandLayers(TensorLayers):
    """The vocabulary on tensors [batch, height, width, channels]."""

    def __init__(
        self,
        weights: dict[str, tf.Tensor],
        *,
        operands: Callable[[str], OperandRoundings] = lambda kernel: _UNROUNDED,
        **context: Any,
    ) -> None:
        """`operands`: of the layer with a kernel of that name; `weights` and `context`: what TensorLayers take. Random
        rounding is keyed by (seed, segment, the number of the rounding in it, sample position)."""
        super().__init__(weights, **context)
        self._operands = operands
        self._segment, self._rounded = "", 0  # roundings so far, of one segment: no two draw the same in any plan

    def begin_segment(self, name: str) -> None:
        self._segment, self._rounded = name, 0

    def _operand(self, x: tf.Tensor, kernel: str) -> tf.Tensor:
        rounding, _, row = self._operands(kernel)
        if rounding is None:
            return x
        noise = self._noise_for(rounding, x.shape.rank)
        if row is None:
            return grid.value_rounded(x, rounding, noise)
        if self._watch is not None:
            self._watch.sees_operand(row, 0, x)
        return grid.scaled_value_rounded(x, self._factor(row, 0, rounding), rounding, noise)

    def _product(self, y: tf.Tensor, kernel: str) -> tf.Tensor:
        _, rounding, row = self._operands(kernel)
        if rounding is None or not self._training:
            return y
        noise = self._noise_for(rounding, y.shape.rank)
        if row is None:
            return grid.gradient_rounded(y, rounding, noise)
        rounded = grid.scaled_gradient_rounded(y, self._factor(row, 1, rounding), rounding, noise)
        return rounded if self._watch is None else self._watch.sees_gradient(row, rounded)

    def _factor(self, row: int, kind: int, rounding: Rounding) -> tf.Tensor:
        """Return the power of two that moves a tensor into the range of its format. `kind`: 0 activation, 1 gradient."""
        return grid.range_factor(self._weights[FORMAT_MAXIMA][row, kind], rounding.format)

    def _noise_for(self, rounding: Rounding, rank: int = 4) -> tuple[tf.Tensor, ...]:
        """Return the bits that decide the next random rounding, [batch, 1, ...]; nothing if it is not random."""
        if not rounding.stochastic or self._positions is None:
            return ()
        self._rounded += 1
        key = draws.key(self._seed, f"rounding/{self._segment}/{self._rounded}")
        return (draws.bits(key, tf.reshape(self._positions, [-1] + [1] * (rank - 1))),)


@dataclass
class _Gradient:
    """The gradient that arrives at a tensor in the backward pass, and the layer that brings it onto FP16's grid. Both are
    known when the backward pass is built, for by then all readers are."""

    segment: str  # in which they read
    rounded: bool  # by the layer whose result the tensor is
    readers: int = 0
    fp16: bool = True  # each reader's own gradient is on FP16's grid
    arrives_half: bool = False  # the next segment sees to it
    summed: tf.Tensor | None = None  # the value for readers, so that their gradients meet in one place

    def needs_rounding(self) -> bool:
        """Return whether the layer whose result the tensor is rounds the gradient."""
        return self.readers + self.arrives_half != 1 or not self.fp16

    def sum_needs_rounding(self) -> bool:
        """Return whether the sum of several readers' gradients is rounded."""
        return self.readers > 1 and not self.rounded

    def summand_needs_rounding(self) -> bool:
        """Return whether a gradient is rounded where a reader hands it back."""
        return self.readers > 1 or not self.rounded


class RoundedLayers(OperandLayers):
    """The vocabulary on FP32 tensors [batch, height, width, channels] whose values are FP16's."""

    def __init__(self, weights: dict[str, tf.Tensor], *, rounding: Rounding, **context: Any) -> None:
        """`rounding`: of results and gradients; `weights` and `context`: what OperandLayers take."""
        super().__init__(weights, **context)
        self._rounding = rounding
        self._gradients: dict[str, _Gradient] = {}  # by the name of the tensor that they belong to
        self._parameters: set[str] = set()  # names of tensors that are made of weights alone

    def _result(self, x: tf.Tensor) -> tf.Tensor:
        gradient = _Gradient(self._segment, rounded=True)
        y = grid.value_and_gradient_rounded(
            x, self._rounding, self._noise(x.shape.rank), needs_rounding=gradient.needs_rounding
        )
        self._gradients[y.name] = gradient
        return y

    def _noise(self, rank: int = 4) -> tuple[tf.Tensor, ...]:
        """Return the bits that decide the rounding of the next result, as `_noise_for`."""
        return self._noise_for(self._rounding, rank)

    def _rounded_by_layer(self, y: tf.Tensor) -> tf.Tensor:
        """Return the output of a layer that rounds that, and the gradient which arrives there, by itself."""
        self._gradients[y.name] = _Gradient(self._segment, rounded=True)
        return y

    def _read(self, x: tf.Tensor, *, fp16_gradient: bool = False) -> tf.Tensor:
        """Return a layer's input, whose gradient is rounded on its way back.

        Where x comes from the segment before, nothing is known of who made it: segments may be differentiated apart, and
        the bits must not depend on that."""
        if not self._training or x.name in self._parameters:
            return x
        gradient = self._gradients.get(x.name)
        if gradient is None or gradient.segment != self._segment:
            if gradient is not None:
                gradient.arrives_half = True
            gradient = self._gradients[x.name] = _Gradient(self._segment, rounded=False)
        if gradient.summed is None:
            noise = self._noise(x.shape.rank)
            gradient.summed = grid.gradient_rounded(x, self._rounding, noise, needs_rounding=gradient.sum_needs_rounding)
        gradient.readers += 1
        gradient.fp16 &= fp16_gradient
        if fp16_gradient:
            return gradient.summed
        return grid.gradient_rounded(
            gradient.summed,
            self._rounding,
            self._noise(x.shape.rank),
            needs_rounding=gradient.summand_needs_rounding,
        )

    def _same(self, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
        if old.name in self._gradients:
            self._gradients[new.name] = self._gradients[old.name]
        return new

    def _group_norm(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, policy: GroupNorm, activation: str) -> tf.Tensor:
        x = self._read(x, fp16_gradient=True)
        return self._rounded_by_layer(
            group_norm.group_norm(x, gamma, beta, policy, activation, self._rounding, self._noise())
        )

    def _batch_norm(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, policy: BatchNorm, activation: str) -> tf.Tensor:
        if self._training and not self._sync_mean and library.load_for(x):
            batch = self._read(x, fp16_gradient=True), gamma, beta, self._norm_parts, policy.epsilon
            normed = batch_norm.by_kernels(*batch, activation, self._rounding, self._noise())
            return self._rounded_by_layer(self._with_statistics(normed))
        y = super()._batch_norm(x, gamma, beta, policy, LINEAR)
        if activation == LINEAR:
            return self._result(y)
        return self._rounded_by_layer(activations.rounded_activation(y, activation, self._rounding, self._noise()))

    def _proxy_norm(
        self, x: tf.Tensor, rows: group_norm.Rows, policy: GroupNorm, activation: str, scaled: bool
    ) -> tf.Tensor:
        x, rounding = self._read(x, fp16_gradient=True), self._rounding
        # not _rounded_by_layer: FP32 sums are made of what arrives, so that it must be half before
        return group_norm.proxy_norm(x, rows, policy, activation, scaled=scaled, rounding=rounding, noise=self._noise())

    def proxy_norm_activation(
        self, x: tf.Tensor, policy: GroupNorm, rule: ProxyRule, *, scaled: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        y, factor = super().proxy_norm_activation(x, policy, rule, scaled=scaled)
        self._parameters.add(factor.name)
        return y, factor

    def swish(self, x: tf.Tensor) -> tf.Tensor:
        return self._rounded_by_layer(activations.swish(self._read(x, fp16_gradient=True), self._rounding, self._noise()))

    def gate(self, x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return self._result(self._read(x) * self._read(factor))

    def global_mean(self, x: tf.Tensor) -> tf.Tensor:
        return self._result(grid.pixel_mean(self._read(x, fp16_gradient=True), self._rounding, self._noise()))
