"""The target of the passes: what a network is used for, and the operations that are available there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cnn_harness.emulator.network.network import Node
from cnn_harness.Models._norms import BatchNorm


@dataclass(frozen=True, kw_only=True)
class Target:
    """The use of a network, and the device that computes it."""

    training: bool = True
    native: Collection[str] = frozenset()  # the names of native operations, none if the device or the dtype has none.
    is_wide: bool = True  # they have vectors of 16 numbers. With narrower ones, oneDNN is sometimes faster.
    has_units: bool = False  # they can multiply FP16 numbers in matrix units.
    group_gradients: bool = False  # TensorFlow computes the gradients of grouped convolutions there.
    synced: bool = False  # several processes share the statistics of batch norm.
    frozen: Collection[str] = frozenset()  # moving statistics that their norms use in training, too.

    def uses_batch_statistics(self, node: Node) -> bool:
        """Return whether a norm is a batch norm with statistics of the batch, not moving statistics."""
        return isinstance(node.norm, BatchNorm) and self.training and node.variable("moving_mean") not in self.frozen
