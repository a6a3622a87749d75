"""The tensors in a training's checkpoints: name, shape and number format. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from emulator.plan.number_formats import FP32, Format
from emulator.plan.precision import Precision
from Models._layers import Variable

STEP = "global_step"  # the variable that counts updates.
STEP_SHAPE = (1,)  # tensors are never scalars, because readers of checkpoints iterate over the values.
FP32_COPY = "fp32"  # slot of a weight's FP32 copy
EMA = "ema"  # slot of a variable's exponential moving average, in FP32
LOSS_SCALE = "loss_scaling"  # state of automatic loss scaling: scale, updates since its last change, skipped updates

# state of --format-scaling maximum: largest activation and gradient of each product, [layers, 2]
AMAX_HISTORY = "format_scaling"


class CheckpointTensor(NamedTuple):
    """A tensor's shape, the format whose range its values must fit, and the option that chooses the format."""

    shape: tuple[int, ...]
    format: Format = FP32
    option: str = "--precision"


def model(variables: Iterable[Variable], precision: Precision) -> dict[str, CheckpointTensor]:
    """Return the network's own tensors. If the layers compute with a narrower format than the stored one, `format` is the
    narrower."""
    kernels = precision.scaled_kernels
    tensors = {AMAX_HISTORY: CheckpointTensor((len(kernels), 2))} if kernels else {}
    for v in variables:
        formats = precision.stored_format(v), precision.weight_format(v) if v.trainable else FP32
        tensors[v.name] = CheckpointTensor(v.shape, min(formats, key=lambda each: each.largest))
    return tensors


def slots(
    variables: Iterable[Variable], precision: Precision, names: Iterable[str], trained: Callable[[str], bool]
) -> dict[str, CheckpointTensor]:
    """Return the slots of every variable that an update changes, by full name. `names`: the slots of the update rule."""
    names = list(names)
    return {
        f"{v.name}/{slot}": CheckpointTensor(v.shape, precision.slot_format(v), "--slot-format")
        for v in variables
        if v.trainable and trained(v.name)
        for slot in names + [FP32_COPY] * precision.has_fp32_copy(v)
    }
