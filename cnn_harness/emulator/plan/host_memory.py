"""Predict the peak memory of the host process from plan and network. `emulator.cost_model.memory` predicts IPU memory.

The constants were fitted to 36 measured processes with native kernels, with TensorFlow 2.21 on two cores of an AMD EPYC
(Zen 5). They ran ResNet-8, 18, 20, 50 and EfficientNet-B0 with batch or group norm in 32.32, 16.16 and bf16.32, with
micro-batches of 1 to 1024. The predictions are 0.89 to 1.11 times the measured resident memory, 0.88 to 1.12 times the
address space, and 0.74 to 1.23 times the writable memory. The peak of a process differs by up to 5 % between runs.
Each CPU core changes the address space and the writable memory by about 0.1 GB.

The prediction leaves out the traces of a profile and the cached records of photos. `Datasets.pipeline.record_reader` caches
records only while memory is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from cnn_harness.base import host_limits
from cnn_harness.base.host_limits import Limit
from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.plan.lifetimes import alive, kept
from cnn_harness.emulator.plan.number_formats import FP32, storage_bytes
from cnn_harness.emulator.plan.plan import ExecutionPlan

TENSORFLOW = 600_000_000  # Python, TensorFlow and the graph of a few layers take 600 MB.
OPERATION = 500_000  # graph, kernels and executors take 0.5 MB for each layer.
# GRADIENTS is the memory for gradients and gradient sums, and SLOWED the memory for each optimiser slot after the first,
# relative to the trained weights. SAVED is the memory for weights, slots and the copies that updates and checkpoints make,
# relative to weights and slots. All sizes are those of FP32, because updates and checkpoints widen narrower formats.
GRADIENTS = 1.4
SLOWED = 2.5
SAVED = 2.8
KEPT = 1.08  # freed and unused parts of the heap add 8 % to the activations that wait for a backward pass.
HALVED = 0.62  # activations of 16 bits and less take 0.62 times the memory of FP32, because some operations widen them.
WORKED_ON = 1.15  # the values in use take 1.15 times their size during the operation that uses the most.
FETCHED = 4  # the host holds the images of four passes: one being made, two waiting, one in use.
CERTAIN = 0.8  # every measured run needed more than 0.8 times the predicted memory.
# Limits of ulimit are compared with factor x resident peak + offset, in bytes. The address space includes memory that
# threads only reserve. The writable memory excludes the pages of mapped files.
_OTHER_KINDS = {host_limits.ADDRESSES: (1.2, 1_620_000_000), host_limits.DATA: (1.28, -270_000_000)}
_JOINED = ("swish", "proxy")  # a kernel computes a norm and the activation after it, and again in the backward pass.


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
    network: Network, plan: ExecutionPlan, *, slots: int, image: int, records: int = 0, validated: int = 0,
    trained: Callable[[str], bool],
) -> HostMemory:  # fmt: skip
    """Return the predicted peak memory of a training process.

    `slots` is the number of optimiser slots for each weight, and `image` the number of values in an image. `records` is the
    number of bytes of the data set that stay in memory. `validated` is the number of images in a validation micro-batch, or
    0 without validation. `trained` returns whether updates change the variable with a given name.
    """
    moved = [v for v in network.variables if v.trainable and trained(v.name)]
    changed = FP32.bytes * sum(v.elements for v in moved)
    copies = GRADIENTS + SLOWED * max(0, slots - 1)
    weights = copies * changed + SAVED * (FP32.bytes * network.parameters + slots * changed)
    scoring = inference(network, validated, image) if validated else None
    return HostMemory(
        fixed=TENSORFLOW + OPERATION * len(network.operations),
        weights=int(weights) + (scoring.weights if scoring else 0),
        activations=max(_activations(network, plan), scoring.activations if scoring else 0),
        images=FETCHED * max(plan.samples_per_pass, validated) * image * FP32.bytes,
        records=records,
    )


def inference(network: Network, batch: int, image: int, records: int = 0) -> HostMemory:
    """Return the predicted peak memory of a process that only validates, in micro-batches of `batch` images. Such a process
    keeps no activations."""
    return HostMemory(
        fixed=TENSORFLOW + OPERATION * len(network.operations) // 3,
        weights=2 * FP32.bytes * network.parameters,
        activations=int(WORKED_ON * FP32.bytes * batch * max(alive(network.operations))),
        images=FETCHED * batch * image * FP32.bytes,
        records=records,
    )


def _activations(network: Network, plan: ExecutionPlan) -> int:
    """Return the bytes of activations that wait for a backward pass. With recomputation, these are the inputs of all
    segments (blocks of layers) and the activations of the largest segment. All stages of a pipeline work at once."""
    sizes, total, working = kept(network.operations, _JOINED), 0, 0
    for names, most in zip(plan.stages, plan.max_in_flight):
        segments = [network.by_segment[name] for name in names if network.by_segment[name]]
        if plan.options.enable_recomputation:
            inputs = sum(each[0].source.elements for each in segments)
            total += most * inputs + max((sizes[name] for name in names), default=0)
        else:
            total += most * sum(sizes[name] for name in names)
        working += max(alive([*chain.from_iterable(segments)]), default=0)
    share = KEPT if storage_bytes(plan.precision.compute) == FP32.bytes else KEPT * HALVED
    return int(FP32.bytes * plan.samples_per_pass * (share * total + WORKED_ON * working))


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
