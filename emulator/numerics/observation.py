"""An observation of a network's numbers: for each layer and kind of tensor a histogram of exponents, and what is lost in the
format that the tensor comes into. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from emulator.plan.number_formats import Format

FIRST_EXPONENT, EXPONENTS = -64, 128  # of the histogram's bins: numbers further out count in the outermost
KINDS = ("weights", "activations", "gradients")


class Losses(NamedTuple):
    """Shares of a tensor's numbers: exactly 0; not 0, but 0 in the format; beyond what the format has. `error`: the sum of
    what rounding takes away or adds, by the sum of the sizes."""

    zero: float
    under: float
    over: float
    error: float


@dataclass(frozen=True)
class ObservedTensor:
    """The numbers of a layer's tensor of one kind. `exponents`: the count of numbers in [2^e, 2^(e+1)) by e. `follows`: the
    losses are those of the format as it lies, moved by --format-scaling; not in records."""

    layer: str
    kind: str
    format: Format
    losses: Losses
    exponents: Mapping[int, int]
    follows: bool = False

    def as_record(self) -> dict[str, Any]:
        """The tensor as JSON has it."""
        losses = {name: float(f"{share:.6g}") for name, share in self.losses._asdict().items()}
        counts = {str(e): count for e, count in self.exponents.items()}
        return {"layer": self.layer, "kind": self.kind, "format": self.format.name, **losses, "exponents": counts}


@dataclass(frozen=True)
class Observation:
    """All tensors, in the order of the network, with the weights after `updates`; `scale`: of the loss."""

    updates: int
    scale: float
    tensors: tuple[ObservedTensor, ...]
