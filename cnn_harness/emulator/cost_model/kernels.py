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
import operator
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from cnn_harness.emulator.cost_model.constants import Constants
from cnn_harness.emulator.cost_model.systems import Device
from cnn_harness.emulator.cost_model.workload import DEFAULT_PROPORTION, EXCHANGE_TARGETS, Workload
from cnn_harness.emulator.network.network import PRODUCTS, Node
from cnn_harness.Models._norms import GroupNorm

MATRIX_CHANNELS = 16  # 16 channels of a group fill the matrix units.
SLIC_CHANNELS = (1, 2, 4)  # SLIC kernels need groups of 1, 2 or 4 channels.
LOAD_BYTES = 8  # a load takes up to 8 neighbouring bytes.
VERTICAL_MACS = 4  # vector kernels do 4 multiply-adds per cycle in a tile.
CONVERTED = 2.0  # conversion of the layout doubles the bytes of a product. Of 1, 2 and 3, this met the rates of GPUs best.
PARTIALS_SHARE = 0.5  # matrix units are half as fast with FP32 partial sums.

# Each operation has four numbers: elements read and written for each element of the result, forward and backward, then
# compute sets launched, forward and backward. Group norm has statistics of each image and group, but gamma and beta of each
# channel. So its affine map and the gradients of gamma and beta take passes of their own, unlike those of batch norm.
_ACCESSES: dict[str, tuple[float, float, int, int]] = {
    "norm": (3, 5, 5, 6), "group norm": (5, 8, 7, 11), "add": (3, 3, 1, 1), "gate": (2, 5, 2, 4), "concat": (2, 2, 2, 2),
    "max_pool": (3, 4, 2, 3), "global_mean": (1, 1, 2, 1), "subsample": (2, 2, 1, 1), "dropout": (2, 2, 1, 1),
    "drop_path": (2, 2, 1, 1),
}  # fmt: skip
_ELEMENTWISE = (2, 3, 1, 1)  # operations without a row in _ACCESSES have these numbers.
_FUNCTIONS = ("swish", "sigmoid")
# A proxy norm, without its group norm, has an affine map, an activation, and the subtraction of the proxy's mean.
_PROXY = (6, 9, 5, 10)
# A convolution rearranges input and weights, multiplies and reduces. The backward pass also transposes the weights.
_CONV_LAUNCHES, _BACKWARD_LAUNCHES = 4, 5


def launches(operation: Node) -> tuple[int, int]:
    """Return the number of compute sets in an operation's forward and backward pass."""
    if operation.op in PRODUCTS:
        return _CONV_LAUNCHES, 2 * _BACKWARD_LAUNCHES
    return _counts(operation)[2:]


def _counts(operation: Node) -> tuple[float, float, int, int]:
    """Return the four numbers of an operation that is no product."""
    if operation.op == "proxy":
        return _PROXY
    kind = "group norm" if isinstance(operation.norm, GroupNorm) else operation.op
    return _ACCESSES.get(kind, _ELEMENTWISE)


class Cycles(NamedTuple):
    """The cycles of the slowest tile, by kind of work."""

    matrix: float = 0.0
    exchange: float = 0.0
    elements: float = 0.0
    launches: float = 0.0

    def __add__(self, other: Cycles) -> Cycles:
        return Cycles(*map(operator.add, self, other))

    @property
    def total(self) -> float:
        """The sum of all cycles. Tiles never compute and exchange at the same time."""
        return sum(self)


