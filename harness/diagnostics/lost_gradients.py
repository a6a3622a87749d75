"""Log lines on gradients that narrow formats lost since the last log line."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

MUCH = 0.1  # of a layer's gradients: less than that is lost in runs that learn as well as in FP32


class LostGradients:
    """Collects the shares that were lost in each update, and says when there is something to say: the first time, and when
    it has become twice as bad."""

    def __init__(self, layers: Mapping[str, str], loss_scaling: float) -> None:
        """`layers`: in the order of the forward pass, with the name of the format that gradients come into there."""
        self._layers, self._formats = list(layers), list(layers.values())
        self._scale = loss_scaling
        self._sum = np.zeros([len(layers), 2])
        self._updates = 0
        self._said = {"underflow": MUCH / 2, "overflow": 0.0}
        self.overflown = False  # whether gradients have

    def add(self, first: int, lost: np.ndarray) -> None:
        """Count shares [updates, layers, 2] of the updates from `first` on. The run's very first one does not count: where a
        scale begins at zero, all gradients below it are 0 then."""
        counted = lost[1:] if first == 0 else lost
        self._sum += counted.sum(0, dtype=np.float64)
        self._updates += len(counted)
        self.overflown |= bool(lost[..., 1].any())

    @property
    def watched(self) -> bool:
        """Return whether any gradient comes into a narrow format."""
        return bool(self._layers)

    @property
    def smaller_scale(self) -> str:
        """The advice where gradients overflow."""
        return _remedy("smaller", self._scale)

    def notes(self) -> list[str]:
        """Lines for the log; the next ones are of the updates to come."""
        if not self._updates or not self._layers:
            return []
        under, over = (self._sum / self._updates).T
        self._sum[:], self._updates = 0, 0
        lines = []
        if under.max() >= 2 * self._said["underflow"]:
            self._said["underflow"] = under.max()
            lines.append(self._note("underflow", "0 in", int(under.argmax()), under, MUCH, "larger"))
        if over.max() > 2 * self._said["overflow"]:
            self._said["overflow"] = over.max()
            # the backward pass begins at the end, so that is where it began
            lines.append(self._note("overflow", "beyond", int(np.flatnonzero(over)[-1]), over, 0.0, "smaller"))
        return lines

    def _note(self, what: str, as_what: str, layer: int, shares: np.ndarray, above: float, scale: str) -> str:
        others = int((shares > above).sum()) - 1
        also = f", and at {others} other layer{'s' * (others > 1)}" if others > 0 else ""
        where = self._layers[layer]
        return (
            f"gradients {what}: {100 * shares[layer]:.3g} % of those that arrive at {where} are {as_what} "
            f"{self._formats[layer]}{also}"
            f"; {_remedy(scale, self._scale)}"
        )


def _remedy(change: str, scale: float) -> str:
    return f"a {change} --loss-scaling than {scale:g} may help"
