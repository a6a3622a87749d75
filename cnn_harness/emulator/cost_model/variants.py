"""Variants of a workload on another system, or with another schedule or other stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from cnn_harness.emulator.cost_model.prediction import Prediction, predict
from cnn_harness.emulator.cost_model.systems import System
from cnn_harness.emulator.cost_model.workload import Workload
from cnn_harness.emulator.plan import partition
from cnn_harness.emulator.plan.partition import PartitionError
from cnn_harness.emulator.plan.schedules import SCHEDULES

LARGEST_PIPELINE = 16  # the search tries up to 16 stages.


def scheduled(prediction: Prediction, schedule: str) -> Prediction:
    """Return the prediction for a pipeline with another schedule. If this schedule has another number of stages on each IPU,
    cut the network into stages of equal time. Raise PartitionError if the network has too few segments."""
    workload, timing = prediction.workload, prediction.timing
    plan, stages = workload.plan, workload.plan.stages
    count = plan.options.shards * SCHEDULES[schedule].stages_per_device
    if count != len(stages):
        stages = partition.automatic(workload.network, count, costs=timing.costs.totals(workload.proportion(0)))
    options = replace(plan.options, pipeline_schedule=schedule)
    plan = replace(plan, options=options, schedule=schedule, stages=stages)
    return predict(replace(workload, plan=plan), prediction.system, timing.constants, timing.costs)


def by_schedule(prediction: Prediction) -> Iterator[tuple[str, Prediction]]:
    """Yield each pipeline schedule that the network has enough segments for, with its prediction."""
    for schedule in SCHEDULES:
        with suppress(PartitionError):
            yield schedule, scheduled(prediction, schedule)


def with_batch(prediction: Prediction, factor: float) -> Prediction | None:
    """Return the prediction for `factor` times the accumulation, and so the global batch. Return None if this accumulation
    is not a whole number."""
    workload = prediction.workload
    accumulation = factor * workload.plan.accumulation
    if accumulation < 1 or accumulation != int(accumulation):
        return None
    plan = replace(workload.plan, accumulation=int(accumulation))
    return predict(replace(workload, plan=plan), prediction.system, prediction.timing.constants, prediction.timing.costs)


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
