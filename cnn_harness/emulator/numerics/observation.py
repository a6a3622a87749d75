"""An observation of a network's numbers: for each layer and kind of tensor, a histogram of exponents and the losses in the
tensor's format. This module does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cnn_harness.emulator.plan.precision import OperandFormat

FIRST_EXPONENT, EXPONENTS = -64, 128  # exponents outside this range count in the first or last bin.
KINDS = ("weights", "activations", "gradients")


class Losses(NamedTuple):
    """The fractions of a tensor's numbers that are exactly 0 (`zero`), that the format rounds to 0 (`under`), and that
    exceed its range (`over`). `error` is the sum of absolute rounding errors, divided by the sum of absolute values."""

    zero: float
    under: float
    over: float
    error: float


@dataclass(frozen=True)
class ObservedTensor:
    """The numbers of one kind of tensor in a layer.

    `exponents` has the number of values in [2^e, 2^(e+1)) by e. `follows` means that the range of the format follows the
    tensor, by --format-scaling or by scales of blocks; records leave it out.
    """

    layer: str
    kind: str
    format: OperandFormat
    losses: Losses
    exponents: Mapping[int, int]
    follows: bool = False

    def as_record(self) -> dict[str, Any]:
        """Return the tensor as a dict for JSON."""
        losses = {name: float(f"{share:.6g}") for name, share in self.losses._asdict().items()}
        counts = {str(e): count for e, count in self.exponents.items()}
        return {"layer": self.layer, "kind": self.kind, "format": self.format.name, **losses, "exponents": counts}


@dataclass(frozen=True)
class Observation:
    """The numbers of all tensors in the order of the network, with the weights after `updates`. `scale` is the loss
    scale."""

    updates: int
    scale: float
    tensors: tuple[ObservedTensor, ...]
