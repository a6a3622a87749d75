"""The execution plan: how a run's global batch is carried out. Complete, no `None`, no TensorFlow.

Everything downstream reads it; nothing else decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emulator.plan import partition, schedules
from emulator.plan.devices import Device, select
from emulator.plan.machine import Machine
from emulator.plan.precision import SINGLE, Precision
from emulator.plan.trace import Trace

AUTO = "auto"
ENOUGH = 4  # micro-batches a stage that show all there is to a schedule; more repeat its middle
MOST_SAMPLES = 2**31 - 1  # of one update: the device loop counts in 32 bits
MOST_FOLDED = 8  # by `auto`: batch norm has operations of its own for every micro-batch of a call


class PlanError(Exception):
    """Options that do not fit together on the device layer."""


@dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """One weight update: replicas x accumulation micro-batches through the stages, in each of the instances (processes).

    Global micro-batch m = accumulation step x replicas of all instances + replica, and instance k has the replicas from
    k x replicas on; each instance adds its gradients in that order, then they are added up.
    """

    micro_batch: int
    accumulation: int
    replicas: int  # of one instance
    shards: int  # IPUs of one replica
    stages: tuple[tuple[str, ...], ...]  # the segments of each stage
    updates_per_step: int  # weight updates of one host step; 0 where nothing is trained
    precision: Precision
    schedule: str
    windows: tuple[int, ...]  # calls whose forward a stage may have done and whose backward it still owes
    pipelined: bool  # asked for, also where all stages share one device
    recompute: bool
    stage_devices: tuple[str, ...]  # the TensorFlow device of each stage
    training_device: Device  # the emulated IPUs
    validation_device: Device
    span: int  # replicas that share batch-norm statistics: one micro-batch to the norm
    fold: int  # micro-batches of one call
    identical_replica_seeding: bool  # replicas draw the same numbers
    # where an IPU would keep state; nothing of it changes a number
    offload_state: bool  # optimiser state in host memory
    divide_state: bool  # replicated tensor sharding: every replica keeps a part of it
    instances: int = 1
    instance: int = 0  # this one
    all_reduce_bucket_bytes: int = 10 << 20  # bytes of gradients, between instances

    @property
    def devices(self) -> int:
        """TensorFlow devices that the stages live on."""
        return len(set(self.stage_devices))

    @property
    def overlapped(self) -> bool:
        """Whether stages work on several calls at once."""
        return max(self.windows) > 1

    @property
    def passes_in_flight(self) -> int:
        """Calls that are anywhere in the pipeline at once."""
        return max(self.windows)

    @property
    def passes_per_update(self) -> int:
        """Calls of the network in one weight update of one instance."""
        return self.micro_batches // (self.local_span * self.fold)

    @property
    def samples_per_pass(self) -> int:
        """Samples of one call."""
        return self.micro_batch * self.local_span * self.fold

    def random_position(self, position: Any) -> Any:
        """The position that a sample's draws on the device are keyed by: its own; with identical seeding its place in
        its replica's stream, which is the same in every replica."""
        if not self.identical_replica_seeding or self.total_replicas == 1:
            return position
        micro_batch, sample = position // self.micro_batch, position % self.micro_batch
        return micro_batch // self.total_replicas * self.micro_batch + sample

    @property
    def total_replicas(self) -> int:
        """Of all instances."""
        return self.replicas * self.instances

    @property
    def share(self) -> tuple[int, int]:
        """(block, period): of every `period` samples in the global order the instance has `block`, from instance x block on;
        (0, 0) if it has all of them."""
        block = self.replicas * self.micro_batch
        return (block, block * self.instances) if self.instances > 1 else (0, 0)

    @property
    def local_span(self) -> int:
        """Replicas of this instance that share batch-norm statistics."""
        return min(self.span, self.replicas)

    @property
    def sharing(self) -> range:
        """The instances that share batch-norm statistics with this one, itself among them."""
        count = max(1, self.span // self.replicas)
        first = self.instance // count * count
        return range(first, first + count)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one weight update of one instance, over its replicas."""
        return self.accumulation * self.replicas

    @property
    def global_batch(self) -> int:
        """Samples of one weight update of all instances."""
        return self.micro_batch * self.micro_batches * self.instances

    @property
    def ipus(self) -> int:
        """IPUs that the plan stands for."""
        return self.shards * self.total_replicas

    def summary(self) -> str:
        """A few lines for the head of a log."""
        lines = [
            f"Batch Size: {self.global_batch}",
            f"  micro-batch {self.micro_batch} x accumulation {self.accumulation} x replicas {self.replicas}"
            + (f" x instances {self.instances}" if self.instances > 1 else "")
            + (f", {self.fold} micro-batches a call" if self.fold > 1 else "")
            + (f", batch norm over {self.span} replicas" if self.span > 1 else "")
            + f"; precision {self.precision}"
            + (f", up to {self.updates_per_step} updates per host step" if self.updates_per_step else ""),
        ]
        if len(self.stages) > 1:
            lines.append(
                f"  {len(self.stages)} stages, {self.schedule}, {_counted(self.passes_in_flight, 'call')} in flight; "
                "they begin at " + ", ".join(stage[0] for stage in self.stages)
            )
        attached = str(self.training_device)
        if self.validation_device != self.training_device:
            attached += f", validation on {self.validation_device}"
        computed_on = ", ".join(dict.fromkeys(device.strip("/") for device in self.stage_devices))
        lines.append(f"  emulates {_counted(self.ipus, 'IPU')}: {attached}; computed on {computed_on}")
        if self.recompute:
            lines.append("  activations are recomputed in the backward pass")
        if self.identical_replica_seeding:
            lines.append("  every replica draws the same random numbers on the device")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What was asked of the device layer, in the options' words."""

    micro_batch: int
    accumulation: int = 1
    replicas: int = 1
    global_batch: int | None = None
    precision: Precision = SINGLE
    shards: int = 1
    pipeline: bool = False
    splits: tuple[str, ...] = ()
    schedule: str = "Interleaved"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    recompute: bool = False
    span: int = 1
    fold: str = AUTO
    fold_bytes: int = 1 << 30
    identical_replica_seeding: bool = False
    offload_state: bool = True
    divide_state: bool = False
    device: str = AUTO
    select: tuple[str, ...] = ()  # device ids or AUTO: for training, and for validation
    instances: int = 1
    instance: int = 0
    all_reduce_bucket_bytes: int = 10 << 20

    @property
    def total_replicas(self) -> int:
        """Of all instances."""
        return self.replicas * self.instances

    @property
    def local_span(self) -> int:
        """Replicas of this instance that share batch-norm statistics."""
        return min(self.span, self.replicas)


def resolve(request: PlanRequest, trace: Trace, machine: Machine, updates_per_step: int = 1) -> ExecutionPlan:
    """A complete plan; raises PlanError, PartitionError, ScheduleError or DeviceError for what does not fit together."""
    stages = _stages(request, trace)
    accumulation = _accumulation(request)
    replicas = request.total_replicas
    samples = request.micro_batch * accumulation * replicas
    if samples > MOST_SAMPLES:
        raise PlanError(
            f"an update of micro-batch {request.micro_batch} x accumulation {accumulation} x replicas {replicas} = "
            f"{samples:,} samples is more than the {MOST_SAMPLES:,} that can be counted"
        )
    if request.span & (request.span - 1) or replicas % request.span:
        raise PlanError(
            f"--BN-span {request.span} must be a power of two that divides the {replicas} replicas into equal groups"
        )
    if request.replicas % request.span and request.span % request.replicas:
        raise PlanError(
            f"--BN-span {request.span} would cut the {request.replicas} replicas of an instance apart; give a span that "
            "divides them, or a multiple of them"
        )
    if request.divide_state and not request.offload_state:
        raise PlanError(
            "--rts divides offloaded optimiser state among the replicas, but --disable-variable-offloading keeps it on the "
            "chip; leave one of them out"
        )
    apart = request.shards > 1  # every stage on a device of its own
    schedule = request.schedule if request.pipeline and apart else "Sequential"
    fold = _fold(request, trace, accumulation, len(stages) if schedule != "Sequential" else 1)
    calls = accumulation * request.replicas // (request.local_span * fold)
    for_training, for_validation = (*request.select, "AUTO", "AUTO")[:2]
    return ExecutionPlan(
        micro_batch=request.micro_batch,
        accumulation=accumulation,
        replicas=request.replicas,
        shards=request.shards,
        stages=stages,
        updates_per_step=updates_per_step,
        precision=request.precision,
        schedule=schedule,
        windows=schedules.windows(schedule, len(stages), min(calls, ENOUGH * len(stages))),
        pipelined=request.pipeline,
        recompute=request.recompute,
        stage_devices=_stage_devices(request.device, len(stages), apart, machine),
        training_device=select(for_training, request.shards * replicas, "training"),
        validation_device=select(for_validation, 1, "validation"),
        span=request.span,
        fold=fold,
        identical_replica_seeding=request.identical_replica_seeding,
        offload_state=request.offload_state,
        divide_state=request.divide_state,
        instances=request.instances,
        instance=request.instance,
        all_reduce_bucket_bytes=request.all_reduce_bucket_bytes,
    )


def _stage_devices(device: str, stages: int, apart: bool, machine: Machine) -> tuple[str, ...]:
    """A TensorFlow device for each stage: logical CPUs as many as stages, or the GPUs there are, in neighbouring shares."""
    if device == "gpu" and not machine.gpus:
        raise PlanError(
            "--device gpu: there is no GPU that TensorFlow can use here (an NVIDIA card and the package "
            "tensorflow[and-cuda]); give --device cpu or auto"
        )
    if device == "cpu" or not machine.gpus:
        return tuple(f"/cpu:{stage if apart else 0}" for stage in range(stages))
    return tuple(f"/gpu:{stage * min(machine.gpus, stages) // stages if apart else 0}" for stage in range(stages))


def _stages(request: PlanRequest, trace: Trace) -> tuple[tuple[str, ...], ...]:
    """Splits as they are named; `auto`, or shards without splits outside a pipeline, balanced by cost."""
    automatic = tuple(name.lower() for name in request.splits) == (AUTO,)
    if automatic or (request.shards > 1 and not request.splits and not request.pipeline):
        return partition.automatic(trace, request.shards, request.include, request.exclude)
    return partition.split(trace.segments, request.splits, request.shards if request.shards > 1 else None)


def _accumulation(request: PlanRequest) -> int:
    """The accumulation count; a global batch decides it."""
    if request.global_batch is None:
        return request.accumulation
    replicas = request.total_replicas
    samples = request.micro_batch * replicas
    if request.global_batch % samples:
        below = request.global_batch // samples * samples
        raise PlanError(
            f"--global-batch-size {request.global_batch} is not a multiple of micro-batch {request.micro_batch} x replicas "
            f"{replicas} = {samples}; nearest: {f'{below} or ' if below else ''}{below + samples}"
        )
    return request.global_batch // samples


def _fold(request: PlanRequest, trace: Trace, accumulation: int, stages: int) -> int:
    """How many micro-batches share a call. `auto`: as many, up to eight, as keep one call's FP32 activations within
    the budget, and, in a pipeline, at least four calls for each stage to work on."""
    groups = accumulation * request.replicas // request.local_span
    if request.fold != AUTO:
        fold = int(request.fold)
        if groups % fold:
            raise PlanError(f"--fold {fold} must divide the {groups} micro-batches of an update evenly")
        return fold
    per_micro_batch = trace.activation_bytes(4) * request.micro_batch * request.local_span
    fits = [
        fold
        for fold in range(1, min(groups, MOST_FOLDED) + 1)
        if groups % fold == 0
        and fold * per_micro_batch <= request.fold_bytes
        and (stages == 1 or groups // fold >= 4 * stages)
    ]
    return max(fits, default=1)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
