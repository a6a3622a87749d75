"""List the tensors in the checkpoints of a training run, with shape and number format. Does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cnn_harness.emulator.plan.number_formats import FP32, Format
from cnn_harness.emulator.plan.precision import Precision
from cnn_harness.Models._layers import Variable

STEP = "global_step"  # global_step counts the weight updates.
STEP_SHAPE = (1,)  # tensors are never scalars, because readers of checkpoints iterate over the values.
FP32_COPY = "fp32"  # the slot fp32 holds the FP32 copy of a weight.
EMA = "ema"  # the slot ema holds the exponential moving average of a variable, in FP32.
LOSS_SCALE = "loss_scaling"  # has the loss scale, the number of updates since its last change, and of skipped updates.

# With --format-scaling maximum, format_scaling [layers, 2] holds the largest activation and the largest gradient of each
# layer.
AMAX_HISTORY = "format_scaling"


class CheckpointTensor(NamedTuple):
    """The shape of a tensor, the number format whose range its values must fit, and the option that sets this format."""

    shape: tuple[int, ...]
    format: Format = FP32
    option: str = "--precision"


def model(variables: Iterable[Variable], precision: Precision) -> dict[str, CheckpointTensor]:
    """Return the tensors of the network by name. `format` is the narrower of the stored format and the format in which the
    layers compute."""
    kernels = precision.scaled_kernels
    tensors = {AMAX_HISTORY: CheckpointTensor((len(kernels), 2))} if kernels else {}
    for v in variables:
        formats = precision.stored_format(v), precision.weight_format(v) if v.trainable else FP32
        tensors[v.name] = CheckpointTensor(v.shape, min(formats, key=lambda each: each.largest))
    return tensors


def slots(
    variables: Iterable[Variable], precision: Precision, names: Iterable[str], trained: Callable[[str], bool]
) -> dict[str, CheckpointTensor]:
    """Return the slots of every variable that updates change, by full name. `names` lists the slots of the update rule."""
    names = list(names)
    return {
        f"{v.name}/{slot}": CheckpointTensor(v.shape, precision.slot_format(v), "--slot-format")
        for v in variables
        if v.trainable and trained(v.name)
        for slot in names + [FP32_COPY] * precision.has_fp32_copy(v)
    }
