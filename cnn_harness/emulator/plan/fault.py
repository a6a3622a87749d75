"""A silent fault that is injected on purpose: one flipped bit (--inject). This module does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import whole_number
from cnn_harness.emulator.plan.precision import is_kernel
from cnn_harness.Models._layers import Variable

WEIGHT, GRADIENT, ACTIVATION, MESSAGE = KINDS = ("weight", "gradient", "activation", "message")
HIGHEST_EXPONENT_BIT = 30  # of an FP32 number; bit 31 is the sign, and bits 0 to 22 are the mantissa.


@dataclass(frozen=True)
class Fault:
    """A flip of one bit in the middle element of a tensor in update `update`, which counts from 1, in instance 0.

    `variable` is the kernel of a layer. The tensor is

    * WEIGHT: the kernel that the update stores
    * GRADIENT: the kernel's gradient in the update's first pass
    * ACTIVATION: the product of the layer, before bias and norm, in the first pass; with recomputation, only the first time
    * MESSAGE: the kernel's gradient that the instance sends to the others
    """

    kind: str
    variable: str
    update: int
    bit: int = HIGHEST_EXPONENT_BIT


def parse(text: str, variables: Sequence[Variable]) -> Fault:
    """Return the fault that KIND:LAYER:UPDATE[:BIT] describes. Raise OptionError if there is no such fault."""
    kind, *words = text.split(":")
    kernels = {v.name: v.name.removeprefix("all/") for v in variables if v.trainable and is_kernel(v.name)}
    try:
        layer, *numbers = words
        update, bit = [*map(whole_number, numbers), HIGHEST_EXPONENT_BIT][:2]
        if kind not in KINDS or update < 1 or not 0 <= bit < 32 or len(numbers) > 2:
            raise ValueError
    except ValueError:
        raise OptionError(
            f"--inject {text} must be KIND:LAYER:UPDATE or KIND:LAYER:UPDATE:BIT, with a KIND of {', '.join(KINDS)}, an "
            "UPDATE from 1 on and a BIT from 0 to 31"
        ) from None
    found = [name for name, path in kernels.items() if path.startswith(f"{layer.removeprefix('all/')}/")]
    if len(found) != 1:
        raise OptionError(f"--inject {text}: {layer} must name one trained layer with a kernel; --summary prints the layers")
    return Fault(kind, found[0], update, bit)
