"""A precision in TensorFlow: the vocabulary that layers are built from, the dtypes of variables, and how each kind of value
comes into its format. The formats' table is in `emulator.plan.precision`, FP16's grid in `emulator.layers.half`, which
`emulator.layers.watch` counts losses against.

Weights, gradients and sums of FP16 are FP32 tensors on its grid (`emulator.layers.half`); variables are stored in it.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from base import draws
from emulator.layers import half, proxy_norm
from emulator.layers.checks import CheckedHalfLayers, CheckedLayers, checked
from emulator.layers.half import Rounding
from emulator.layers.half_layers import HalfLayers
from emulator.layers.tensor_layers import TensorLayers
from emulator.plan.precision import ALL, EXCEPTIONS, FP16, FP32, OFF, Format, Precision
from Models._layers import Variable


class PrecisionPolicy:
    """`seed`: of the random roundings. `dtype`: of the arithmetic, and of variables in FP32."""

    def __init__(self, precision: Precision, seed: draws.Seed = 0, dtype: tf.DType = tf.float32) -> None:
        self.precision = precision
        self._seed, self._dtype = seed, dtype
        self._dtypes = {FP32: dtype, FP16: tf.half}
        for each in (precision.compute, precision.master, precision.accumulator):
            if each not in self._dtypes:
                raise ValueError(f"there is no arithmetic of {each.name} here; there is of FP16 and FP32")
        self._results_at_random = precision.stochastic == ALL

    def layers(self, weights: dict[str, tf.Tensor], **context: Any) -> TensorLayers:
        """The vocabulary, with or without checks, whose results and gradients are in the compute format."""
        if not self.precision.rounds_results:
            plain = CheckedLayers if self.precision.checks else TensorLayers
            return plain(weights, seed=self._seed, **context)
        half_layers = CheckedHalfLayers if self.precision.checks else HalfLayers
        return half_layers(weights, seed=self._seed, rounding=self._rounding(self._results_at_random), **context)

    def checked(self, x: tf.Tensor, where: str) -> tf.Tensor:
        """x; the first that is not finite ends the run, if that was asked for."""
        return checked(x, where) if self.precision.checks else x

    # Variables

    def stored_dtype(self, variable: Variable) -> tf.DType:
        """Return the dtype that a variable is stored in."""
        return self._dtypes[self.precision.stored_format(variable)]

    def slot_dtype(self, variable: Variable) -> tf.DType:
        """Return the dtype that a variable's slots are stored in."""
        return self._dtypes[self.precision.slot_format(variable)]

    def cast_weight(self, variable: Variable, value: tf.Tensor) -> tf.Tensor:
        """A stored value as the layers use it."""
        value, compute = tf.cast(value, self._dtype), self.precision.compute
        if not variable.trainable or self.precision.stored_format(variable) == compute:
            return value
        narrow = self._cast(value, compute)
        return proxy_norm.with_statistics_of(value, narrow) if variable.proxy else narrow

    def cast_update(self, variable: Variable, part: str, value: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """A new value, or a new slot of that name, in the master format; at random unless that is off."""
        stochastic = self.precision.stochastic != OFF
        return self._cast(value, self.precision.master_format(variable), stochastic, f"update/{variable.name}/{part}", step)

    # Passes forward and backward

    def cast_input(self, x: tf.Tensor) -> tf.Tensor:
        """Pictures, [batch, side, side, channels], as the layers take them."""
        return self._cast(tf.cast(x, self._dtype), self.precision.compute)

    def cast_loss_gradient(self, dy: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """The gradient that the loss hands back, [batch, classes]; it can be differentiated no further."""
        if not self.precision.rounds_results:
            return dy
        noise = self._noise(self._results_at_random, "rounding/loss", positions[:, None])
        return half.value_and_gradient_rounded(dy, self._rounding(self._results_at_random), noise)

    def cast_gradient(self, name: str, gradient: tf.Tensor, *counters: tf.Tensor) -> tf.Tensor:
        """The gradient of a variable that one pass gives, as its operation hands it on."""
        if not self.precision.rounds_results:
            return gradient
        narrow = self._cast(gradient, self.precision.compute, self._results_at_random, f"rounding/{name}", *counters)
        return self.checked(narrow, f"the gradient of {name}")

    def add_gradient(self, name: str, total: tf.Tensor, gradient: tf.Tensor, passes: int, *counters: tf.Tensor) -> tf.Tensor:
        """The sum over an update's passes so far. A narrow sum is of gradients divided by the number of passes, so that it
        does not overflow, and is rounded each time."""
        if self.precision.accumulator == FP32:
            return total + tf.cast(self.cast_gradient(name, gradient, *counters), total.dtype)
        noise = self._noise(self._results_at_random, f"rounding/{name}", *counters)
        total = half.added(total, gradient, passes, self._rounding(self._results_at_random), noise)
        return self.checked(total, f"the accumulated gradient of {name}")

    def mean_gradient(self, total: tf.Tensor, passes: int) -> tf.Tensor:
        """Return the mean gradient from what `add_gradient` has added up over so many passes."""
        return total / passes if self.precision.accumulator == FP32 else total

    def cast_instances_mean(self, name: str, mean: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """The mean of a gradient over the instances, in the format of sums."""
        return self._cast(mean, self.precision.accumulator, self._results_at_random, f"rounding/{name}/instances", step)

    def _cast(
        self, x: tf.Tensor, to: Format, stochastic: bool = False, purpose: str = "", *counters: tf.Tensor
    ) -> tf.Tensor:
        """x on the grid of a format; at random as a function of purpose and counters."""
        if to == FP32:
            return x
        if to != FP16:
            raise ValueError(f"there is no rounding to {to.name} here; there is to FP16")
        return half.on_grid(x, self._rounding(stochastic), self._noise(stochastic, purpose, *counters))

    def _rounding(self, stochastic: bool) -> Rounding:
        return Rounding(stochastic, self.precision.saturate_on_overflow, self.precision.checks == EXCEPTIONS)

    def _noise(self, stochastic: bool, purpose: str, *counters: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return (draws.bits(draws.key(self._seed, purpose), *counters),) if stochastic else ()
