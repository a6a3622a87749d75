"""Pipeline schedules as tables of actions: which stage works on which micro-batch at which clock.

A timeline has one row for each clock, and each row has one slot for each stage. A slot holds the actions of the stage in
that clock, in order; it is empty if the stage waits. Charts, idle time and the executor's order (`waits`) are computed from
the timeline. A clock has no length in seconds.

The planner counts one replica's micro-batches: an update has as many as the accumulation count. For the executor, a
"micro-batch" of the timeline is a pass: several micro-batches if they are folded or if replicas share batch norm. An update
of a process has `ExecutionPlan.passes_per_update` passes.

Letters: N is the number of stages, A the number of micro-batches; i is a micro-batch, j a stage and k a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from cnn_harness.base.errors import UserError

FORWARD, BACKWARD = "F", "B"
MAX_CLOCKS = 20  # longer timelines are drawn without their middle.


class ScheduleError(UserError):
    """The schedule is unknown, or its timeline does not train the model. The message may end with a drawing."""


@dataclass(frozen=True, slots=True)
class Action:
    """The forward (F) or backward (B) pass of one micro-batch in one stage, written as `<stage><kind><micro-batch>`."""

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Slot: TypeAlias = tuple[Action, ...]
Row: TypeAlias = tuple[Slot, ...]
Timeline: TypeAlias = tuple[Row, ...]
Clock: TypeAlias = Callable[[int, int], int]  # (micro-batch i, stage j) -> clock k
Schedule: TypeAlias = Callable[[int, int], Timeline]  # (stages N, micro-batches A) -> timeline


# --- the schedules ---------------------------------------------------------------------------------------------------


def grouped(stages: int, micro_batches: int) -> Timeline:
    """Return the Grouped schedule: a forward and a backward in every clock. Stage j holds 2(N-1-j) + 1 micro-batches.

    clock    0    1        2        3        4        5
    stage 0  0F0  0F1      0F2+0B0  0F3+0B1  0B2      0B3
    stage 1  .    1F0+1B0  1F1+1B1  1F2+1B2  1F3+1B3  .
    """
    return from_clocks(stages, micro_batches, lambda i, j: i + j, lambda i, j: i + 2 * (stages - 1) - j)


def one_forward_one_backward(stages: int, micro_batches: int) -> Timeline:
    """Return the Interleaved schedule, also called 1F1B: one forward and one backward in turn.

    Stage j holds at most min(N - j, A) micro-batches, about half as many as in Grouped. A stage first fills up, then takes
    another micro-batch after each backward. Megatron's interleaved schedule is a different one, with virtual stages.

    clock    0    1    2    3    4    5    6    7    8    9
    stage 0  0F0  0F1  .    0B0  0F2  0B1  0F3  0B2  .    0B3
    stage 1  .    1F0  1B0  1F1  1B1  1F2  1B2  1F3  1B3  .
    """
    forward = lambda i, j: i + j if i < stages - j else 2 * i + j  # noqa: E731
    return from_clocks(stages, micro_batches, forward, lambda i, j: 2 * i + 2 * stages - 1 - j)


def sequential(stages: int, micro_batches: int) -> Timeline:
    """Return the Sequential schedule: one stage works at a time, on one micro-batch after another. Stages that share a
    device run in this order.

    clock    0    1    2    3    4    5    6    7
    stage 0  0F0  .    .    0B0  0F1  .    .    0B1
    stage 1  .    1F0  1B0  .    .    1F1  1B1  .
    """
    return from_clocks(stages, micro_batches, lambda i, j: 2 * stages * i + j, lambda i, j: 2 * stages * (i + 1) - 1 - j)


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {"Grouped": grouped, "Interleaved": one_forward_one_backward, "Sequential": sequential}
)


def build(schedule: str, stages: int, micro_batches: int) -> Timeline:
    """Return the validated timeline of the schedule with a name."""
    if schedule not in SCHEDULES:
        raise ScheduleError(f"no pipeline schedule '{schedule}'; there are: {', '.join(SCHEDULES)}")
    timeline = SCHEDULES[schedule](stages, micro_batches)
    validate(timeline, stages, micro_batches)
    return timeline


def from_clocks(stages: int, micro_batches: int, forward: Clock, backward: Clock) -> Timeline:
    """Return the timeline in which `forward` and `backward` give the clock of each action. In a slot, the forward comes
    first."""
    if stages < 1 or micro_batches < 1:
        raise ScheduleError(f"pipeline of {stages} stages and {micro_batches} micro-batches: both must be at least 1")
    last = max(backward(micro_batches - 1, j) for j in range(stages))
    rows: list[list[Slot]] = [[()] * stages for _ in range(last + 1)]
    for kind, clock in ((FORWARD, forward), (BACKWARD, backward)):
        for j in range(stages):
            for i in range(micro_batches):
                rows[clock(i, j)][j] += (Action(j, kind, i),)
    return tuple(tuple(row) for row in rows)


# --- facts -----------------------------------------------------------------------------------------------------------


def order(timeline: Timeline, stage: int) -> tuple[Action, ...]:
    """Return a stage's actions in order."""
    return tuple(action for row in timeline for action in row[stage])


