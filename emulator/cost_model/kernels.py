"""Count the cycles of one operation on the tiles of an IPU: for multiplication, exchange, memory access and launches.

A convolution is a product over (positions, input channels, output channels). Each tile computes one of equal blocks. The
blocks are as close to cubes as possible, because cubes need the least exchange. Kernels and their rates are from poplibs'
public sources. FP16 has three kinds of kernels:

* Matrix units take 16 input channels of a group and 16 output channels. With FP32 partial sums they are half as fast.
* SLIC kernels take groups of 1, 2 or 4 channels, and four elements of a kernel row at once.
* Vector kernels do four multiply-adds per cycle, for the weight gradients of depthwise convolutions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from emulator.cost_model.constants import Constants
from emulator.cost_model.systems import Ipu
from emulator.cost_model.workload import DEFAULT_PROPORTION, EXCHANGE_TARGETS, Workload
from emulator.plan.trace import Operation

MATRIX_CHANNELS = 16  # 16 channels of a group fill the matrix units.
SLIC_CHANNELS = (1, 2, 4)  # SLIC kernels need groups of 1, 2 or 4 channels.
VERTICAL_MACS = 4  # vector kernels do 4 multiply-adds per cycle in a tile.
PARTIALS_SHARE = 0.5  # matrix units are half as fast with FP32 partial sums.

# Each operation has four numbers: elements read and written for each element of the result, forward and backward, then
# compute sets launched, forward and backward.
_ACCESSES: dict[str, tuple[float, float, int, int]] = {
    "norm": (3, 5, 5, 6), "add": (3, 3, 1, 1), "gate": (2, 5, 2, 4), "concat": (2, 2, 2, 2), "max_pool": (3, 4, 2, 3),
    "global_mean": (1, 1, 2, 1), "subsample": (2, 2, 1, 1), "dropout": (2, 2, 1, 1), "drop_path": (2, 2, 1, 1),
}  # fmt: skip
_ELEMENTWISE = (2, 3, 1, 1)  # operations without a row in _ACCESSES have these numbers.
_FUNCTIONS = ("swish", "sigmoid")
_PROXY = (6, 9, 8, 10)  # proxy norm has a norm, an affine map, an activation and the subtraction of the mean.
# A convolution rearranges input and weights, multiplies and reduces. The backward pass also transposes the weights.
_CONV_LAUNCHES, _BACKWARD_LAUNCHES = 4, 5


@dataclass(frozen=True)
class Cycles:
    """The cycles of the slowest tile, by kind of work."""

    matrix: float = 0.0
    exchange: float = 0.0
    elements: float = 0.0
    launches: float = 0.0

    def __add__(self, other: Cycles) -> Cycles:
        return Cycles(
            self.matrix + other.matrix, self.exchange + other.exchange, self.elements + other.elements,
            self.launches + other.launches,
        )  # fmt: skip

    @property
    def total(self) -> float:
        """The sum of all cycles. Tiles never compute and exchange at the same time."""
        return self.matrix + self.exchange + self.elements + self.launches


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The kernels on the IPU of one stage. `tiles` is the number of tiles that compute. `proportion` is the fraction of tile
    memory for temporaries."""

    ipu: Ipu
    tiles: int
    batch: int
    bytes_per_element: int
    proportion: float
    half_partials: bool
    two_pass: bool
    exchange_time: float = 1.0  # --internal-exchange-optimisation-target changes this factor on the time of exchange.
    constants: Constants

    @classmethod
    def of(cls, workload: Workload, ipu: Ipu, constants: Constants) -> Kernels:
        """Return the kernels for a workload's micro-batch, with the default memory proportion."""
        options = workload.plan.options
        return cls(
            ipu=ipu,
            tiles=ipu.computing_tiles(options.num_io_tiles),
            batch=workload.plan.micro_batch_size,
            bytes_per_element=workload.bytes_per_element,
            proportion=DEFAULT_PROPORTION,
            half_partials=options.enable_half_partials,
            two_pass=workload.two_pass,
            exchange_time=EXCHANGE_TARGETS[options.internal_exchange_optimisation_target][0],
            constants=constants,
        )

    def forward(self, operation: Operation) -> Cycles:
        """Return the cycles of an operation's forward pass for one micro-batch."""
        if operation.kind in ("conv", "dense"):
            return self._product(operation, _CONV_LAUNCHES, weights=False)
        reads, _, launches, _ = self._counts(operation)
        return self._elements(operation, reads + (self.two_pass and operation.kind == "norm"), launches)

    def backward(self, operation: Operation, first: bool = False) -> Cycles:
        """Return the cycles of an operation's backward pass for one micro-batch. If it is the network's `first` operation,
        it computes no gradient of its input."""
        if operation.kind in ("conv", "dense"):
            cycles = self._product(operation, _BACKWARD_LAUNCHES, weights=True)
            return cycles if first else cycles + self._product(operation, _BACKWARD_LAUNCHES, weights=False)
        _, reads, _, launches = self._counts(operation)
        return self._elements(operation, reads, launches)

    def _counts(self, operation: Operation) -> tuple[float, float, int, int]:
        return _PROXY if operation.kind.startswith("proxy") else _ACCESSES.get(operation.kind, _ELEMENTWISE)

    def _elements(self, operation: Operation, accesses: float, launches: int) -> Cycles:
        elements = self.batch * max(operation.source.elements, operation.result.elements)
        elements = math.ceil(elements / self.tiles)
        cycles = accesses * elements * self.bytes_per_element / self.constants.memory_bytes
        if operation.kind.removeprefix("proxy ") in _FUNCTIONS:
            cycles += elements * self.constants.function_cycles
        return Cycles(elements=cycles, launches=launches * self.constants.launch_cycles)

    def _product(self, operation: Operation, launches: int, *, weights: bool) -> Cycles:
        """Return the cycles of one product of a convolution or dense layer: the forward product or a gradient. `weights` is
        True for the gradient of the weights."""
        kernel = operation.kernel or 1
        groups = operation.groups
        ins, outs = operation.source.channels // groups, operation.result.channels // groups
        if operation.kind == "dense":
            ins = operation.source.elements
        positions = self.batch * operation.result.height * operation.result.width * groups
        block = _block((positions, ins, outs), self.tiles)
        macs = math.prod(block) * kernel**2
        matrix = macs / self._rate(ins, outs, kernel, weights)
        moved = block[0] * (block[1] + block[2]) + block[1] * block[2] * kernel**2
        rate = self.ipu.exchange * self.constants.exchange_share
        slow = (DEFAULT_PROPORTION / self.proportion) ** self.constants.proportion_power
        return Cycles(
            matrix=slow * matrix,
            exchange=slow * self.exchange_time * moved * self.bytes_per_element / rate,
            launches=launches * self.constants.launch_cycles,
        )

    def _rate(self, ins: int, outs: int, kernel: int, weights: bool) -> float:
        """Return the number of multiply-adds that a tile does per cycle."""
        share = self.constants.matrix_share
        if self.bytes_per_element > 2:
            return share * self.ipu.single_macs * _filled(ins) * _filled(outs)
        matrix = self.ipu.half_macs * _filled(ins) * _filled(outs) * (1 if self.half_partials else PARTIALS_SHARE)
        if ins not in SLIC_CHANNELS or ins != outs:
            return share * max(matrix, VERTICAL_MACS)
        fours = kernel / (4 * math.ceil(kernel / 4))
        slic = 8 * ins * fours * self.ipu.half_macs / 64
        return share * max(matrix, VERTICAL_MACS if weights else slic)


