"""Automatic stages: balanced by predicted time, then moved until they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from emulator.cost_model.constants import FITTED
from emulator.cost_model.kernels import SegmentCosts
from emulator.cost_model.prediction import predict
from emulator.cost_model.systems import MK2, System
from emulator.cost_model.workload import Workload
from emulator.plan import partition
from emulator.plan.partition import Stages

_ENOUGH = System(name="any", ipu=MK2, ipus=1 << 20)  # the memory and time of a stage do not depend on the size of the system


def balanced(workload: Workload) -> Workload:
    """Return the workload with as many stages, balanced by time. If they do not fit on Mk2 IPUs, move the cuts until they
    fit, or as long as the missing memory shrinks."""
    options = workload.plan.options
    filters = options.sharding_include_filter, options.sharding_exclude_filter
    costs = SegmentCosts(workload, MK2, FITTED)
    by_time = partition.automatic(workload.trace, len(workload.plan.stages), *filters, costs.totals(workload.proportion(0)))
    best = predict(restaged(workload, by_time), _ENOUGH, FITTED, costs)
    while not best.fits:
        moved = [each for each in neighbours(best.workload.plan.stages) if partition.allowed(each, *filters)]
        others = [predict(restaged(workload, stages), _ENOUGH, FITTED, costs) for stages in moved]
        roomiest = max(others, key=lambda other: other.room, default=best)
        if roomiest.room <= best.room:
            break
        best = roomiest
    return best.workload


def restaged(workload: Workload, stages: Stages) -> Workload:
    """Return the workload with other cuts."""
    return replace(workload, plan=replace(workload.plan, stages=stages))


def neighbours(stages: Sequence[Sequence[str]]) -> Iterator[Stages]:
    """Yield the stages with one cut moved by one or two segments."""
    names = tuple(name for stage in stages for name in stage)
    cuts = list(accumulate(len(stage) for stage in stages))[:-1]
    for k in range(len(cuts)):
        for move in (-1, 1, -2, 2):
            moved = [*cuts[:k], cuts[k] + move, *cuts[k + 1 :]]
            if all(first < last for first, last in pairwise((0, *moved, len(names)))):
                yield partition.cut(names, moved)
