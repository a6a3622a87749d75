"""Compare the rate of each convolution and dense layer with its roof (Williams, Waterman and Patterson 2009).

The roof is the lower of two rates: that of the fastest kernel for the layer's channels, and the intensity (floating-point
operations per byte) times the rate of the exchange. The bytes are those that tiles exchange: the input, output and weights
of the block of the product that each tile computes. Times are those of the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cnn_harness.emulator.cost_model.kernels import Product
from cnn_harness.emulator.cost_model.prediction import Prediction
from cnn_harness.emulator.cost_model.supersteps import Phases
from cnn_harness.emulator.network.network import PRODUCTS, Node, operation


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The forward product of a layer for one micro-batch on one IPU.

    `peak` is the rate of the kernel and `bandwidth` that of the exchange, of all tiles that compute, in FLOP/s and bytes/s.
    `element` is the number of bytes of a value.
    """

    node: Node
    stage: int
    product: Product
    element: int
    flops: int
    peak: float
    bandwidth: float
    seconds: Phases

    @property
    def channels_per_group(self) -> int:
        """The input channels that an output channel reads: G of G1 and G16."""
        return (self.node.source.elements if self.node.op == "dense" else self.node.source.channels) // self.node.groups

    @property
    def intensity(self) -> float:
        """The FLOPs for each exchanged byte."""
        return 2 * self.product.multiply_adds / (self.product.moved * self.element)

    @property
    def bytes(self) -> float:
        """The exchanged bytes of all blocks."""
        return self.flops / self.intensity

    @property
    def roof(self) -> float:
        """The largest possible FLOP/s."""
        return min(self.peak, self.intensity * self.bandwidth)

    @property
    def rate(self) -> float:
        """The FLOP/s in the predicted time."""
        return self.flops / sum(self.seconds)

    def values(self) -> dict[str, Any]:
        """Return the values for JSON, in FLOPs, bytes and seconds."""
        return {
            "layer": self.node.path,
            "operation": operation(self.node),
            "stage": self.stage,
            "channels_per_group": self.channels_per_group,
            "flops": self.flops,
            "bytes": self.bytes,
            "intensity": self.intensity,
            "roof": self.roof,
            "rate": self.rate,
            "seconds": self.seconds._asdict(),
        }


def layers(prediction: Prediction) -> Iterator[Layer]:
    """Yield the convolutions and dense layers of a plan."""
    workload, timing = prediction.workload, prediction.timing
    kernels = timing.costs.kernels
    per_cycle = kernels.tiles * prediction.system.device.clock
    for stage in range(len(workload.plan.stages)):
        for node in workload.operations(stage):
            if node.op in PRODUCTS:
                product = kernels.product(node)
                cycles = timing.costs.cycles(kernels.forward(node), workload.proportion(stage))
                yield Layer(
                    node=node, stage=stage, product=product, element=kernels.bytes_per_element,
                    flops=2 * node.multiply_adds * kernels.batch, peak=2 * product.rate * per_cycle,
                    bandwidth=kernels.device.exchange * per_cycle, seconds=Phases.of(timing.cell(cycles)),
                )  # fmt: skip
