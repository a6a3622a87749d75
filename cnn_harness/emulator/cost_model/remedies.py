"""Suggest options that save memory if a plan does not fit. Options that save little are left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cnn_harness.emulator.cost_model import memory, variants
from cnn_harness.emulator.cost_model.memory import USUAL_IO_TILES
from cnn_harness.emulator.cost_model.prediction import Prediction
from cnn_harness.emulator.cost_model.workload import Workload
from cnn_harness.emulator.plan import partition
from cnn_harness.emulator.plan.partition import PartitionError

LEAST = 0.02  # options that save less than 2 % of the fullest IPU's memory are left out.


def remedies(prediction: Prediction, accumulation: int | None) -> tuple[str, ...]:
    """Return options that save memory, or () if the plan fits. Options that make the plan fit come first, and among them the
    options that cost the least time.

    `accumulation` is the value of --gradient-accumulation-count, or None if the global batch determines it.
    """
    if prediction.fits:
        return ()
    helping = []
    for words, workload in _candidates(prediction, accumulation):
        most = max(each.total for each in memory.of_ipus(workload, prediction.system.device))
        if most < (1 - LEAST) * prediction.fullest.total:
            helping.append((most > prediction.capacity, words))
    return tuple(words for _, words in sorted(helping, key=lambda each: each[0]))


def _candidates(prediction: Prediction, accumulation: int | None) -> Iterator[tuple[str, Workload]]:
    """Yield options as text, with the workload that they produce."""
    workload = prediction.workload
    plan, options = workload.plan, workload.plan.options
    proportion = workload.proportion(0)
    if options.disable_variable_offloading and workload.training:
        yield "--no-disable-variable-offloading", _with(workload, disable_variable_offloading=False)
    if proportion > 0.1:
        less = max(0.05, round(proportion / 2, 2))
        yield f"--available-memory-proportion {less:g}", _with(workload, available_memory_proportion=(less,))
    if workload.training and not options.enable_recomputation:
        yield "--enable-recomputation", _with(workload, enable_recomputation=True)
    if options.pipeline and plan.schedule == "Grouped":
        yield "--pipeline-schedule Interleaved", variants.scheduled(prediction, "Interleaved").workload
    if plan.micro_batch_size % 2 == 0 and plan.micro_batch_size // 2 >= workload.least_micro_batch:
        half = plan.micro_batch_size // 2
        if workload.training:
            words = f"--micro-batch-size {half}" + (
                f" --gradient-accumulation-count {2 * accumulation}" if accumulation else ""
            )
            yield words, replace(workload, plan=replace(plan, micro_batch_size=half, accumulation=2 * plan.accumulation))
        else:
            yield f"--micro-batch-size {half}", replace(workload, plan=replace(plan, micro_batch_size=half))
    if options.num_io_tiles > USUAL_IO_TILES:
        yield f"--num-io-tiles {USUAL_IO_TILES}", _with(workload, num_io_tiles=USUAL_IO_TILES)
    if workload.training:
        yield from _pipelined(prediction)


def _pipelined(prediction: Prediction) -> Iterator[tuple[str, Workload]]:
    """Yield options for twice as many stages, with the workload, if the system has enough IPUs."""
    workload, plan = prediction.workload, prediction.workload.plan
    count = 2 * plan.options.shards
    if count > variants.LARGEST_PIPELINE or 2 * plan.ipus > prediction.system.devices:
        return
    costs = prediction.timing.costs
    try:
        stages = partition.automatic(workload.network, count, costs=costs.totals(workload.proportion(0)))
    except PartitionError:
        return
    yield f"--pipeline --shards {count} --pipeline-splits auto", variants.staged(
        workload, stages, micro_batch_size=plan.micro_batch_size, accumulation=plan.accumulation,
        replicas=plan.total_replicas, schedule=plan.options.pipeline_schedule,
        recomputation=plan.options.enable_recomputation,
        proportion=workload.proportion(0),
    )  # fmt: skip


def _with(workload: Workload, **options: object) -> Workload:
    return replace(workload, plan=replace(workload.plan, options=replace(workload.plan.options, **options)))
