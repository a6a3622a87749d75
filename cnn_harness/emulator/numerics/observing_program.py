"""A separate program that observes a network. The program runs one FP32 pass, forward and backward, over the same images
every time, with the current weights. Observing changes no result of the training run.

The program observes numbers before they are rounded: weights, the activations that convolutions and matrix products
multiply, and the incoming gradients of these layers, times the loss scale. If --format-scaling scales a tensor, the program
uses the scale of the next update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base.draws import Seed
from cnn_harness.base.gradient_rules import gradients
from cnn_harness.emulator.layers.block_formats import Along, BlockRounding
from cnn_harness.emulator.layers.rounding import Rounding, range_factor
from cnn_harness.emulator.lowering.lists import passes
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.numerics.observation import EXPONENTS, FIRST_EXPONENT, KINDS, Losses, Observation, ObservedTensor
from cnn_harness.emulator.passes.checks import observed as with_looks
from cnn_harness.emulator.passes.target import Target
from cnn_harness.emulator.plan.checkpoint_tensors import AMAX_HISTORY
from cnn_harness.emulator.plan.number_formats import FP32, BlockFormat, Format
from cnn_harness.emulator.plan.precision import SINGLE, OperandFormat, Precision, is_kernel, layer_of
from cnn_harness.emulator.program.forward_backward import Features
from cnn_harness.emulator.program.runtime import NextFeatures, Program, ProgramGraph, Stream
from cnn_harness.emulator.program.variables import ProgramVariables

_BIAS, _FRACTION = 127, 23  # FP32's


@dataclass(frozen=True, kw_only=True)
class ObservationSpec:
    """A network, its loss as a function from (logits, features) to [batch], and the precision whose formats are evaluated.

    `micro_batches` is the number of micro-batches in a pass. The batch has `norm_parts` equal parts with separate batch-norm
    statistics. Norms whose statistics `frozen` names use moving statistics.
    """

    network: Network
    loss: Callable[[tf.Tensor, Features], tf.Tensor]
    precision: Precision
    micro_batches: int = 1
    norm_parts: int = 1
    frozen: frozenset[str] = frozenset()


class _Operand(NamedTuple):
    """The format to which a tensor is rounded. If --format-scaling or block scales move its range, `arriving` is the format
    that the tensor had before. Blocks run as in the forward product, and for gradients as in that of the input's gradient.
    """

    format: OperandFormat
    along: Along
    arriving: Format | None = None


class ObservingProgram(Program):
    """A compiled program that observes a network."""

    def __init__(self, observed: ObservationSpec, stream: Stream, seed: int) -> None:
        """`stream` is the source of images. The program uses the images of the first pass only."""

        def write(seed: Seed, features: NextFeatures) -> ProgramGraph:
            return _write(observed, seed, features)

        super().__init__(write, stream, ("/cpu:0",), seed)
        self._kernels = tuple(self._metadata["kernels"])
        self._operands = tuple(_operands(observed, name) for name in self._kernels)

    def observe(self, values: Mapping[str, np.ndarray], updates: int, scale: float) -> Observation:
        """Return the observation with these weights. Names are the same as in checkpoints."""
        self.state.assign(self.session, values, self.state.model)
        self.session.run(self._rewind)
        fed = dict(zip(self._names["fed"], [np.float32(scale)]))
        counts, losses = self.session.run([*self._names["counts"], *self._names["losses"]], fed)
        tensors = [
            ObservedTensor(
                layer_of(name),
                kind,
                operand.format,
                Losses(*map(float, losses[n, k])),
                _sparse(counts[n, k]),
                follows=operand.arriving is not None,
            )
            for n, name in enumerate(self._kernels)
            for k, (kind, operand) in enumerate(zip(KINDS, self._operands[n]))
        ]
        return Observation(updates, scale, tuple(tensors))


def _write(observed: ObservationSpec, seed: Seed, features: NextFeatures) -> ProgramGraph:
    scaled = observed.precision.scaled_kernels
    weights = ProgramVariables(observed.network.variables, 0, {}, precision=replace(SINGLE, scaled_kernels=scaled))
    scale = tf.placeholder(tf.float32, [], "loss_scale")
    values = weights.read()
    batch = features(tf.constant(0, tf.int64), tf.constant(0))
    policy = PrecisionPolicy(SINGLE, seed)
    target = policy.target("/cpu:0", frozen=observed.frozen)
    lowering = policy.lowering(values, target, positions=batch["position"], norm_parts=observed.norm_parts)
    logits = lowering.run(_with_looks(observed.network, target), tf.cast(batch["image"], tf.float32))
    loss = tf.reduce_mean(observed.loss(logits, batch)) * observed.micro_batches * scale
    kernels = [name for name in values if is_kernel(name)]
    gradients(loss, [values[name] for name in kernels])
    rows = []
    for name in kernels:
        tensors = values[name], *lowering.observed[name]
        so_far = tf.unstack(values[AMAX_HISTORY][scaled.index(name)]) if scaled else (None, None)
        largest = tf.reduce_max(tf.abs(values[name])), *so_far
        rows.append([_measured(x, operand, most) for x, operand, most in zip(tensors, _operands(observed, name), largest)])
    counts = tf.stack([tf.stack([count for count, _ in row]) for row in rows])
    losses = tf.stack([tf.stack([lost for _, lost in row]) for row in rows])
    names = {"fed": [scale], "counts": [counts], "losses": [losses], "initialise": [tf.global_variables_initializer()]}
    return ProgramGraph.of(names, {"kernels": kernels}, weights)


def _with_looks(network: Network, target: Target) -> Network:
    """Return the network in FP32, prepared, with looks at what each product multiplies."""
    steps = passes(SINGLE, target)
    for each in (steps["normal-form"], with_looks, steps["fuse"], steps["kernels"]):
        network = each(network)
    return network


def _operands(observed: ObservationSpec, kernel: str) -> tuple[_Operand, ...]:
    """Return for each kind of tensor in a layer the narrowest format to which it is rounded."""
    precision = observed.precision
    node = next(node for node in observed.network.nodes if node.variable("kernel") == kernel)
    stored = next(precision.stored_format(variable) for variable in node.variables if variable.name == kernel)
    weight, *others = precision.operands_of(kernel)
    narrowest = (precision.compute if each.contains(precision.compute) else each for each in others)
    channels = Along(-1, node.groups)
    places = (weight, stored, Along(-2)), *((each, precision.compute, channels) for each in narrowest)
    return tuple(
        _Operand(own, along, arriving if isinstance(own, BlockFormat) or precision.follows(own, arriving) else None)
        for own, arriving, along in places
    )


def _measured(x: tf.Tensor, operand: _Operand, largest: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the histogram, int32 [EXPONENTS], and the losses, float32 [4]. If the tensor is scaled, `largest` (float32 [])
    determines the scale."""
    rounded, overflow = _rounded(x, operand, largest)
    x, rounded = tf.reshape(x, [-1]), tf.reshape(rounded, [-1])
    size, bits = tf.abs(x), tf.bitcast(x, tf.int32)
    exponent = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, _FRACTION), 255) - _BIAS
    bins = tf.clip_by_value(exponent - FIRST_EXPONENT, 0, EXPONENTS - 1)
    is_zero = tf.equal(x, 0.0)
    counts = tf.math.bincount(tf.boolean_mask(bins, tf.logical_not(is_zero)), minlength=EXPONENTS, maxlength=EXPONENTS)
    over = tf.logical_not(size < overflow)
    under = tf.logical_and(tf.equal(rounded, 0.0), tf.logical_not(is_zero))
    error = tf.reduce_sum(tf.abs(rounded - x)) / tf.maximum(tf.reduce_sum(size), 1e-30)
    shares = [tf.reduce_mean(tf.cast(each, tf.float32)) for each in (is_zero, under, over)]
    return counts, tf.stack([*shares, error])


def _rounded(x: tf.Tensor, operand: _Operand, largest: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor | float]:
    """Return x rounded, and the smallest number that overflows."""
    if operand.arriving is None:
        return _nearest(x, operand.format), operand.format.overflow
    x = _nearest(x, operand.arriving)
    if isinstance(operand.format, BlockFormat):
        return BlockRounding(operand.format).rounded(x, operand.along), operand.arriving.overflow
    factor = range_factor(largest, operand.format)
    overflow = tf.minimum(operand.format.overflow / factor, operand.arriving.overflow)
    return _nearest(x * factor, operand.format) / factor, overflow


def _nearest(x: tf.Tensor, number_format: Format) -> tf.Tensor:
    """Return x rounded to a format. An overflow becomes the largest number."""
    return x if number_format == FP32 else Rounding(saturate=True, format=number_format).without_gradient(x)


def _sparse(counts: np.ndarray) -> dict[int, int]:
    return {FIRST_EXPONENT + int(k): int(counts[k]) for k in np.flatnonzero(counts)}
