"""Whether this machine's memory holds a run: what it needs, what there is, and what to turn where that is too little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from base.errors import OptionError
from base.host_limits import ADDRESSES, DATA, Limit
from Datasets._spec import DataSpec
from emulator.plan import memory_model
from emulator.plan.memory_model import HostMemory, gigabytes
from emulator.plan.plan import ExecutionPlan
from emulator.plan.trace import Trace
from harness.options.rules import SLOTS, named_by
from harness.options.sections import RunOptions

if TYPE_CHECKING:
    from harness.run.run import Run

_KINDS = {ADDRESSES: "address space", DATA: "writable memory"}


def of_training(options: RunOptions, spec: DataSpec, trace: Trace, plan: ExecutionPlan, picture: int) -> HostMemory:
    """What training takes, its validation included; `picture`: numbers in one."""
    wanted = options.training.variable_filter
    validated = (options.checkpoint.valid_batch_size or plan.micro_batch) if options.checkpoint.validation else 0
    return memory_model.training(
        trace,
        plan,
        slots=len(SLOTS[options.training.optimiser]),
        picture=picture,
        records=_records(options, spec, spec.train_images + (spec.validation_images if validated else 0)),
        validated=validated,
        trained=named_by(wanted) if wanted else lambda name: True,
    )


def of_validation(options: RunOptions, spec: DataSpec, trace: Trace, plan: ExecutionPlan, picture: int) -> HostMemory:
    """What validating, serving or naming photographs takes."""
    batch = 1 if options.checkpoint.predict else options.checkpoint.valid_batch_size or plan.micro_batch
    records = 0 if options.checkpoint.predict else _records(options, spec, spec.validation_images)
    return memory_model.inference(trace, plan.precision, batch, picture, records)


def _records(options: RunOptions, spec: DataSpec, images: int) -> int:
    """Bytes of raw records that are kept at once. Those of photographs are not counted: they come one by one, and take a
    part of the memory that there is."""
    made = options.dataset.generated_data or options.dataset.synthetic_data
    if made or not options.dataset.dataset_cache or spec.image_size is None:
        return 0
    return images * 3 * spec.image_size**2


def check(run: Run, limits: Sequence[Limit], training: bool) -> list[str]:
    """A warning where a limit is below the prediction; OptionError where it is so far below that the run would be killed,
    unless --no-memory-check is given."""
    limit, hopeless = memory_model.refused(run.memory, limits, run.cluster.neighbours)
    if limit is None:
        return []
    neighbours = run.cluster.neighbours
    shared = f" in each of the {neighbours} processes here" if limit.shared and neighbours > 1 else ""
    said = (
        f"{'training' if training else 'this'} needs about {gigabytes(run.memory.of_kind(limit.kind))} GB of "
        f"{_KINDS.get(limit.kind, 'host memory')}{shared}, and {limit.told} {gigabytes(limit.bytes)} GB: "
        f"{_remedy(run, limit, training)}"
    )
    if hopeless and run.options.device.memory_check:
        raise OptionError(f"{said}; --no-memory-check tries it all the same")
    return [f"warning: {said}"]


def _remedy(run: Run, limit: Limit, training: bool) -> str:
    """What to turn so that there is room, what costs least first, with what is predicted then."""
    least = replace(run.memory, activations=0, pictures=0)
    if memory_model.refused(least, [limit], run.cluster.neighbours)[1]:
        alone = gigabytes(least.of_kind(limit.kind))
        return f"TensorFlow and the weights alone take {alone} GB; give more memory, or a smaller network"
    turned = _smaller_call(run, limit) if training else []
    turned += _smaller_validation(run, limit, training)
    if not turned:
        return "no batch is small enough; give more memory, a smaller network, or a smaller --image-size"
    return "give " + ", or ".join([*turned, "a smaller --image-size"])


def _smaller_call(run: Run, limit: Limit) -> list[str]:
    """Options of training that take little enough for the same global batch; two of them where one alone does not."""
    plan = run.plan
    smaller = [replace(plan, micro_batch=size, accumulation=plan.accumulation * plan.micro_batch // size, fold=1)
               for size in _parts(plan.micro_batch)]  # fmt: skip
    found = _first_fitting(run, limit, smaller)
    if not plan.options.enable_recomputation:
        found += _first_fitting(run, limit, [_recomputing(plan)])
    if plan.fold > 1:
        found += _first_fitting(run, limit, [replace(plan, fold=1)])
    return found or _first_fitting(run, limit, [_recomputing(other) for other in smaller])


def _recomputing(plan: ExecutionPlan) -> ExecutionPlan:
    return replace(plan, options=replace(plan.options, enable_recomputation=True))


def _first_fitting(run: Run, limit: Limit, others: list[ExecutionPlan]) -> list[str]:
    """The options that make the first of other plans for which there is room, and what it takes."""
    for other in others:
        need = run.memory_of(other)
        if need.peak < run.memory.peak and _fits(run, need, limit):
            return [f"{_words(run, other)} ({gigabytes(need.of_kind(limit.kind))} GB)"]
    return []


def _words(run: Run, other: ExecutionPlan) -> str:
    """The options of which another plan comes."""
    words = []
    if other.micro_batch != run.plan.micro_batch:
        words.append(f"--micro-batch-size {other.micro_batch}")
        if run.options.training.global_batch_size is None:
            words.append(f"--gradient-accumulation-count {other.accumulation}")
    words += ["--fold 1"] * (other.fold != run.plan.fold or bool(words))
    words += ["--enable-recomputation"] * (other.options != run.plan.options)
    return " ".join(words)


def _smaller_validation(run: Run, limit: Limit, training: bool) -> list[str]:
    """The option of validation's micro-batch, if that is what takes the memory."""
    options, batch = run.options.checkpoint, run.validation_batch
    if options.predict or batch == 1 or (training and not (options.validation and options.valid_batch_size)):
        return []
    needs = {
        size: memory_model.inference(run.trace, run.plan.precision, size, run.picture) for size in [batch, *_parts(batch)]
    }
    if training and needs[batch].activations < run.memory.activations:
        return []
    fitting = [size for size, need in needs.items() if _fits(run, need, limit)]
    return [f"{'--valid-batch-size' if options.valid_batch_size else '--micro-batch-size'} {size}" for size in fitting[:1]]


def _fits(run: Run, need: HostMemory, limit: Limit) -> bool:
    return memory_model.refused(need, [limit], run.cluster.neighbours)[0] is None


def _parts(batch: int) -> list[int]:
    """Smaller batches that divide it, the largest first."""
    small = [size for size in range(1, math.isqrt(batch) + 1) if batch % size == 0]
    return sorted({*small, *(batch // size for size in small)} - {batch}, reverse=True)
