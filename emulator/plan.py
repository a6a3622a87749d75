"""The execution plan: how a run's global batch is carried out. Complete, no `None`, no TensorFlow.

Everything downstream reads it; nothing else decides.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    schedule: str = "Sequential"
    recompute: bool = False
    devices: int = 1
    span: int = 1  # replicas that share batch-norm statistics: one micro-batch to the norm
    fold: int = 1  # micro-batches of one call
    in_flight: int = 1  # calls that are live at once
    lags: tuple[int, ...] = ()  # stage j's forward of call i comes after its backward of call i - lags[j]; 0: no bound

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
        """Two lines for the head of a log."""
        return (
            f"Batch Size: {self.global_batch}\n"
            f"  micro-batch {self.micro_batch} x accumulation {self.accumulation} x replicas {self.replicas}; "
            f"{len(self.stages)} stage{'s' if len(self.stages) > 1 else ''}, precision {self.precision}, "
            f"up to {self.updates_per_step} updates per host step"
        )


def resolve(
    *,
    segments: tuple[str, ...],
    micro_batch: int,
    accumulation: int,
    replicas: int,
    global_batch: int | None,
    updates_per_step: int,
    precision: str,
) -> ExecutionPlan:
    """A plan from the numbers asked for; a global batch sets the accumulation count."""
    if global_batch is not None:
        samples = micro_batch * replicas
        if global_batch % samples:
            raise PlanError(
                f"--global-batch-size {global_batch} is not a multiple of micro-batch {micro_batch} x replicas "
                f"{replicas} = {samples}; nearest: {max(1, global_batch // samples) * samples} "
                f"or {(global_batch // samples + 1) * samples}"
            )
        accumulation = global_batch // samples
    return ExecutionPlan(
        micro_batch=micro_batch,
        accumulation=accumulation,
        replicas=replicas,
        stages=(segments,),
        lags=(0,),
        updates_per_step=updates_per_step,
        precision=precision,
    )
