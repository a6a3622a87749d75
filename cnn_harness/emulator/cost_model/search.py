"""Search for the fastest plan that fits, for a network, a global batch and a system.

The search tries every combination of stages, replicas, micro-batch, recomputation, schedule and memory proportion, with
stages of equal predicted time. Then it moves the cuts of the fastest plans by one or two segments (blocks of layers) as long
as that saves time. The search also tries the given plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cnn_harness.emulator.cost_model import variants
from cnn_harness.emulator.cost_model.balance import neighbours, restaged
from cnn_harness.emulator.cost_model.constants import Constants
from cnn_harness.emulator.cost_model.kernels import SegmentCosts
from cnn_harness.emulator.cost_model.prediction import Prediction, predict
from cnn_harness.emulator.cost_model.systems import System
from cnn_harness.emulator.cost_model.workload import DEFAULT_PROPORTION, Workload
from cnn_harness.emulator.plan import partition
from cnn_harness.emulator.plan.partition import PartitionError
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.plan.schedules import ON_IPUS

PROPORTIONS = (DEFAULT_PROPORTION, 0.4, 0.2, 0.1)  # smaller proportions are slower, so the first that fits is the fastest.
LARGEST_MICRO_BATCH = 128


@dataclass(frozen=True)
class Found:
    """The result of a search. `frontier` has the fastest plan that fits for each number of stages and micro-batch size,
    fastest first. `looked_at` is the number of plans that were tried."""

    frontier: tuple[Prediction, ...]
    looked_at: int

    @property
    def best(self) -> Prediction | None:
        """The fastest plan, or None if no plan fits."""
        return self.frontier[0] if self.frontier else None


def search(workload: Workload, system: System) -> Found:
    """Return the fastest plans for the workload's global batch. A plan may leave IPUs of the system idle."""
    looked_at, frontier, constants = 1, Frontier(), system.constants
    frontier.add(predict(workload, system, constants))  # _combinations has no plans with several stages on one IPU.
    for candidates in _combinations(workload, system, constants):
        for prediction in candidates:
            looked_at += 1
            if frontier.add(prediction):
                break  # smaller memory proportions are slower.
    for prediction in frontier.ranked:
        looked_at += _moved_cuts(prediction, frontier)
    return Found(tuple(frontier.ranked), looked_at)


class Frontier:
    """The fastest plan for each number of stages, number of IPUs per replica and micro-batch size."""

    def __init__(self) -> None:
        self._fastest: dict[tuple[int, int, int], Prediction] = {}

    def add(self, prediction: Prediction) -> bool:
        """Keep a plan if it fits and is the fastest of its kind. Return whether it fits."""
        plan = prediction.workload.plan
        kind = len(plan.stages), plan.options.shards, plan.micro_batch_size
        if prediction.fits and (kind not in self._fastest or throughput(prediction) > throughput(self._fastest[kind])):
            self._fastest[kind] = prediction
        return prediction.fits

    @property
    def ranked(self) -> list[Prediction]:
        """The plans, fastest first. A plan on fewer IPUs comes first if it is at most 0.5 % slower than the fastest."""
        ranked = sorted(self._fastest.values(), key=throughput, reverse=True)
        best = min((each for each in ranked if throughput(each) > 0.995 * throughput(ranked[0])), key=_ipus, default=None)
        return ranked if best is None else [best, *(each for each in ranked if each is not best)]


def _ipus(prediction: Prediction) -> int:
    return prediction.workload.plan.ipus


def throughput(prediction: Prediction) -> float:
    """Return the predicted images per second."""
    return prediction.timing.images_per_second


def _combinations(workload: Workload, system: System, constants: Constants) -> Iterator[Iterator[Prediction]]:
    """Yield for each combination an iterator over its predictions, with decreasing memory proportions."""
    plan = workload.plan
    given = plan.options.available_memory_proportion[:1]
    for micro_batch_size in _micro_batches(workload):
        sized = replace(workload, plan=replace(plan, micro_batch_size=micro_batch_size))
        costs = SegmentCosts(sized, system.device, constants)
        count = 1
        while count <= min(system.devices, variants.LARGEST_PIPELINE):
            replicas = _replicas(plan, micro_batch_size, system.devices // count)
            if replicas:
                try:
                    stages = partition.automatic(workload.network, count, costs=costs.totals(sized.proportion(0)))
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
    """Return the largest number of replicas up to `most` that divides the global batch, or 0 if no number does."""
    divisors = (n for n in range(most, 0, -1) if plan.global_batch % (micro_batch_size * n) == 0)
    return next((n for n in divisors if n % plan.options.BN_span == 0), 0)


def _schedules(stages: int) -> list[str]:
    """Return the schedules to try, of those in Graphcore's SDK. With several stages, each on an IPU, Sequential is never the
    fastest."""
    return [name for name in ON_IPUS if name != "Sequential"] if stages > 1 else ["Sequential"]


def keeps_micro_batch(workload: Workload) -> bool:
    """Return whether the micro-batch size must stay, because batch norm computes statistics over a micro-batch."""
    return any(not variable.trainable for variable in workload.network.variables)


def _micro_batches(workload: Workload) -> list[int]:
    """Return the micro-batch sizes to try."""
    plan = workload.plan
    if keeps_micro_batch(workload):
        return [plan.micro_batch_size]
    most = min(LARGEST_MICRO_BATCH, plan.global_batch)
    return [size for size in range(workload.least_micro_batch, most + 1) if plan.global_batch % size == 0]


def _moved_cuts(prediction: Prediction, frontier: Frontier) -> int:
    """Move one cut at a time, as long as the plan gets faster and fits. Return the number of plans that were tried."""
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