class SegmentCosts:
    """The cycles of each segment (block of layers), forward and backward. They are computed once for each memory
    proportion."""

    def __init__(self, workload: Workload, ipu: Ipu, constants: Constants) -> None:
        self._trace, self._training = workload.trace, workload.training
        self._kernels = Kernels.of(workload, ipu, constants)
        self._known: dict[tuple[str, float], tuple[Cycles, Cycles]] = {}

    def of(self, segment: str, proportion: float) -> tuple[Cycles, Cycles]:
        """Return the forward and backward cycles of a segment for one micro-batch."""
        if (segment, proportion) not in self._known:
            kernels, forward, backward = replace(self._kernels, proportion=proportion), Cycles(), Cycles()
            for operation in self._trace.by_segment[segment]:
                forward += kernels.forward(operation)
                if self._training:
                    backward += kernels.backward(operation, operation is self._trace.operations[0])
            self._known[segment, proportion] = forward, backward
        return self._known[segment, proportion]

    def totals(self, proportion: float) -> list[float]:
        """Return the sum of forward and backward cycles for each segment."""
        return [sum(each.total for each in self.of(name, proportion)) for name in self._trace.segments]


def _filled(channels: int) -> float:
    """Return the fraction of the matrix units that the channels of one group fill."""
    return channels / (MATRIX_CHANNELS * math.ceil(channels / MATRIX_CHANNELS))


@cache
def _block(sides: tuple[int, int, int], tiles: int) -> tuple[float, float, float]:
    """Return the sides of a block if a product is divided into `tiles` equal blocks, as close to cubes as possible."""
    volume = math.prod(sides) / tiles
    lengths = [1.0, 1.0, 1.0]
    order = sorted(range(3), key=lambda k: sides[k])
    for place, k in enumerate(order):
        lengths[k] = max(1.0, min(sides[k], volume ** (1 / (3 - place))))
        volume /= lengths[k]
    return lengths[0], lengths[1], lengths[2]
