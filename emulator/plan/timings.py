"""Measured times of the cells of one weight update; no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emulator.plan.schedules import Action

GRAPH, SESSION, OPTIMISED = "graph", "session and initial weights", "optimisation of the graph"
LOADED, READY = "loading of the optimised graph", "executors"


@dataclass(frozen=True)
class PhaseEnd:
    """The end of a compilation phase. A phase begins at the end of the previous one."""

    phase: str
    at: float  # seconds of time.perf_counter
    note: str = ""


@dataclass(frozen=True)
class CellTiming:
    """A cell with the times at which it began and ended, in seconds of the machine's clock."""

    action: Action
    begin: float
    end: float


def order(cells: Sequence[CellTiming], stage: int) -> tuple[Action, ...]:
    """Return a stage's actions in the order in which they began."""
    own = [cell for cell in cells if cell.action.stage == stage]
    return tuple(cell.action for cell in sorted(own, key=lambda cell: (cell.begin, cell.end)))


def idle_fraction(cells: Sequence[CellTiming], stages: int) -> float:
    """Return the fraction of the stages' time that was idle, between the first begin and the last end of all cells."""
    length = max((cell.end for cell in cells), default=0.0) - min((cell.begin for cell in cells), default=0.0)
    return max(0.0, 1 - sum(cell.end - cell.begin for cell in cells) / (stages * length)) if length > 0 else 0.0


def busy_at_once(cells: Sequence[CellTiming]) -> int:
    """Return the largest number of stages that were busy at the same time."""
    begins = [(cell.begin, 1, cell.action.stage) for cell in cells]
    changes = sorted(begins + [(cell.end, -1, cell.action.stage) for cell in cells])
    open_cells: dict[int, int] = {}
    most = 0
    for _, change, stage in changes:
        open_cells[stage] = open_cells.get(stage, 0) + change
        most = max(most, sum(count > 0 for count in open_cells.values()))
    return most
