"""Measured times of the cells of one weight update. A cell is one action of the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnn_harness.emulator.plan.schedules import Action

GRAPH, SESSION, OPTIMISED = "graph", "session and initial weights", "optimisation of the graph"
LOADED, READY = "loading of the optimised graph", "executors"


@dataclass(frozen=True)
class PhaseEnd:
    """The end of a compilation phase. A phase begins when the previous phase ends."""

    phase: str
    at: float  # time.perf_counter gives this time in seconds.
    note: str = ""


@dataclass(frozen=True)
class CellTiming:
    """The times at which a cell began and ended, in seconds of the machine's clock."""

    action: Action
    begin: float
    end: float


def idle_fraction(cells: Sequence[CellTiming], devices: int) -> float:
    """Return the fraction of time that the devices were idle, from the begin of the first cell to the end of the last
    cell."""
    length = max((cell.end for cell in cells), default=0.0) - min((cell.begin for cell in cells), default=0.0)
    return max(0.0, 1 - sum(cell.end - cell.begin for cell in cells) / (devices * length)) if length > 0 else 0.0


def busy_at_once(cells: Sequence[CellTiming]) -> int:
    """Return the largest number of stages that worked at the same time."""
    begins = [(cell.begin, 1, cell.action.stage) for cell in cells]
    changes = sorted(begins + [(cell.end, -1, cell.action.stage) for cell in cells])
    open_cells: dict[int, int] = {}
    most = 0
    for _, change, stage in changes:
        open_cells[stage] = open_cells.get(stage, 0) + change
        most = max(most, sum(count > 0 for count in open_cells.values()))
    return most