def peak_in_flight(timeline: Timeline, stage: int) -> int:
    """Return the largest number of micro-batches that the stage holds between their forward and backward."""
    held = peak = 0
    for action in order(timeline, stage):
        held += 1 if action.kind == FORWARD else -1
        peak = max(peak, held)
    return peak


class Waits(NamedTuple):
    """The numbers of actions of the other kind that each action of a stage waits for, in addition to its data.

    `forward[i]` is the number of backwards of the stage between its forwards i - 1 and i. `backward[i]` is the number of
    forwards between its backwards i - 1 and i.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]


def waits(timeline: Timeline, stage: int) -> Waits:
    """Return the order of a stage's actions as the counts that the executor waits for.

    Raise ScheduleError if forwards or backwards are not in the order of the micro-batches, in which gradients are added.
    """
    counts: dict[str, list[int]] = {FORWARD: [], BACKWARD: []}
    counted = {FORWARD: 0, BACKWARD: 0}
    for action in order(timeline, stage):
        own, other = counts[action.kind], counts[BACKWARD if action.kind == FORWARD else FORWARD]
        if action.micro_batch != len(own):
            raise ScheduleError(
                f"stage {stage} does {action} before {Action(stage, action.kind, len(own))}: the micro-batches must come in "
                f"order, forward and backward, because gradients are added in that order",
                render(timeline),
            )
        own.append(len(other) - counted[action.kind])
        counted[action.kind] = len(other)
    return Waits(tuple(counts[FORWARD]), tuple(counts[BACKWARD]))


def max_in_flight(schedule: str, stages: int, micro_batches: int) -> tuple[int, ...]:
    """Return the largest number of micro-batches that each stage holds at once. Raise ScheduleError for a schedule that
    cannot run.

    Do not build a long timeline if two shorter timelines have the same numbers.
    """
    few = 4 * stages  # more micro-batches only repeat the middle of a schedule.
    if micro_batches > few + 1:
        short, longer = (max_in_flight(schedule, stages, count) for count in (few, few + 1))
        if short == longer:
            return short
    timeline = build(schedule, stages, micro_batches)
    for j in range(stages):
        waits(timeline, j)
    return tuple(peak_in_flight(timeline, j) for j in range(stages))


def idle_fraction(timeline: Timeline) -> float:
    """Return the fraction of the stages' time that is idle, if every action takes the same time.

    In Interleaved and Sequential, a slot has room for one action. In Grouped, it has room for a forward and a backward, so a
    slot with one action is half idle.
    """
    slots = [len(slot) for row in timeline for slot in row]
    places = len(slots) * max(slots, default=0)
    return 1 - sum(slots) / places if places else 0.0


def scheduled_idle_fraction(schedule: str, stages: int, micro_batches: int) -> float:
    """Return the idle fraction of a schedule without building a long timeline. After the ramp-up, every micro-batch adds the
    same number of clocks."""
    few = 4 * stages
    if micro_batches <= few + 1:
        return idle_fraction(build(schedule, stages, micro_batches))
    short, longer = (build(schedule, stages, count) for count in (few, few + 1))
    clocks = len(short) + (micro_batches - few) * (len(longer) - len(short))
    return 1 - 2 * micro_batches / (clocks * max(len(slot) for row in short for slot in row))


def phases(timeline: Timeline) -> tuple[range, range, range]:
    """Return the clocks of the ramp-up, the main phase and the ramp-down of a timeline.

    The ramp-up ends before the first backward on stage 0, and the main phase with the last forward on stage 0. The main
    phase is empty if there are too few micro-batches to fill the pipeline.
    """
    entering = [k for k, row in enumerate(timeline) for slot in row[:1] for action in slot if action.kind == FORWARD]
    leaving = [k for k, row in enumerate(timeline) for slot in row[:1] for action in slot if action.kind == BACKWARD]
    stop = entering[-1] + 1 if entering else 0
    start = min(leaving[0], stop) if leaving else stop
    return range(start), range(start, stop), range(stop, len(timeline))


# --- checks and drawings ---------------------------------------------------------------------------------------------


def validate(timeline: Timeline, stages: int, micro_batches: int) -> None:
    """Raise ScheduleError, with an arrow at the first bad clock, unless the timeline is valid.

    Every stage must do each micro-batch's forward once and its backward once, after everything they need, with at most one
    action of a kind in a clock.
    """
    done: dict[Action, int] = {}  # -> clock
    for k, row in enumerate(timeline):
        if len(row) != stages:
            raise _refusal(timeline, k, f"the row has {len(row)} slots for {stages} stages")
        for j, slot in enumerate(row):
            for place, action in enumerate(slot):
                fault = _fault(action, k, j, done, stages, micro_batches)
                if fault is None and any(other.kind == action.kind for other in slot[:place]):
                    fault = "the stage does another action of this kind in the same clock"
                if fault:
                    raise _refusal(timeline, k, f"{action}: {fault}")
                done[action] = k
    if len(done) != 2 * stages * micro_batches:
        every = (Action(j, kind, i) for kind in (FORWARD, BACKWARD) for i in range(micro_batches) for j in range(stages))
        missing = next(action for action in every if action not in done)
        raise _refusal(timeline, len(timeline) - 1, f"the timeline ends without {missing}")


def dependencies(action: Action, stages: int) -> tuple[Action, ...]:
    """Return the actions that must be done before an action. A forward needs the forward of the previous stage. A backward
    needs the forward of its own stage and the backward of the next stage."""
    i, j = action.micro_batch, action.stage
    if action.kind == FORWARD:
        return (Action(j - 1, FORWARD, i),) if j > 0 else ()
    own = Action(j, FORWARD, i)
    return (own, Action(j + 1, BACKWARD, i)) if j + 1 < stages else (own,)


def _fault(action: Action, k: int, j: int, done: Mapping[Action, int], stages: int, micro_batches: int) -> str | None:
    """Return the error in an action of stage j at clock k, or None. `done` has the clocks of earlier actions."""
    if action.stage != j:
        return f"is in the slot of stage {j}"
    if action.kind not in (FORWARD, BACKWARD):
        return f"the kind must be {FORWARD} or {BACKWARD}"
    if not 0 <= action.micro_batch < micro_batches:
        return f"the micro-batches are 0 to {micro_batches - 1}"
    if action in done:
        return f"done before, at clock {done[action]}"
    for needed in dependencies(action, stages):
        same_stage = needed.stage == j  # data from another stage arrives one clock later.
        if needed not in done or (done[needed] == k and not same_stage):
            return f"needs {needed} {'before it' if same_stage else 'at an earlier clock'}"
    return None


def _refusal(timeline: Timeline, k: int, fault: str) -> ScheduleError:
    return ScheduleError(f"bad pipeline schedule at clock {max(k, 0)}: {fault}", render(timeline, arrow=k))


def render(timeline: Timeline, *, arrow: int | None = None, max_clocks: int = MAX_CLOCKS) -> str:
    """Return a drawing of the timeline as text. Rows are stages, columns are clocks with their phase (up, main, down) above,
    and "." means that a stage waits. `arrow` marks a clock. If the timeline has more than `max_clocks`, only the clocks
    around the arrow or at both ends are drawn."""
    stages = max((len(row) for row in timeline), default=0)
    labels = {k: label for label, clocks in zip(("up", "main", "down"), phases(timeline)) for k in clocks}
    columns = [["clock", "ramp", *(f"stage {j}" for j in range(stages)), ""]]
    for k in _shown(len(timeline), arrow, max_clocks):
        if k is None:
            columns.append(["..."] * (2 + stages) + [""])
            continue
        slots = ["+".join(map(str, slot)) or "." for slot in timeline[k]]
        columns.append([str(k), labels[k], *slots, *["?"] * (stages - len(slots)), "^" if k == arrow else ""])
    widths = [max(map(len, column)) for column in columns]
    lines = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in zip_longest(*columns, fillvalue=""))
    return "\n".join(line for line in lines if line)


def _shown(clocks: int, arrow: int | None, max_clocks: int) -> list[int | None]:
    """Return the clocks to draw. None stands for the clocks left out."""
    if clocks <= max_clocks:
        return [*range(clocks)]
    if arrow is None:
        head = max_clocks // 2
        return [*range(head), None, *range(clocks - (max_clocks - head), clocks)]
    first = min(max(arrow - max_clocks // 2, 0), clocks - max_clocks)
    return [None] * (first > 0) + [*range(first, first + max_clocks)] + [None] * (first + max_clocks < clocks)
