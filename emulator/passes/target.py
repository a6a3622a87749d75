"""The target of the passes: what a network is used for, and the operations that are available there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from emulator.network.network import Node
from Models._norms import BatchNorm


@dataclass(frozen=True, kw_only=True)
class Target:
    """The use of a network, and the device that computes it."""

    training: bool = True
    native: Collection[str] = frozenset()  # the names of native operations, none if the device or the dtype has none.
    lanes: int = 16  # a vector of these operations has this many FP32 numbers.
    group_gradients: bool = False  # TensorFlow computes the gradients of grouped convolutions there.
    synced: bool = False  # several processes share the statistics of batch norm.
    frozen: Collection[str] = frozenset()  # moving statistics that their norms use in training, too.

    @property
    def is_wide(self) -> bool:
        """True if vectors have 16 numbers. With narrower vectors, oneDNN computes some convolutions faster than the native
        operations (benchmarks/NOTES.md)."""
        return self.lanes >= 16

    def uses_batch_statistics(self, node: Node) -> bool:
        """Return whether a norm is a batch norm with statistics of the batch, not moving statistics."""
        return isinstance(node.norm, BatchNorm) and self.training and node.variable("moving_mean") not in self.frozen
