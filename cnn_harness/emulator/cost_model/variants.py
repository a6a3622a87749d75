"""Variants of a workload on another system, or with another schedule or other stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cnn_harness.emulator.cost_model.systems import System
from cnn_harness.emulator.cost_model.workload import Workload

LARGEST_PIPELINE = 16  # the search tries up to 16 stages.


def scheduled(workload: Workload, schedule: str) -> Workload:
    """Return the workload with another schedule."""
    options = replace(workload.plan.options, pipeline_schedule=schedule)
    return replace(workload, plan=replace(workload.plan, options=options, schedule=schedule))


def staged(
    workload: Workload, stages: Sequence[Sequence[str]], *, micro_batch_size: int, accumulation: int, replicas: int,
    schedule: str, recomputation: bool, proportion: float,
) -> Workload:  # fmt: skip
    """Return the workload with the given stages, each on its own IPU, and the given sizes."""
    plan, count = workload.plan, len(stages)
    options = replace(
        plan.options,
        shards=count,
        replicas=replicas,
        pipeline=count > 1,
        pipeline_schedule=schedule,
        enable_recomputation=recomputation,
        available_memory_proportion=(proportion,),
    )
    staged = replace(
        plan, options=options, stages=tuple(tuple(stage) for stage in stages), micro_batch_size=micro_batch_size,
        accumulation=accumulation, schedule=schedule, instances=1, instance=0,
    )  # fmt: skip
    return replace(workload, plan=staged)


def scaled(workload: Workload, system: System) -> Workload | None:
    """Return the workload with the largest number of replicas that the system holds, or None if no number is possible. In
    training, it must divide the global batch and be a multiple of --BN-span."""
    plan, span = workload.plan, workload.plan.options.BN_span
    micro_batches = plan.global_batch // plan.micro_batch_size
    for replicas in range(system.devices // plan.options.shards, 0, -1):
        if not workload.training or (micro_batches % replicas == 0 and replicas % span == 0):
            accumulation = micro_batches // replicas if workload.training else plan.accumulation
            options = replace(plan.options, replicas=replicas)
            return replace(workload, plan=replace(plan, options=options, accumulation=accumulation, instances=1, instance=0))
    return None


def grown(workload: Workload, system: System) -> Workload | None:
    """Return the workload with as many replicas as the system holds, each with the same micro-batches, so that the global
    batch grows. Return None if the system holds too few."""
    plan, span = workload.plan, workload.plan.options.BN_span
    replicas = system.devices // plan.options.shards // span * span
    if not replicas:
        return None
    return replace(workload, plan=replace(plan, options=replace(plan.options, replicas=replicas), instances=1, instance=0))


def undivided(workload: Workload, system: System) -> str:
    """Return why a scaled workload leaves IPUs idle, with global batches that use all IPUs. Return "" if none is idle."""
    plan, span = workload.plan, workload.plan.options.BN_span
    most = system.devices // plan.options.shards // span * span
    if not workload.training or plan.total_replicas == most:
        return ""
    step = plan.micro_batch_size * most
    below = plan.global_batch // step * step
    batches = " or ".join(str(batch) for batch in (below, below + step) if batch)
    return (
        f"global batch {plan.global_batch} is not a multiple of {most} replicas x micro-batch {plan.micro_batch_size}; "
        f"give --global-batch-size {batches}"
    )
