"""The execution plan: how a run's global batch is carried out. Complete, no `None`, no TensorFlow.

Everything downstream reads it; nothing else decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator import partition, schedules
from emulator.cost.trace import Trace

AUTO = "auto"
MOST_FOLDED = 8  # by `auto`: batch norm has operations of its own for every micro-batch of a call


class PlanError(Exception):
    """Options that do not fit together on the device layer."""


@dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """One weight update: replicas x accumulation micro-batches through the stages.

    Global micro-batch m = accumulation step x replicas + replica; gradients are added in that order.
    """

    micro_batch: int
    accumulation: int
    replicas: int
    stages: tuple[tuple[str, ...], ...]  # the segments of each stage
    updates_per_step: int  # weight updates of one host step
    precision: str
    schedule: str
    pipelined: bool  # asked for, also where all stages share one device
    recompute: bool
    devices: int
    span: int  # replicas that share batch-norm statistics: one micro-batch to the norm
    fold: int  # micro-batches of one call
    in_flight: int  # calls that are live at once
    lags: tuple[int, ...]  # stage j's forward of call i comes after its backward of call i - lags[j]; 0: no bound

    @property
    def calls(self) -> int:
        """Calls of the network in one weight update."""
        return self.micro_batches // (self.span * self.fold)

    @property
    def call_batch(self) -> int:
        """Samples of one call."""
        return self.micro_batch * self.span * self.fold

    def device(self, stage: int) -> str:
        """Where a stage's operations go; with fewer devices than stages all share the first."""
        return f"/cpu:{stage if self.devices > 1 else 0}"

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one weight update, over all replicas."""
        return self.accumulation * self.replicas

    @property
    def global_batch(self) -> int:
        """Samples of one weight update."""
        return self.micro_batch * self.micro_batches

    def summary(self) -> str:
        """A few lines for the head of a log."""
        lines = [
            f"Batch Size: {self.global_batch}",
            f"  micro-batch {self.micro_batch} x accumulation {self.accumulation} x replicas {self.replicas}"
            + (f", {self.fold} micro-batches a call" if self.fold > 1 else "")
            + (f", batch norm over {self.span} replicas" if self.span > 1 else "")
            + f"; precision {self.precision}, up to {self.updates_per_step} updates per host step",
        ]
        if len(self.stages) > 1:
            lines.append(
                f"  {len(self.stages)} stages on {self.devices} device{'s' if self.devices > 1 else ''}, {self.schedule}, "
                f"{self.in_flight} calls in flight; they begin at {', '.join(stage[0] for stage in self.stages)}"
            )
        if self.recompute:
            lines.append("  activations are recomputed in the backward pass")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What was asked of the device layer, in the options' words."""

    micro_batch: int
    accumulation: int = 1
    replicas: int = 1
    global_batch: int | None = None
    precision: str = "32.32"
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


def resolve(wishes: Wishes, trace: Trace, updates_per_step: int) -> ExecutionPlan:
    """A complete plan; raises PlanError, PartitionError or ScheduleError for what does not fit together."""
    stages = _stages(wishes, trace)
    accumulation = _accumulation(wishes)
    if wishes.span & (wishes.span - 1) or wishes.replicas % wishes.span:
        raise PlanError(
            f"--BN-span {wishes.span} must be a power of two that divides the {wishes.replicas} replicas into equal groups"
        )
    devices = len(stages) if wishes.shards > 1 else 1
    schedule = wishes.schedule if wishes.pipeline and devices > 1 else "Sequential"
    fold = _fold(wishes, trace, accumulation, len(stages) if schedule != "Sequential" else 1)
    calls = accumulation * wishes.replicas // (wishes.span * fold)
    timeline = schedules.build(schedule, len(stages), calls)
    lags = tuple(schedules.lag(timeline, j) for j in range(len(stages)))
    return ExecutionPlan(
        micro_batch=wishes.micro_batch,
        accumulation=accumulation,
        replicas=wishes.replicas,
        stages=stages,
        updates_per_step=updates_per_step,
        precision=wishes.precision,
        schedule=schedule,
        pipelined=wishes.pipeline,
        recompute=wishes.recompute,
        devices=devices,
        span=wishes.span,
        fold=fold,
        in_flight=schedules.in_flight(schedule, len(stages), calls),
        # with no later call to hold back a token would only be carried around
        lags=tuple(lag if lag < calls and schedule != "Sequential" else 0 for lag in lags),
    )


def _stages(wishes: Wishes, trace: Trace) -> tuple[tuple[str, ...], ...]:
    """Splits as they are named; `auto`, or shards without splits outside a pipeline, balanced by cost."""
    automatic = tuple(name.lower() for name in wishes.splits) == (AUTO,)
    if automatic or (wishes.shards > 1 and not wishes.splits and not wishes.pipeline):
        return partition.automatic(trace, wishes.shards, wishes.include, wishes.exclude)
    return partition.split(trace.segments, wishes.splits, wishes.shards if wishes.shards > 1 else None)


def _accumulation(wishes: Wishes) -> int:
    """The accumulation count; a global batch decides it."""
    if wishes.global_batch is None:
        return wishes.accumulation
    samples = wishes.micro_batch * wishes.replicas
    if wishes.global_batch % samples:
        below = wishes.global_batch // samples * samples
        raise PlanError(
            f"--global-batch-size {wishes.global_batch} is not a multiple of micro-batch {wishes.micro_batch} x replicas "
            f"{wishes.replicas} = {samples}; nearest: {f'{below} or ' if below else ''}{below + samples}"
        )
    return wishes.global_batch // samples


def _fold(wishes: Wishes, trace: Trace, accumulation: int, stages: int) -> int:
    """How many micro-batches share a call. `auto`: as many, up to eight, as keep one call's FP32 activations within
    the budget, and, in a pipeline, at least four calls for each stage to work on."""
    groups = accumulation * wishes.replicas // wishes.span
    if wishes.fold != AUTO:
        fold = int(wishes.fold)
        if groups % fold:
            raise PlanError(f"--fold {fold} must divide the {groups} micro-batches of an update evenly")
        return fold
    per_micro_batch = trace.activation_bytes(4) * wishes.micro_batch * wishes.span
    fits = [
        fold
        for fold in range(1, min(groups, MOST_FOLDED) + 1)
        if groups % fold == 0
        and fold * per_micro_batch <= wishes.fold_bytes
        and (stages == 1 or groups // fold >= 4 * stages)
    ]
    return max(fits, default=1)
