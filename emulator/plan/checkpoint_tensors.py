"""The tensors of a training's checkpoints, by name: shape and number format. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from emulator.plan.number_formats import FP32, Format
from emulator.plan.precision import Precision
from Models._layers import Variable

STEP = "global_step"  # the variable that counts updates
STEP_SHAPE = (1,)  # no tensor is a scalar: readers of checkpoints iterate over values
FP32_COPY = "fp32"  # the slot
EMA = "ema"  # of a variable that updates move: its exponential average, in FP32
LOSS_SCALE = "loss_scaling"  # of automatic loss scaling: the scale, updates since it was changed, updates that were skipped

AMAX_HISTORY = "format_scaling"  # of --format-scaling maximum: largest activation and gradient of each product [layers, 2]


class CheckpointTensor(NamedTuple):
    """`format`: a value that overflows it is of no use; `option` chooses it."""

    shape: tuple[int, ...]
    format: Format = FP32
    option: str = "--precision"


def model(variables: Iterable[Variable], precision: Precision) -> dict[str, CheckpointTensor]:
    """The network's own; layers compute with narrow weights, however finely those are stored."""
    kernels = precision.scaled_kernels
    tensors = {AMAX_HISTORY: CheckpointTensor((len(kernels), 2))} if kernels else {}
    for v in variables:
        formats = precision.stored_format(v), precision.weight_format(v) if v.trainable else FP32
        tensors[v.name] = CheckpointTensor(v.shape, min(formats, key=lambda each: each.largest))
    return tensors


def slots(
    variables: Iterable[Variable], precision: Precision, names: Iterable[str], trained: Callable[[str], bool]
) -> dict[str, CheckpointTensor]:
    """Return the slots of every variable that an update moves, by full name; `names`: the slots of its rule."""
    names = list(names)
    return {
        f"{v.name}/{slot}": CheckpointTensor(v.shape, precision.slot_format(v), "--slot-format")
        for v in variables
        if v.trainable and trained(v.name)
        for slot in names + [FP32_COPY] * precision.has_fp32_copy(v)
    }
