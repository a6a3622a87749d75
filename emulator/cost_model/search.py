"""Searches for the fastest plan that fits: stages, replicas, micro-batch, accumulation, splits, recomputation, schedule and
memory proportion, for a network, a global batch and a system.

Every combination is planned with stages balanced by predicted time. Then the cuts of the fastest plans are moved, segment by
segment, while that helps. The given plan takes part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from emulator.cost_model import variants
from emulator.cost_model.balance import neighbours, restaged
from emulator.cost_model.constants import FITTED, Constants
from emulator.cost_model.kernels import SegmentCosts
from emulator.cost_model.prediction import Prediction, predict
from emulator.cost_model.systems import System
from emulator.cost_model.workload import DEFAULT_PROPORTION, Workload
from emulator.plan import partition
from emulator.plan.partition import PartitionError
from emulator.plan.plan import ExecutionPlan
from emulator.plan.schedules import SCHEDULES

PROPORTIONS = (DEFAULT_PROPORTION, 0.4, 0.2, 0.1)  # in this order; the first that fits is the fastest
LARGEST_MICRO_BATCH = 128


@dataclass(frozen=True)
class Found:
    """The search's result. `frontier`: the fastest plan for each number of stages and micro-batch that fits; the fastest
    comes first."""

    frontier: tuple[Prediction, ...]
    looked_at: int

    @property
    def best(self) -> Prediction | None:
        """The fastest plan; None if nothing fits."""
        return self.frontier[0] if self.frontier else None


def search(workload: Workload, system: System, constants: Constants = FITTED) -> Found:
    """Search for the fastest plan for the workload's global batch, on as many IPUs of the system as the batch fills."""
    looked_at, frontier = 1, Frontier()
    frontier.add(predict(workload, system, constants))  # the search does not try several stages on one IPU
    for candidates in _combinations(workload, system, constants):
        for prediction in candidates:
            looked_at += 1
            if frontier.add(prediction):
                break  # smaller proportions are slower
    for prediction in frontier.ranked:
        looked_at += _moved_cuts(prediction, frontier)
    return Found(tuple(frontier.ranked), looked_at)


class Frontier:
    """The fastest plan for each number of stages, IPUs per replica and micro-batch."""

    def __init__(self) -> None:
        self._fastest: dict[tuple[int, int, int], Prediction] = {}

    def add(self, prediction: Prediction) -> bool:
        """Add a plan if it is the fastest of its kind; return whether it fits."""
        plan = prediction.workload.plan
        kind = len(plan.stages), plan.options.shards, plan.micro_batch_size
        if prediction.fits and (kind not in self._fastest or throughput(prediction) > throughput(self._fastest[kind])):
            self._fastest[kind] = prediction
        return prediction.fits

    @property
    def ranked(self) -> list[Prediction]:
        """The plans, fastest first. A plan on fewer IPUs comes first if it is at most half a per cent slower."""
        ranked = sorted(self._fastest.values(), key=throughput, reverse=True)
        best = min((each for each in ranked if throughput(each) > 0.995 * throughput(ranked[0])), key=_ipus, default=None)
        return ranked if best is None else [best, *(each for each in ranked if each is not best)]


def _ipus(prediction: Prediction) -> int:
    return prediction.workload.plan.ipus


def throughput(prediction: Prediction) -> float:
    """Return the images per second."""
    return prediction.timing.images_per_second


def _combinations(workload: Workload, system: System, constants: Constants) -> Iterator[Iterator[Prediction]]:
    """Yield, for each combination, its predictions with decreasing temporary memory."""
    plan = workload.plan
    given = plan.options.available_memory_proportion[:1]
    for micro_batch_size in _micro_batches(workload):
        sized = replace(workload, plan=replace(plan, micro_batch_size=micro_batch_size))
        costs = SegmentCosts(sized, system.ipu, constants)
        count = 1
        while count <= min(system.ipus, variants.LARGEST_PIPELINE):
            replicas = _replicas(plan, micro_batch_size, system.ipus // count)
            if replicas:
                try:
                    stages = partition.automatic(workload.trace, count, costs=costs.totals(sized.proportion(0)))
                except PartitionError:
                    break
                for recomputation in (False, True):
                    for schedule in _schedules(count):
                        yield (
                            predict(
                                variants.staged(
                                    sized, stages, micro_batch_size=micro_batch_size, replicas=replicas, schedule=schedule,
                                    accumulation=plan.global_batch // (micro_batch_size * replicas),
                                    recomputation=recomputation, proportion=proportion,
                                ), system, constants, costs,
                            ) for proportion in dict.fromkeys((*given, *PROPORTIONS))
                        )  # fmt: skip
            count *= 2


def _replicas(plan: ExecutionPlan, micro_batch_size: int, most: int) -> int:
    """Return the largest number of replicas up to `most` that divides the global batch; 0 if there is none."""
    divisors = (n for n in range(most, 0, -1) if plan.global_batch % (micro_batch_size * n) == 0)
    return next((n for n in divisors if n % plan.options.BN_span == 0), 0)


def _schedules(stages: int) -> list[str]:
    """Return the schedules to try. Sequential is never better than the others if each stage has an IPU; it is the only one
    otherwise."""
    return [name for name in SCHEDULES if name != "Sequential"] if stages > 1 else ["Sequential"]


def keeps_micro_batch(workload: Workload) -> bool:
    """Return whether the micro-batch must stay, because batch norm computes its statistics over one."""
    return any(not variable.trainable for variable in workload.trace.variables)


def _micro_batches(workload: Workload) -> list[int]:
    """Return the micro-batch sizes to try."""
    plan = workload.plan
    if keeps_micro_batch(workload):
        return [plan.micro_batch_size]
    most = min(LARGEST_MICRO_BATCH, plan.global_batch)
    return [size for size in range(workload.least_micro_batch, most + 1) if plan.global_batch % size == 0]


def _moved_cuts(prediction: Prediction, frontier: Frontier) -> int:
    """Move one cut at a time, as long as the plan gets faster and fits; return the number of plans that were tried."""
    tried, better = 0, True
    while better:
        better = False
        for stages in neighbours(prediction.workload.plan.stages):
            tried += 1
            moved = restaged(prediction.workload, stages)
            other = predict(moved, prediction.system, prediction.timing.constants, prediction.timing.costs)
            if throughput(other) > throughput(prediction) * (1 + 1e-9) and frontier.add(other):
                prediction, better = other, True
                break
    return tried
