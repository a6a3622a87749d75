"""Predict the memory of each IPU of a plan at the peak of an update.

A size is the bytes in the fullest tile times the number of tiles, so it can be compared with the memory of an IPU. `UNEVEN`
is the ratio of the fullest tile to the mean, because large tensors do not divide evenly. With these constants, every
published configuration that ran on IPUs fits; tests check each one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace

from cnn_harness.emulator.cost_model.systems import Ipu
from cnn_harness.emulator.cost_model.workload import EXCHANGE_TARGETS, Workload
from cnn_harness.emulator.network.network import PRODUCTS, Node
from cnn_harness.emulator.plan.lifetimes import alive, kept

CODE = 45  # each launched operation takes 45 bytes of code in every tile.
CODE_ALWAYS = 24_000  # loops, host exchange, collectives and the stacks of six threads take 24,000 bytes in every tile.
UNEVEN = 1.1  # the fullest tile has 1.1 times the bytes of the mean tile.
TEMPORARIES = 2.0  # copies and partial sums take twice the memory of the largest product: of its input, output and weights.
USUAL_IO_TILES = 32
PREFETCHED = 1  # by default, one micro-batch of images waits on the IPU.


@dataclass(frozen=True, kw_only=True)
class IpuMemory:
    """The bytes of one IPU by use. Micro-batches that wait for their backward pass have `stashed_activations`; the current
    micro-batch has `activations`."""

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

    def __add__(self, other: IpuMemory) -> IpuMemory:
        return IpuMemory(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


def of_ipus(workload: Workload, ipu: Ipu) -> tuple[IpuMemory, ...]:
    """Return the memory of each IPU of a replica. Each stage has an IPU, or all stages share one."""
    stages = range(len(workload.plan.stages))
    each = [_stage(workload, ipu, stage) for stage in stages]
    if not workload.one_device:
        return tuple(each)
    # Only one stage computes at a time.
    together = sum((replace(memory, activations=0, temporaries=0) for memory in each), IpuMemory())
    together = replace(
        together,
        activations=max(memory.activations for memory in each),
        temporaries=max(memory.temporaries for memory in each),
        code=together.code - (len(each) - 1) * CODE_ALWAYS * ipu.tiles,
    )
    return (together,)


def _stage(workload: Workload, ipu: Ipu, stage: int) -> IpuMemory:
    plan, operations = workload.plan, workload.operations(stage)
    options, precision, batch = plan.options, plan.precision, plan.micro_batch_size
    variables = [variable for operation in operations for variable in operation.variables]
    trained = workload.trained_elements[stage]
    element = workload.bytes_per_element
    weights = sum(min(precision.stored_format(v).bytes, precision.compute.bytes) * v.elements for v in variables)
    stored = [(precision.stored_format(v).bytes, v.elements) for v in workload.moved(stage)]
    masters = sum(size * elements for size, elements in stored if size > precision.compute.bytes)  # layers use copies.
    io_share = ipu.tiles / ipu.computing_tiles(options.num_io_tiles)
    stashed, peak, temporaries = _activations(workload, stage) if workload.training else _of_one_operation(operations, batch)
    cap = workload.proportion(stage) * ipu.memory
    passes = 3 if workload.training else 1  # recomputation shares the code of the forward pass.
    launched = sum(4 if o.op in (*PRODUCTS, "norm", "proxy") else 1 for o in operations)
    state = masters if workload.training else 0  # weights stay on the IPU, because every pass reads them.
    if workload.training and not workload.offloads:
        state += workload.slot_bytes[stage] // (plan.total_replicas if options.rts else 1)
    prefetched = PREFETCHED if options.prefetch_depth is None else options.prefetch_depth
    images = (1 + prefetched) * batch * workload.image_bytes if stage == 0 and workload.from_host else 0
    exchange_code = EXCHANGE_TARGETS[options.internal_exchange_optimisation_target][1]

    def spread(size: float) -> int:
        return int(UNEVEN * size * io_share)

    return IpuMemory(
        weights=spread(weights),
        optimiser_state=spread(state),
        gradients=spread(trained * precision.accumulator.bytes) if workload.training else 0,
        stashed_activations=spread(stashed * batch * element),
        activations=spread(peak * batch * element),
        temporaries=int(min(cap, TEMPORARIES * temporaries * element)),
        images=int(images),
        code=int(ipu.tiles * (CODE_ALWAYS + exchange_code * CODE * passes * launched)),
    )


def _activations(workload: Workload, stage: int) -> tuple[int, int, int]:
    """Return three numbers of elements. The first counts the activations per image that wait for a backward pass, the second
    the activations per image of the current micro-batch. The third is the size of the micro-batch's largest product.

    Without recomputation, all activations that the backward pass reads are kept. With recomputation, only the stage's input
    waits for each micro-batch in flight, and the whole stage is recomputed before its backward pass. A single stage keeps
    the inputs of its segments and recomputes one segment at a time.
    """
    operations = workload.operations(stage)
    if not operations:
        return 0, 0, 0
    live = workload.max_in_flight[stage]
    entering = operations[0].source.elements
    read = kept(operations)
    largest = max(_product_elements(operation, workload.plan.micro_batch_size) for operation in operations)
    if not workload.recomputes(stage):
        return entering * live + (live - 1) * read.total(), read.total(), largest
    if len(workload.plan.stages) > 1:
        return entering * live, read.total(), largest
    inputs = sum(workload.network.by_segment[name][0].source.elements for name in read)
    return inputs, max(read.values()), largest


def _of_one_operation(operations: Sequence[Node], batch: int) -> tuple[int, int, int]:
    """Return the three numbers of `_activations` for inference. No activation waits, and the largest operation gives the
    other two numbers."""
    sizes = zip(alive(operations), (_product_elements(operation, batch) for operation in operations))
    return 0, *max(sizes, key=lambda size: batch * size[0] + TEMPORARIES * size[1])


def _product_elements(operation: Node, batch: int) -> int:
    """Return the number of elements in input, output and weights of a product. Return 0 for other operations, which have no
    temporaries."""
    if operation.op not in PRODUCTS:
        return 0
    weights = sum(variable.elements for variable in operation.variables)
    return batch * (operation.source.elements + operation.shape.elements) + weights
