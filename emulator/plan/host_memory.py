"""Predict the peak memory of the host process from the plan and the trace. `emulator.cost_model.memory` predicts IPU memory.

The constants were fitted to 20 measured processes in 32.32, with TensorFlow 2.21 on two cores of an Intel Xeon. They ran
ResNet-8, 18, 20, 50 and EfficientNet-B0 with batch or group norm, with micro-batches of 1 to 1024. The predictions are 0.90
to 1.08 times the measured resident memory, 0.78 to 1.11 times the address space, and 0.69 to 1.17 times the writable memory.
Three processes in 16.16 were measured on an AMD EPYC without AVX-512, where processes in 32.32 take 0.83 times the memory.
Relative to that, their predictions are 0.87 to 1.03 times the resident memory.
Each CPU core changes the address space and the writable memory by about 0.1 GB.

The prediction leaves out the traces of a profile and the cached records of photos. `Datasets.pipeline.record_reader` caches
records only while memory is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from base import host_limits
from base.host_limits import Limit
from emulator.plan.number_formats import FP32, storage_bytes
from emulator.plan.plan import ExecutionPlan
from emulator.plan.precision import Precision
from emulator.plan.trace import Operation, Trace
from Models._layers import Variable

TENSORFLOW = 750_000_000  # Python, TensorFlow and the graph of a few layers take 750 MB.
OPERATION = 500_000  # graph, kernels and executors take 0.5 MB for each layer.
COMPILER = 80_000_000  # half precision, group norm and swish need the XLA compiler, which takes 80 MB.
COMPILED_HALF, COMPILED = 500_000, 200_000  # compiled code takes 0.5 MB for each layer in half precision, 0.2 MB in FP32.
# GRADIENTS is the memory for gradients and gradient sums, and SLOWED the memory for each optimiser slot after the first,
# relative to the trained weights in FP32. SAVED is the memory for copies of the values that a checkpoint writes, relative to
# their size.
GRADIENTS = 2.2
SLOWED = 2.5
SAVED = 4.3
WORKED_ON = 2.0  # a running operation takes at most twice the memory of the largest layer's input and output.
FETCHED = 4  # the host holds the images of four passes: one being made, two waiting, one in use.
CERTAIN = 0.8  # every measured run needed more than 0.8 times the predicted memory.
# Limits of ulimit are compared with factor x resident peak + offset, in bytes. The address space includes memory that
# threads only reserve. The writable memory excludes the pages of mapped files.
_OTHER_KINDS = {host_limits.ADDRESSES: (1.2, 1_600_000_000), host_limits.DATA: (1.25, -280_000_000)}
_OVERWRITTEN = ("norm", "add")  # an operation of _OVERWRITES after a norm or sum reuses the memory of the result.
_OVERWRITES = ("relu", "relu6", "add")


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """The predicted bytes of a process at its peak, by use.

    * `fixed` is for TensorFlow and the graph.
    * `weights` is for weights, slots, gradients, and the copies that updates and checkpoints make.
    * `activations` is for the activations that wait for a backward pass.
    * `images` is for the images that wait for the device.
    * `records` is for the records of the data set that stay in memory.
    """

    fixed: int
    weights: int
    activations: int
    images: int
    records: int = 0

    @property
    def peak(self) -> int:
        """The peak of resident memory in bytes: VmHWM in /proc/<pid>/status."""
        return self.fixed + self.weights + self.activations + self.images + self.records

    def of_kind(self, kind: str) -> int:
        """Return the peak of the memory that a limit of this kind restricts."""
        factor, rest = _OTHER_KINDS.get(kind, (1.0, 0))
        return int(self.peak * factor + rest)

    def __str__(self) -> str:
        parts = [
            f"{gigabytes(size)} {what}"
            for size, what in (
                (self.fixed, "TensorFlow and graph"),
                (self.weights, "weights"),
                (self.activations, "activations"),
                (self.images, "images"),
                *[(self.records, "records")] * bool(self.records),
            )
        ]
        return f"about {gigabytes(self.peak)} GB at the peak ({', '.join(parts)})"


def gigabytes(size: int) -> str:
    """Return a size in billions of bytes, as text."""
    return f"{size / 1e9:,.1f}" if size >= 50_000_000 else f"{size / 1e9:,.2f}"


def training(
    trace: Trace, plan: ExecutionPlan, *, slots: int, image: int, records: int = 0, validated: int = 0,
    trained: Callable[[str], bool],
) -> HostMemory:  # fmt: skip
    """Return the predicted peak memory of a training process.

    `slots` is the number of optimiser slots for each weight, and `image` the number of values in an image. `records` is the
    number of bytes of the data set that stay in memory. `validated` is the number of images in a validation micro-batch, or
    0 without validation. `trained` returns whether updates change the variable with a given name.
    """
    moved = [v for v in trace.variables if v.trainable and trained(v.name)]
    saved = sum(_checkpoint_bytes(plan.precision, v, slots) for v in moved)
    saved += sum(FP32.bytes * v.elements for v in trace.variables) - sum(FP32.bytes * v.elements for v in moved)
    copies = GRADIENTS + SLOWED * max(0, slots - 1)
    weights = copies * FP32.bytes * sum(v.elements for v in moved) + SAVED * saved
    scoring = inference(trace, plan.precision, validated, image) if validated else None
    return HostMemory(
        fixed=TENSORFLOW + OPERATION * len(trace.operations) + _compiler(trace, plan.precision),
        weights=int(weights) + (scoring.weights if scoring else 0),
        activations=max(_activations(trace, plan), scoring.activations if scoring else 0),
        images=FETCHED * plan.samples_per_pass * image * FP32.bytes,
        records=records,
    )


def inference(trace: Trace, precision: Precision, batch: int, image: int, records: int = 0) -> HostMemory:
    """Return the predicted peak memory of a process that only validates, in micro-batches of `batch` images. Such a process
    keeps no activations."""
    return HostMemory(
        fixed=TENSORFLOW + (OPERATION * len(trace.operations) + _compiler(trace, precision)) // 3,
        weights=2 * FP32.bytes * trace.parameters,
        activations=int(WORKED_ON * batch * _largest(trace.operations)),
        images=FETCHED * batch * image * FP32.bytes,
        records=records,
    )


def _compiler(trace: Trace, precision: Precision) -> int:
    """Return the bytes that XLA needs, or 0 if nothing is compiled."""
    if precision.rounds_results:
        return COMPILER + COMPILED_HALF * len(trace.operations)
    needed = any(o.kind == "swish" or _is_fused_norm(o) or o.kind.startswith("proxy") for o in trace.operations)
    return COMPILER + COMPILED * len(trace.operations) if needed else 0


def _is_fused_norm(operation: Operation) -> bool:
    return operation.norm is not None and operation.norm.fused


def _checkpoint_bytes(precision: Precision, variable: Variable, slots: int) -> int:
    return precision.stored_format(variable).bytes * variable.elements + precision.bytes_of_slots(variable, slots)


def _activations(trace: Trace, plan: ExecutionPlan) -> int:
    """Return the bytes of activations that wait for a backward pass. With recomputation, these are the inputs of all
    segments (blocks of layers) and the activations of the largest segment. Formats of 16 bits and less take half as much."""
    activations = dict.fromkeys(trace.segments, 0)
    inputs: dict[str, int] = {}
    for operation, next_operation in pairwise([*trace.operations, None]):
        activations[operation.segment] += _kept_for_backward(operation, next_operation)
        inputs.setdefault(operation.segment, FP32.bytes * operation.source.elements)
    total = 0
    for stage, most in zip(plan.stages, plan.max_in_flight):
        if plan.options.enable_recomputation:
            total += most * sum(inputs.get(name, 0) for name in stage) + max(
                (activations[name] for name in stage), default=0
            )
        else:
            total += most * sum(activations[name] for name in stage)
    total *= storage_bytes(plan.precision.compute) / FP32.bytes
    return int(plan.samples_per_pass * (total + WORKED_ON * _largest(trace.operations)))


def _kept_for_backward(operation: Operation, next_operation: Operation | None) -> int:
    """Return the bytes that an operation's result for one image keeps for the backward pass. The result of a norm or a sum
    is not kept if a ReLU overwrites it, or if the norm is fused with the activation after it."""
    behind = next_operation.kind.split()[0] if next_operation else ""
    fused = behind == "proxy" or (behind == "swish" and _is_fused_norm(operation))
    if operation.kind in _OVERWRITTEN and (behind in _OVERWRITES or fused):
        return 0
    return FP32.bytes * operation.result.elements


def _largest(operations: Iterable[Operation]) -> int:
    """Return the bytes of the largest layer's input and output for one image. Layers that can overwrite their input are left
    out."""
    own = (operation for operation in operations if operation.kind not in (*_OVERWRITTEN, *_OVERWRITES))
    return max(FP32.bytes * (operation.source.elements + operation.result.elements) for operation in own)


def find_exceeded_limit(need: HostMemory, limits: Sequence[Limit], sharing: int = 1) -> tuple[Limit | None, bool]:
    """Return the limit that the prediction exceeds most, and whether the run will certainly fail. Return (None, False) if no
    limit is exceeded.

    `sharing` is the number of the run's processes on this machine; each process needs the same memory.
    """
    above = [limit for limit in limits if _needed(need, limit, sharing) > limit.bytes]
    worst = max(above, key=lambda limit: _needed(need, limit, sharing) / max(limit.bytes, 1), default=None)
    return worst, bool(worst) and CERTAIN * _needed(need, worst, sharing) > worst.bytes


def _needed(need: HostMemory, limit: Limit, sharing: int) -> int:
    return need.of_kind(limit.kind) * (sharing if limit.shared else 1)