class Work(NamedTuple):
    """The amount of work of the slowest tile, which does not depend on the fitted constants.

    `matrix` and `narrow` are the cycles of matrix units and of SLIC and vector kernels at their peak, and `exchange` the
    cycles of the exchange at its full rate. `accessed` is the number of bytes that elementwise operations read and write,
    `functions` the number of sigmoids and swishes, and `launches` the number of compute sets.
    """

    matrix: float = 0.0
    narrow: float = 0.0
    exchange: float = 0.0
    accessed: float = 0.0
    functions: float = 0.0
    launches: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*map(operator.add, self, other))

    def cycles(self, device: Device, constants: Constants, proportion: float = DEFAULT_PROPORTION) -> Cycles:
        """Return the cycles on a chip with these constants. `proportion` is the fraction of tile memory for temporaries."""
        slow = (DEFAULT_PROPORTION / proportion) ** constants.proportion_power
        return Cycles(
            matrix=slow * (self.matrix / constants.matrix_share + self.narrow / constants.narrow_share),
            exchange=slow * self.exchange / constants.exchange_share,
            elements=self.accessed / (device.bandwidth * constants.memory_share)
            + self.functions * constants.function_cycles / device.lanes,
            launches=self.launches * constants.launch_cycles,
        )


class Product(NamedTuple):
    """A product of a convolution or dense layer on the slowest tile: its multiply-adds, the elements of input, output and
    weights that cross the exchange, and its kernel: multiply-adds per cycle at the peak, and whether it is `narrow`.

    `block` has the positions, input channels and output channels of the tile.
    """

    block: tuple[float, float, float]
    multiply_adds: float
    moved: float
    rate: float
    narrow: bool


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The kernels on a chip. `tiles` is the number of tiles that compute."""

    device: Device
    tiles: int
    batch: int
    bytes_per_element: int
    half_partials: bool
    two_pass: bool
    exchange_time: float = 1.0  # --internal-exchange-optimisation-target changes this factor on the time of exchange.

    @classmethod
    def of(cls, workload: Workload, device: Device) -> Kernels:
        """Return the kernels for a workload's micro-batch."""
        options = workload.plan.options
        return cls(
            device=device,
            tiles=device.computing_tiles(options.num_io_tiles),
            batch=workload.plan.micro_batch_size,
            bytes_per_element=workload.bytes_per_element,
            half_partials=options.enable_half_partials,
            two_pass=workload.two_pass,
            exchange_time=EXCHANGE_TARGETS[options.internal_exchange_optimisation_target][0],
        )

    def forward(self, operation: Node) -> Work:
        """Return the work of an operation's forward pass for one micro-batch."""
        if operation.op in PRODUCTS:
            return self._product(operation, _CONV_LAUNCHES, weights=False)
        reads, _, launched, _ = _counts(operation)
        return self._elements(operation, reads + (self.two_pass and operation.op == "norm"), launched)

    def backward(self, operation: Node, first: bool = False) -> tuple[Work, Work]:
        """Return the work of an operation's backward pass for one micro-batch: for the gradient of its input, then the
        product for the gradient of its weights. If it is `first`, it reads images, so it computes no gradient of its
        input."""
        if operation.op in PRODUCTS:
            work = Work() if first else self._product(operation, _BACKWARD_LAUNCHES, weights=False)
            return work, self._product(operation, _BACKWARD_LAUNCHES, weights=True)
        _, reads, _, launched = _counts(operation)
        return self._elements(operation, reads, launched), Work()

    def _elements(self, operation: Node, accesses: float, launches: int) -> Work:
        elements = math.ceil(self.batch * max(operation.source.elements, operation.shape.elements) / self.tiles)
        functions = elements if (operation.op if operation.op != "proxy" else operation.activation) in _FUNCTIONS else 0
        accessed = accesses * elements * self.bytes_per_element * self._loads(operation)
        return Work(accessed=accessed, functions=functions, launches=launches)

    def _loads(self, operation: Node) -> float:
        """Return the factor by which a norm's groups multiply its loads. A load takes neighbouring values of one group.
        Neighbours in memory are blocks of 16 channels, in which a group of 32 has at most one channel."""
        norm, full = operation.norm, LOAD_BYTES / self.bytes_per_element
        if not isinstance(norm, GroupNorm):
            return 1.0
        together = operation.shape.channels / norm.groups if norm.contiguous else MATRIX_CHANNELS / norm.groups
        return full / min(full, max(1.0, together))

    def product(self, operation: Node, *, weights: bool = False) -> Product:
        """Return one product of a convolution or dense layer: the forward product or a gradient. `weights` is True for the
        gradient of the weights."""
        kernel = operation.kernel or 1
        groups = operation.groups
        ins, outs = operation.source.channels // groups, operation.shape.channels // groups
        if operation.op == "dense":
            ins = operation.source.elements
        positions = self.batch * operation.shape.height * operation.shape.width * groups
        block = _block((positions, ins, outs), self.tiles)
        moved = block[0] * (block[1] + block[2]) + block[1] * block[2] * kernel**2
        matrix, narrow = self._rates(ins, outs, kernel, weights)
        return Product(block, math.prod(block) * kernel**2, moved, max(matrix, narrow), narrow > matrix)

    def _product(self, operation: Node, launches: int, *, weights: bool) -> Work:
        """Return the work of one product."""
        product = self.product(operation, weights=weights)
        exchange = self.exchange_time * product.moved * self.bytes_per_element / self.device.exchange
        cycles = product.multiply_adds / product.rate
        if self.device.converts_layout and self.bytes_per_element > 2:
            exchange *= CONVERTED
        if not self.device.tiled:  # such chips read memory while they multiply, so the slower of the two counts.
            if exchange > cycles:
                return Work(exchange=exchange, launches=launches)
            exchange = 0.0
        if product.narrow:
            return Work(narrow=cycles, exchange=exchange, launches=launches)
        return Work(matrix=cycles, exchange=exchange, launches=launches)

    def _rates(self, ins: int, outs: int, kernel: int, weights: bool) -> tuple[float, float]:
        """Return the multiply-adds per cycle of a tile's matrix units, and of its SLIC or vector kernels. Chips without
        tiles have neither SLIC kernels nor slower FP32 partial sums."""
        filled, vectors = _filled(ins) * _filled(outs), self.device.vector_macs
        if self.bytes_per_element > 2:
            return self.device.single_macs * filled, vectors or 0.0
        if vectors:
            return self.device.half_macs * filled, vectors
        matrix = self.device.half_macs * filled * (1 if self.half_partials else PARTIALS_SHARE)
        if weights or ins not in SLIC_CHANNELS or ins != outs:
            return matrix, VERTICAL_MACS
        fours = kernel / (4 * math.ceil(kernel / 4))
        return matrix, 8 * ins * fours * self.device.half_macs / 64


