"""The check that this machine's memory holds a run: the need, the limits, and the options that lessen the need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from base.errors import OptionError
from base.host_limits import ADDRESSES, DATA, Limit
from emulator.plan import process_memory
from emulator.plan.plan import ExecutionPlan
from emulator.plan.process_memory import HostMemory, gigabytes
from harness.options.update_rules import UPDATE_RULES

if TYPE_CHECKING:
    from harness.run.run import Run

_KINDS = {ADDRESSES: "address space", DATA: "writable memory"}


def of_training(run: Run, plan: ExecutionPlan) -> HostMemory:
    """Training with its validation by this plan, which need not be the run's."""
    options, spec = run.options, run.data_source.spec
    validated = replace(run, plan=plan).validation_batch if options.checkpoint.validation else 0
    return process_memory.training(
        run.trace,
        plan,
        slots=len(UPDATE_RULES[options.training.optimiser].slots),
        picture=run.image_numbers,
        records=_records(run, spec.train_images + (spec.validation_images if validated else 0)),
        validated=validated,
        trained=run.is_trained,
    )


def of_validation(run: Run) -> HostMemory:
    """Validating, serving or naming photographs."""
    predicting = bool(run.options.checkpoint.predict)
    records = 0 if predicting else _records(run, run.data_source.spec.validation_images)
    return process_memory.inference(
        run.trace, run.plan.precision, 1 if predicting else run.validation_batch, run.image_numbers, records
    )


def _records(run: Run, images: int) -> int:
    """Bytes of the raw records that are cached. Photographs are not counted: they come one by one, and take a part of the
    memory that there is."""
    options, side = run.options.dataset, run.data_source.spec.image_size
    return 0 if options.random_data or not options.dataset_cache or side is None else images * 3 * side**2


def check(run: Run, limits: Sequence[Limit], training: bool) -> list[str]:
    """A warning where a limit is below the prediction; OptionError where it is so far below that the run would be killed,
    unless --no-memory-check is given."""
    limit, hopeless = process_memory.find_exceeded_limit(run.memory, limits, run.cluster.neighbours)
    if limit is None:
        return []
    neighbours = run.cluster.neighbours
    shared = f" in each of the {neighbours} processes here" if limit.shared and neighbours > 1 else ""
    message = (
        f"{'training' if training else 'this'} needs about {gigabytes(run.memory.of_kind(limit.kind))} GB of "
        f"{_KINDS.get(limit.kind, 'host memory')}{shared}, and {limit.source} {gigabytes(limit.bytes)} GB: "
        f"{_remedy(run, limit, training)}"
    )
    if hopeless and run.options.device.memory_check:
        raise OptionError(f"{message}; --no-memory-check tries it all the same")
    return [f"warning: {message}"]


def _remedy(run: Run, limit: Limit, training: bool) -> str:
    """Options with which there is room, the cheapest first, each with its prediction."""
    least = replace(run.memory, activations=0, pictures=0, records=0)
    if process_memory.find_exceeded_limit(least, [limit], run.cluster.neighbours)[1]:
        alone = gigabytes(least.of_kind(limit.kind))
        return f"TensorFlow and the weights alone take {alone} GB; give more memory, or a smaller network"
    options = _without_cache(run, limit) + (_smaller_call(run, limit) if training else [])
    options += _smaller_validation(run, limit, training)
    if not options:
        return "no batch is small enough; give more memory, a smaller network, or a smaller --image-size"
    return "give " + ", or ".join([*options, "a smaller --image-size"])


def _without_cache(run: Run, limit: Limit) -> list[str]:
    """The option that keeps no records, if that leaves enough room."""
    need = replace(run.memory, records=0)
    return [f"--no-dataset-cache ({gigabytes(need.of_kind(limit.kind))} GB)"] if _fits(run, need, limit) else []


def _smaller_call(run: Run, limit: Limit) -> list[str]:
    """Options of training that take little enough for the same global batch; two of them where one alone does not."""
    plan = run.plan
    smaller = [replace(plan, micro_batch_size=size, accumulation=plan.accumulation * plan.micro_batch_size // size, fold=1)
               for size in _parts(plan.micro_batch_size) if size >= run.options.dataset.least_micro_batch]  # fmt: skip
    options = _first_fitting(run, limit, smaller)
    if not plan.options.enable_recomputation:
        options += _first_fitting(run, limit, [_recomputing(plan)])
    if plan.fold > 1:
        options += _first_fitting(run, limit, [replace(plan, fold=1)])
    return options or _first_fitting(run, limit, [_recomputing(other) for other in smaller])


def _recomputing(plan: ExecutionPlan) -> ExecutionPlan:
    return replace(plan, options=replace(plan.options, enable_recomputation=True))


def _first_fitting(run: Run, limit: Limit, others: list[ExecutionPlan]) -> list[str]:
    """The options that make the first of other plans for which there is room, and the bytes that it takes."""
    for other in others:
        need = of_training(run, other)
        if need.peak < run.memory.peak and _fits(run, need, limit):
            return [f"{_words(run, other)} ({gigabytes(need.of_kind(limit.kind))} GB)"]
    return []


def _words(run: Run, other: ExecutionPlan) -> str:
    """The options of which another plan comes."""
    words = []
    if other.micro_batch_size != run.plan.micro_batch_size:
        words.append(f"--micro-batch-size {other.micro_batch_size}")
        if run.options.training.global_batch_size is None:
            words.append(f"--gradient-accumulation-count {other.accumulation}")
    words += ["--fold 1"] * (other.fold != run.plan.fold or bool(words))
    return " ".join(words + ["--enable-recomputation"] * (other.options != run.plan.options))


def _smaller_validation(run: Run, limit: Limit, training: bool) -> list[str]:
    """The option of validation's micro-batch, if that is what takes the memory."""
    options, batch = run.options.checkpoint, run.validation_batch
    if options.predict or batch == 1 or (training and not (options.validation and options.valid_batch_size)):
        return []
    needs = {
        size: process_memory.inference(run.trace, run.plan.precision, size, run.image_numbers, run.memory.records)
        for size in [batch, *_parts(batch)]
    }
    if training and needs[batch].activations < run.memory.activations:
        return []
    fitting = [size for size, need in needs.items() if _fits(run, need, limit)]
    return [f"{'--valid-batch-size' if options.valid_batch_size else '--micro-batch-size'} {size}" for size in fitting[:1]]


def _fits(run: Run, need: HostMemory, limit: Limit) -> bool:
    return process_memory.find_exceeded_limit(need, [limit], run.cluster.neighbours)[0] is None


def _parts(batch: int) -> list[int]:
    """Smaller batches that divide it, the largest first."""
    small = [size for size in range(1, math.isqrt(batch) + 1) if batch % size == 0]
    return sorted({*small, *(batch // size for size in small)} - {batch}, reverse=True)
