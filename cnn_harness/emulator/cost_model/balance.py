"""Choose automatic stages: first balance their predicted time, then move the cuts until every stage fits into its IPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from cnn_harness.emulator.cost_model.constants import FITTED
from cnn_harness.emulator.cost_model.kernels import SegmentCosts
from cnn_harness.emulator.cost_model.prediction import predict
from cnn_harness.emulator.cost_model.systems import MK2, SYSTEMS
from cnn_harness.emulator.cost_model.workload import Workload
from cnn_harness.emulator.plan import partition
from cnn_harness.emulator.plan.partition import Stages

_ENOUGH = replace(
    SYSTEMS["POD256"], name="any", devices=1 << 20
)  # the size of the system changes neither memory nor time of a stage.


def balanced(workload: Workload) -> Workload:
    """Return the workload with the same number of stages, balanced by time. If a stage does not fit into a Mk2 IPU, move the
    cuts until all stages fit, or until no move saves memory."""
    options = workload.plan.options
    filters = options.sharding_include_filter, options.sharding_exclude_filter
    costs = SegmentCosts(workload, MK2, FITTED)
    seconds = costs.totals(workload.proportion(0))
    by_time = partition.automatic(workload.network, len(workload.plan.stages), *filters, seconds)
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
    """Return the workload with other stages."""
    return replace(workload, plan=replace(workload.plan, stages=stages))


def neighbours(stages: Sequence[Sequence[str]]) -> Iterator[Stages]:
    """Yield stages in which one cut is moved by one or two segments (blocks of layers)."""
    names = tuple(name for stage in stages for name in stage)
    cuts = list(accumulate(len(stage) for stage in stages))[:-1]
    for k in range(len(cuts)):
        for move in (-1, 1, -2, 2):
            moved = [*cuts[:k], cuts[k] + move, *cuts[k + 1 :]]
            if all(first < last for first, last in pairwise((0, *moved, len(names)))):
                yield partition.cut(names, moved)
