"""Apply a precision in TensorFlow: choose roundings and dtypes, and cast weights and gradients to their formats.

Weights, gradients and sums of a narrow format are FP32 tensors whose values are numbers of the format. A variable is stored
as FP16, BF16 or FP32: in the narrowest of these that contains its format.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.util import _pywrap_util_port

from cnn_harness.base import draws
from cnn_harness.emulator.layers import proxy_norm
from cnn_harness.emulator.layers.block_formats import BlockOperands, BlockRounding
from cnn_harness.emulator.layers.rounding import Noise, Rounding, add_rounded, range_factor, storage_dtype, widened
from cnn_harness.emulator.layers.watch import check_finite
from cnn_harness.emulator.lowering.tensorflow import Lowering, OperandRoundings
from cnn_harness.emulator.native import library
from cnn_harness.emulator.passes.target import Target
from cnn_harness.emulator.plan.number_formats import FP32, BlockFormat, Format
from cnn_harness.emulator.plan.precision import ALL, EXCEPTIONS, OFF, Precision, is_kernel
from cnn_harness.Models._layers import Variable


class PrecisionPolicy:
    """Cast every value to the format that a `Precision` specifies. Arithmetic and FP32 variables have the dtype `dtype`."""

    widen = staticmethod(widened)

    def __init__(self, precision: Precision, seed: draws.Seed = 0, dtype: tf.DType = tf.float32) -> None:
        self.precision = precision
        self._seed, self._dtype = seed, dtype
        self._stochastic_results = precision.stochastic == ALL

    def target(self, device: str, **use: Any) -> Target:
        """Return the target of a network that a device computes. `use` has the other fields of the target."""
        on_gpu, single = "gpu" in device.lower(), self._dtype == tf.float32
        native = library.operations() if single and not on_gpu else frozenset()
        processor = {"is_wide": library.lanes() >= 16, "has_units": library.has_units()}
        return Target(native=native, group_gradients=single and _pywrap_util_port.IsMklEnabled(), **processor, **use)

    def lowering(self, weights: dict[str, tf.Tensor], target: Target, **context: Any) -> Lowering:
        """Return the lowering that rounds results, gradients and operands to their formats."""
        precision = self.precision
        return Lowering(
            weights=weights, target=target, seed=self._seed, operands=self._operands, stochastic=self._stochastic_results,
            rounding=self._rounding(precision.compute) if precision.rounds_results else None,
            product_dtype=tf.bfloat16 if precision.native_arithmetic else None, **context,
        )  # fmt: skip

    def _operands(self, kernel: str) -> OperandRoundings:
        """Return the roundings of the operands of the layer with this kernel."""
        kernels, formats = self.precision.scaled_kernels, self.precision.operands_of(kernel)
        is_block = [isinstance(each, BlockFormat) for each in formats]
        exact = [each.contains(self.precision.compute) for each in formats]
        _, activation, gradient = (
            None if same or blocks else self._rounding(each) for each, same, blocks in zip(formats, exact, is_block)
        )
        rotates = self.precision.hadamard and is_block[1] and is_block[2]
        in_blocks = (BlockRounding(each) if blocks else None for each, blocks in zip(formats, is_block))
        blocks = BlockOperands(*in_blocks, rotates) if formats.has_blocks else None
        return OperandRoundings(activation, gradient, kernels.index(kernel) if kernels else None, blocks)

    def check_finite(self, x: tf.Tensor, where: str) -> tf.Tensor:
        """Return x. If checks are on, a value that is not finite ends the run."""
        return check_finite(x, where) if self.precision.checks else x

    def _dtype_of(self, number_format: Format) -> tf.DType:
        return self._dtype if number_format == FP32 else storage_dtype(number_format, self._dtype)

    def cast_initial(self, number_format: Format, value: tf.Tensor) -> tf.Tensor:
        """Round an initial value to the nearest number of the variable's format."""
        return tf.cast(self._cast(tf.cast(value, self._dtype), number_format), self._dtype_of(number_format))

    def cast_weight(self, variable: Variable, value: tf.Tensor) -> tf.Tensor:
        """Cast a stored weight to the format that its layer uses."""
        value, used = tf.cast(value, self._dtype), self.precision.weight_format(variable)
        if not variable.trainable or used.contains(self.precision.stored_format(variable)):
            return value
        if isinstance(used, BlockFormat):
            return value  # each product rounds it in its own blocks.
        if self.precision.scaled_kernels and is_kernel(variable.name):
            factor = range_factor(tf.reduce_max(tf.abs(value)), used)
            return self._cast(value * factor, used) / factor
        narrow = self._cast(value, used)
        return proxy_norm.with_statistics_of(value, narrow) if variable.proxy else narrow

    def round_update(self, variable: Variable, slot: str | None, value: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Cast an updated weight, or a slot of it, to its storage format: stochastically, unless that is switched off."""
        to = self.precision.slot_format(variable) if slot else self.precision.master_format(variable)
        return self._cast(value, to, self.precision.stochastic != OFF, f"update/{variable.name}/{slot or 'value'}", step)

    def cast_for_all_reduce(self, gradient: tf.Tensor, all_reduce_format: Format) -> tf.Tensor:
        """Cast a gradient to the format of the all-reduce, rounding to nearest."""
        if all_reduce_format == FP32:
            return gradient
        return tf.cast(self._cast(gradient, all_reduce_format), storage_dtype(all_reduce_format))

    def cast_input(self, x: tf.Tensor) -> tf.Tensor:
        """Cast images [batch, side, side, channels] to the compute format and its dtype."""
        return tf.cast(self._cast(tf.cast(x, self._dtype), self.precision.compute), self._dtype_of(self.precision.compute))

    def cast_loss_gradient(self, dy: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Cast the gradient of the loss [batch, classes] to the compute format. The result has no gradient."""
        if not self.precision.rounds_results:
            return dy
        noise = self._noise(self._stochastic_results, "rounding/loss", positions[:, None])
        return self._rounding(self.precision.compute).value(dy, noise)

    def cast_gradient(self, name: str, gradient: tf.Tensor, *counters: tf.Tensor) -> tf.Tensor:
        """Cast the gradient of a variable in one pass to the compute format."""
        if not self.precision.rounds_results:
            return gradient
        narrow = self._cast(gradient, self.precision.compute, self._stochastic_results, f"rounding/{name}", *counters)
        return self.check_finite(narrow, f"the gradient of {name}")

    def accumulate_gradient(
        self, name: str, total: tf.Tensor, gradient: tf.Tensor, passes: int, *counters: tf.Tensor
    ) -> tf.Tensor:
        """Add the gradient of one pass to the sum over an update's passes. For a narrow accumulator, divide the gradient by
        the number of passes first, so that the sum does not overflow, and round every sum."""
        if self.precision.accumulator == FP32:
            return total + tf.cast(self.cast_gradient(name, gradient, *counters), total.dtype)
        noise = self._noise(self._stochastic_results, f"rounding/{name}", *counters)
        of_gradient = self._rounding(self.precision.compute) if self.precision.rounds_results else None
        of_sum = self._rounding(self.precision.accumulator)
        total = add_rounded(total, gradient, passes, of_gradient, of_sum, noise)
        return self.check_finite(total, f"the accumulated gradient of {name}")

    def mean_gradient(self, total: tf.Tensor, passes: int) -> tf.Tensor:
        """Return the mean gradient of an update, given the sum that `accumulate_gradient` made over `passes`."""
        return total / passes if self.precision.accumulator == FP32 else total

    def cast_averaged_gradient(self, name: str, mean: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Cast a gradient, averaged over the instances (processes), to the format of the accumulator."""
        return self._cast(mean, self.precision.accumulator, self._stochastic_results, f"rounding/{name}/instances", step)

    def _cast(
        self, x: tf.Tensor, to: Format, stochastic: bool = False, purpose: str = "", *counters: tf.Tensor
    ) -> tf.Tensor:
        """Round x to a format, to nearest or stochastically. `purpose` and `counters` determine the random numbers."""
        if to == FP32:
            return x
        return self._rounding(to).without_gradient(x, self._noise(stochastic, purpose, *counters))

    def _rounding(self, to: Format) -> Rounding:
        return Rounding(self.precision.saturate_on_overflow, self.precision.checks == EXCEPTIONS, to)

    def _noise(self, stochastic: bool, purpose: str, *counters: tf.Tensor) -> Noise:
        return (draws.bits(draws.key(self._seed, purpose), *counters),) if stochastic else ()