class SegmentCosts:
    """The cycles of each segment (block of layers): forward, for the gradient of its input, and for the gradients of its
    weights. They are computed once for each memory proportion."""

    def __init__(self, workload: Workload, device: Device, constants: Constants) -> None:
        self._network, self._training = workload.network, workload.training
        self.kernels, self._constants = Kernels.of(workload, device), constants
        self._counted: dict[str, list[Work]] = {}
        self._known: dict[tuple[str, float], list[Cycles]] = {}

    def with_constants(self, constants: Constants) -> SegmentCosts:
        """Return the costs with other constants. The work is not counted again."""
        other = copy(self)
        other._constants, other._known = constants, {}
        return other

    def of(self, segment: str, proportion: float) -> list[Cycles]:
        """Return the three numbers of cycles of a segment for one micro-batch."""
        if (segment, proportion) not in self._known:
            self._known[segment, proportion] = [self.cycles(work, proportion) for work in self.work(segment)]
        return self._known[segment, proportion]

    def cycles(self, work: Work, proportion: float) -> Cycles:
        """Return the cycles of some work with the constants."""
        return work.cycles(self.kernels.device, self._constants, proportion)

    def work(self, segment: str) -> list[Work]:
        """Return the work of a segment for one micro-batch, in the order of `of`."""
        if segment not in self._counted:
            total = [Work()] * 3
            for operation in self._network.by_segment[segment]:
                work = [self.kernels.forward(operation), Work(), Work()]
                if self._training:
                    work[1:] = self.kernels.backward(operation, operation.inputs[0] in self._network.inputs)
                total = list(map(operator.add, total, work))
            self._counted[segment] = total
        return self._counted[segment]

    def totals(self, proportion: float) -> list[float]:
        """Return the sum of all cycles for each segment."""
        return [sum(each.total for each in self.of(name, proportion)) for name in self._network.segments]


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
