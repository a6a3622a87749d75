"""List the steps of one micro-batch on each IPU, with the time and memory that the plan counts for them.

An IPU computes in supersteps (bulk-synchronous parallel, Valiant 1990): its tiles compute on their own memory, wait until
all are done, and exchange values. A launch of a compute set is a superstep. A step is a block of layers in one pass. Times
of steps are parts of `Timing.cells`, so they sum to those of the stage. Memory is that of the fullest moment of a step, so
the largest memory is that of the IPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple

from cnn_harness.emulator.cost_model import memory
from cnn_harness.emulator.cost_model.kernels import Cycles
from cnn_harness.emulator.cost_model.memory import IpuMemory
from cnn_harness.emulator.cost_model.memory_constants import MEMORY
from cnn_harness.emulator.cost_model.prediction import Prediction
from cnn_harness.emulator.cost_model.throughput import Cell

FORWARD, RECOMPUTED, BACKWARD = "forward", "recomputed", "backward"


class Phases(NamedTuple):
    """The seconds of supersteps by phase. Synchronisation includes the start of the kernels."""

    compute: float
    exchange: float
    synchronisation: float

    @classmethod
    def of(cls, cell: Cell) -> Phases:
        """Return the phases of some cycles. Kernels of products and accesses to the memory of a tile are compute."""
        parts = cell.parts
        return cls(parts["matrix"] + parts["elements"], parts["exchange"], parts["launches"])


@dataclass(frozen=True, kw_only=True)
class Step:
    """A block of layers in a pass: forward, recomputed (forward again) or backward.

    `memory` is None for a forward pass that is computed again. Such a pass keeps less, so the plan does not count it.
    """

    stage: int
    block: str
    step: str
    supersteps: int
    seconds: Phases
    memory: IpuMemory | None

    def values(self) -> dict[str, Any]:
        """Return the values for JSON, in seconds and bytes."""
        own = {"stage": self.stage, "block": self.block, "step": self.step, "supersteps": self.supersteps}
        return {**own, "seconds": self.seconds._asdict(), "memory": self.memory and asdict(self.memory)}


def steps(prediction: Prediction) -> list[list[Step]]:
    """Return the steps of each IPU of a replica, in the order in which a micro-batch runs."""
    return [list(_of_ipu(prediction, ipu)) for ipu in range(len(prediction.memories))]


def _of_ipu(prediction: Prediction, ipu: int) -> Iterator[Step]:
    workload, timing, sizes = prediction.workload, prediction.timing, prediction.sizes[ipu]
    stages = workload.stages_by_ipu[ipu]
    moments = memory.moments(workload, prediction.system.device, stages)
    fullest = {
        key: sizes.at([moment for _, _, moment in group], MEMORY)
        for key, group in groupby(moments, lambda each: (each[0], each[1].segment))
    }  # A block without operations has no moment.

    def of(stage: int, block: str, step: str, counted: bool = True) -> Step:
        kinds = slice(1, 3) if step == BACKWARD else slice(1)
        return Step(
            stage=stage, block=block, step=step,
            supersteps=int(sum(work.launches for work in timing.costs.work(block)[kinds])),
            seconds=Phases.of(timing.cell(sum(timing.segment_cycles(stage, block)[kinds], Cycles()))),
            memory=fullest[stage, block] if counted else None,
        )  # fmt: skip

    blocks = {stage: [block for block in workload.plan.stages[stage] if (stage, block) in fullest] for stage in stages}
    for stage in stages:
        yield from (of(stage, block, FORWARD, not workload.recomputes(stage)) for block in blocks[stage])
    for stage in reversed(stages) if workload.training else ():
        # A single stage recomputes one block at a time, and each of several stages all its blocks.
        parts = [[block] for block in blocks[stage]] if len(workload.plan.stages) == 1 else [blocks[stage]]
        for part in reversed(parts):
            if workload.recomputes(stage):
                yield from (of(stage, block, RECOMPUTED) for block in part)
            yield from (of(stage, block, BACKWARD) for block in reversed(part))
