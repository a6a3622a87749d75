"""The target of the passes: what a network is used for, and the operations that are available there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from emulator.network.network import Node
from Models._norms import BatchNorm


@dataclass(frozen=True, kw_only=True)
class Target:
    """The use of a network, and the device that computes it.

    * `native` has the names of the native operations, without any if the device or the dtype has none.
    * `lanes` is the number of FP32 numbers in a vector of these operations.
    * `group_gradients` means that TensorFlow computes the gradients of grouped convolutions there.
    * `synced` means that several processes share the statistics of batch norm.
    * `frozen` names moving statistics. Norms with these statistics use them in training too.
    """

    training: bool = True
    native: Collection[str] = frozenset()
    lanes: int = 16
    group_gradients: bool = False
    synced: bool = False
    frozen: Collection[str] = frozenset()

    def uses_batch_statistics(self, node: Node) -> bool:
        """Return whether a norm is a batch norm with statistics of the batch, not moving statistics."""
        return isinstance(node.norm, BatchNorm) and self.training and node.variable("moving_mean") not in self.frozen
