"""An observation of a network's numbers, without TensorFlow: for each layer and kind of tensor, a histogram of exponents,
and what is lost in the tensor's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from emulator.plan.number_formats import Format

FIRST_EXPONENT, EXPONENTS = -64, 128  # range of the histogram; numbers outside count in the first or last bin
KINDS = ("weights", "activations", "gradients")


class Losses(NamedTuple):
    """Fractions of a tensor's numbers: `zero`, exactly 0; `under`, rounded to 0; `over`, beyond the format's range. `error`:
    the sum of absolute rounding errors, divided by the sum of absolute values."""

    zero: float
    under: float
    over: float
    error: float


@dataclass(frozen=True)
class ObservedTensor:
    """The numbers of one kind of tensor in a layer.

    `exponents`: number of values in [2^e, 2^(e+1)), by e. `follows`: --format-scaling shifts the format, and `losses` are
    those of the shifted format; not part of records.
    """

    layer: str
    kind: str
    format: Format
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
    """All tensors, in the order of the network, with the weights after `updates`. `scale`: the loss scale."""

    updates: int
    scale: float
    tensors: tuple[ObservedTensor, ...]
