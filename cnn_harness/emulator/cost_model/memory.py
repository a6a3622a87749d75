"""Predict the memory of each IPU of a plan at the peak of an update.

A size is the bytes in the fullest tile times the number of tiles, so it can be compared with the memory of an IPU. `sizes`
counts what does not depend on the fitted constants, and `IpuSizes.memory` applies the constants. Memory is full at one
moment of an update. Until then, the activations of operations that follow are free again, so they do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from cnn_harness.emulator.cost_model.kernels import launches
from cnn_harness.emulator.cost_model.memory_constants import MEMORY, MemoryConstants
from cnn_harness.emulator.cost_model.systems import Device
from cnn_harness.emulator.cost_model.workload import EXCHANGE_TARGETS, Workload
from cnn_harness.emulator.network.network import PRODUCTS, Node
from cnn_harness.emulator.plan.lifetimes import alive, kept_by_each

USUAL_IO_TILES = 32
PREFETCHED = 1  # by default, one micro-batch of images waits on the IPU.


@dataclass(frozen=True, kw_only=True)
class IpuMemory:
    """The bytes of one IPU by use, when it is fullest. Micro-batches and blocks of layers that wait for their backward pass
    have `stashed_activations`; the block whose gradients are computed has `activations`."""

    weights: int = 0
    optimiser_state: int = 0
    gradients: int = 0
    stashed_activations: int = 0
    activations: int = 0
    temporaries: int = 0
    images: int = 0
    code: int = 0

    @property
    def total(self) -> int:
        """The bytes of the fullest tile times the number of tiles."""
        return sum(asdict(self).values())


class Moment(NamedTuple):
    """The bytes that an IPU holds for one operation: activations that wait, those of the current block of layers, and input,
    output and weights of a product. The temporaries of a product take at most `limit`."""

    waiting: float
    active: float
    product: float
    limit: float

    def bytes(self, constants: MemoryConstants) -> tuple[float, float, float]:
        """Return the bytes of waiting activations, of active ones, and of temporaries."""
        temporaries = min(self.limit, constants.temporaries * self.product)
        return constants.uneven * self.waiting, constants.uneven * self.active, temporaries


@dataclass(frozen=True, kw_only=True)
class IpuSizes:
    """The bytes that one IPU holds without the fitted constants, and its `launches`, whose code is in all `tiles`."""

    weights: float
    optimiser_state: float
    gradients: float
    images: float
    launches: float
    tiles: int
    moments: tuple[Moment, ...]

    def memory(self, constants: MemoryConstants) -> IpuMemory:
        """Return the memory at its peak."""
        return self.at(self.moments, constants)

    def at(self, moments: Iterable[Moment], constants: MemoryConstants) -> IpuMemory:
        """Return the memory at the fullest of some moments."""
        stashed, active, temporaries = max((each.bytes(constants) for each in moments), key=sum, default=(0, 0, 0))
        return IpuMemory(
            weights=int(constants.uneven * self.weights),
            optimiser_state=int(constants.uneven * self.optimiser_state),
            gradients=int(constants.uneven * self.gradients),
            stashed_activations=int(stashed),
            activations=int(active),
            temporaries=int(temporaries),
            images=int(self.images),
            code=int(self.tiles * (constants.code_always + constants.code * self.launches)),
        )


def of_ipus(workload: Workload, device: Device, constants: MemoryConstants = MEMORY) -> tuple[IpuMemory, ...]:
    """Return the memory of each IPU of a replica."""
    return tuple(each.memory(constants) for each in sizes(workload, device))


def sizes(workload: Workload, device: Device) -> tuple[IpuSizes, ...]:
    """Return what each IPU of a replica holds."""
    return tuple(_sizes(workload, device, stages) for stages in workload.stages_by_ipu)


def _sizes(workload: Workload, device: Device, stages: Sequence[int]) -> IpuSizes:
    """Return what an IPU with these stages holds."""
    plan, options, precision = workload.plan, workload.plan.options, workload.plan.precision
    operations = [operation for stage in stages for operation in workload.operations(stage)]
    share = device.tiles / device.computing_tiles(options.num_io_tiles)
    stored = [(precision.stored_format(v).bytes, v.elements) for o in operations for v in o.variables]
    compute = precision.compute.bytes
    state, gradients = 0, [0]
    if workload.training:
        moved = [(precision.stored_format(v).bytes, v.elements) for stage in stages for v in workload.moved(stage)]
        # Layers use narrow copies of wide weights. Both stay on the IPU, because every pass reads them.
        state = sum(size * elements for size, elements in moved if size > compute)
        if not workload.offloads:
            state += sum(workload.slot_bytes[stage] // (plan.total_replicas if options.rts else 1) for stage in stages)
        # A gradient is added in the format of its weight. If one pass makes an update, each gradient is used at once.
        gradients = [max(precision.accumulator.bytes, size) * elements for size, elements in moved] or [0]
    at_once = plan.accumulation == plan.total_replicas == 1
    prefetched = PREFETCHED if options.prefetch_depth is None else options.prefetch_depth
    images = (1 + prefetched) * plan.micro_batch_size * workload.image_bytes if 0 in stages and workload.from_host else 0
    passes = 1 + workload.training  # recomputation shares the code of the forward pass.
    return IpuSizes(
        weights=share * sum(min(size, compute) * elements for size, elements in stored),
        optimiser_state=share * state,
        gradients=share * (max(gradients) if at_once else sum(gradients)),
        images=images,
        launches=EXCHANGE_TARGETS[options.internal_exchange_optimisation_target][1]
        * sum(sum(launches(operation)[:passes]) for operation in operations),
        tiles=device.tiles,
        moments=_largest(moment for _, _, moment in moments(workload, device, stages)),
    )


def moments(workload: Workload, device: Device, stages: Sequence[int]) -> Iterator[tuple[int, Node, Moment]]:
    """Yield each operation of an IPU with these stages, with its stage and its moment."""
    batch, compute = workload.plan.micro_batch_size, workload.plan.precision.compute.bytes
    share = device.tiles / device.computing_tiles(workload.plan.options.num_io_tiles)
    counted = _of_training(workload, stages) if workload.training else _of_inference(workload, stages)
    for stage, operation, waiting, active in counted:
        product, limit = compute * _product(operation, batch), workload.proportion(stage) * device.memory
        yield stage, operation, Moment(share * compute * waiting, share * compute * active, product, limit)


def _of_training(workload: Workload, stages: Sequence[int]) -> Iterator[tuple[int, Node, int, int]]:
    """Yield each operation after its stage, with two numbers of elements: activations that wait, and those of the current
    block of layers that its gradients or earlier ones read.

    Without recomputation, all activations that the backward pass reads are kept. With recomputation, only the stage's input
    waits for each micro-batch in flight, and the whole stage is recomputed before its backward pass. A single stage keeps
    the inputs of its segments and recomputes one segment at a time. If an IPU has several stages, all micro-batches that
    earlier stages hold wait too, and the gradients of later stages are complete.
    """
    batch, before = workload.plan.micro_batch_size, 0
    for stage in stages:
        operations, live = workload.operations(stage), workload.max_in_flight[stage]
        kept = kept_by_each(operations)
        recomputes = workload.recomputes(stage)
        blocks = [(operations, kept)] if operations else []
        if recomputes and len(workload.plan.stages) == 1:
            blocks = list(_segments(operations, kept))
        for block, sizes in blocks:
            entering = block[0].source.elements
            waiting = before + batch * (entering * live + (0 if recomputes else live - 1) * sum(sizes))
            active = 0
            for operation, size in zip(block, sizes):
                active += batch * size
                yield stage, operation, waiting, active
            before += batch * live * (entering + (0 if recomputes else sum(sizes)))


def _segments(operations: Sequence[Node], kept: Sequence[int]) -> Iterator[tuple[list[Node], list[int]]]:
    """Yield the operations of each segment, with what each keeps."""
    for name in dict.fromkeys(operation.segment for operation in operations):
        own = [k for k, operation in enumerate(operations) if operation.segment == name]
        yield [operations[k] for k in own], [kept[k] for k in own]


def _of_inference(workload: Workload, stages: Sequence[int]) -> Iterator[tuple[int, Node, int, int]]:
    """Yield the numbers of `_of_training` for inference, in which no activation waits."""
    batch = workload.plan.micro_batch_size
    for stage in stages:
        operations = workload.operations(stage)
        for operation, size in zip(operations, alive(operations)):
            yield stage, operation, 0, batch * size


def _product(operation: Node, batch: int) -> int:
    """Return the number of elements in input, output and weights of a product. Return 0 for other operations, which have no
    temporaries."""
    if operation.op not in PRODUCTS:
        return 0
    weights = sum(variable.elements for variable in operation.variables)
    return batch * (operation.source.elements + operation.shape.elements) + weights


def _largest(moments: Iterable[Moment]) -> tuple[Moment, ...]:
    """Return the moments that may be the fullest with some constants."""
    found: list[Moment] = []
    for each in sorted(set(moments), key=lambda moment: -(moment.waiting + moment.active)):
        if not any(other.product >= each.product and other.limit >= each.limit for other in found):
            found.append(each)
    return tuple(found)
