"""Which tensors a training keeps in its checkpoints, by name and shape. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from emulator.plan.precision import Precision
from Models._layers import Variable

STEP = "global_step"
FP32_COPY = "fp32"  # the slot


class Kept(NamedTuple):
    """A tensor of a checkpoint. `half`: a value beyond FP16's largest is of no use."""

    shape: tuple[int, ...]
    half: bool


def model(variables: Iterable[Variable], precision: Precision) -> dict[str, Kept]:
    """The network's own; with half precision layers compute with halves, however finely those are kept."""
    return {v.name: Kept(v.shape, halved(v, precision) or (precision.half and v.trainable)) for v in variables}


def slots(
    variables: Iterable[Variable], precision: Precision, names: Iterable[str], trained: Callable[[str], bool]
) -> dict[str, Kept]:
    """What an update keeps beside every variable that it moves; `names`: the slots of its rule."""
    found, names = {}, list(names)
    for v in variables:
        if v.trainable and trained(v.name):
            copied = halved(v, precision) and precision.fp32_copy
            half = halved(v, precision) and not copied
            found |= {f"{v.name}/{slot}": Kept(v.shape, half) for slot in names + [FP32_COPY] * copied}
    return found


def halved(variable: Variable, precision: Precision) -> bool:
    """Whether a weight is kept in half."""
    return precision.keeps_half(variable.name) and variable.trainable and not variable.proxy
