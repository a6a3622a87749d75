"""Pipeline schedules as tables of actions: which stage works on which micro-batch at which clock.

A timeline is a tuple of rows, one per clock; a row has one slot per stage (each stage on a device of its own); a slot is
the tuple of actions that the stage carries out in that clock, in this order, and empty where it waits. Drawings, idle time,
and the order that the executor keeps on each stage (`waits`) are read from the rows. This module knows no seconds,
bytes, devices or tensors, and it accepts every number of stages and of micro-batches from 1 on.

A timeline's micro-batch is what goes through the stages at once. To the planner that is a replica's micro-batch, and an
update has as many as the accumulation count; to the executor it is a pass, which holds several where micro-batches are
folded or replicas share batch norm, and an update has `ExecutionPlan.passes_per_update` of them, over all replicas of the
instance.

Letters, here and everywhere: N stages, A micro-batches, i micro-batch, j stage, k clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from base.errors import UserError

FORWARD, BACKWARD = "F", "B"
MAX_CLOCKS = 20  # in one drawing; a longer timeline is drawn in part


class ScheduleError(UserError):
    """A timeline that does not train the model, with its drawing; or a schedule that nobody knows."""


@dataclass(frozen=True, slots=True)
class Action:
    """A stage's forward (F) or backward (B) work on one micro-batch (in the executor, one pass); as text
    `<stage><kind><micro-batch>`."""

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


class Phases(NamedTuple):
    """The clocks of a timeline in three ranges; see `phases`."""

    ramp_up: range
    main: range
    ramp_down: range


def parse(text: str) -> Action:
    """The action that `str` wrote."""
    match = re.fullmatch(r"(\d+)([FB])(\d+)", text, re.ASCII)
    if not match:
        raise ScheduleError(f"'{text}' is no action: write <stage><F or B><micro-batch>, as in 0F0")
    return Action(int(match[1]), match[2], int(match[3]))


# --- the schedules ---------------------------------------------------------------------------------------------------


def grouped(stages: int, micro_batches: int) -> Timeline:
    """A forward and a backward in every clock: fast, with 2(N-1-j) + 1 micro-batches in flight on stage j.

    clock    0    1        2        3        4        5
    stage 0  0F0  0F1      0F2+0B0  0F3+0B1  0B2      0B3
    stage 1  .    1F0+1B0  1F1+1B1  1F2+1B2  1F3+1B3  .
    """
    return from_clocks(
        stages,
        micro_batches,
        forward=lambda i, j: i + j,
        backward=lambda i, j: i + 2 * (stages - 1) - j,
    )


def one_forward_one_backward(stages: int, micro_batches: int) -> Timeline:
    """One forward, one backward (1F1B): about half of Grouped's activations, with min(N - j, A) in flight on stage j.

    Stage j first takes in as many micro-batches as it may hold, then another one after each backward. The option's value is
    Interleaved; Megatron's interleaved schedule, with virtual stages, is another one.

    clock    0    1    2    3    4    5    6    7    8    9
    stage 0  0F0  0F1  .    0B0  0F2  0B1  0F3  0B2  .    0B3
    stage 1  .    1F0  1B0  1F1  1B1  1F2  1B2  1F3  1B3  .
    """
    return from_clocks(
        stages,
        micro_batches,
        forward=lambda i, j: i + j if i < stages - j else 2 * i + j,
        backward=lambda i, j: 2 * i + 2 * stages - 1 - j,
    )


def sequential(stages: int, micro_batches: int) -> Timeline:
    """Run one stage at a time, one micro-batch after another; also the order in which stages share one device.

    clock    0    1    2    3    4    5    6    7
    stage 0  0F0  .    .    0B0  0F1  .    .    0B1
    stage 1  .    1F0  1B0  .    .    1F1  1B1  .
    """
    return from_clocks(
        stages,
        micro_batches,
        forward=lambda i, j: 2 * stages * i + j,
        backward=lambda i, j: 2 * stages * (i + 1) - 1 - j,
    )


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {"Grouped": grouped, "Interleaved": one_forward_one_backward, "Sequential": sequential}
)


def build(schedule: str, stages: int, micro_batches: int) -> Timeline:
    """A schedule's timeline, checked."""
    if schedule not in SCHEDULES:
        raise ScheduleError(f"no pipeline schedule '{schedule}'; there are: {', '.join(SCHEDULES)}")
    timeline = SCHEDULES[schedule](stages, micro_batches)
    validate(timeline, stages, micro_batches)
    return timeline


def from_clocks(stages: int, micro_batches: int, forward: Clock, backward: Clock) -> Timeline:
    """The rows, from the clock of each action; in a slot the forward comes first."""
    if stages < 1 or micro_batches < 1:
        raise ScheduleError(f"a pipeline of {stages} stages and {micro_batches} micro-batches: both must be at least 1")
    last = max(backward(micro_batches - 1, j) for j in range(stages))
    rows: list[list[Slot]] = [[()] * stages for _ in range(last + 1)]
    for kind, clock in ((FORWARD, forward), (BACKWARD, backward)):
        for j in range(stages):
            for i in range(micro_batches):
                rows[clock(i, j)][j] += (Action(j, kind, i),)
    return tuple(tuple(row) for row in rows)


# --- facts -----------------------------------------------------------------------------------------------------------


def order(timeline: Timeline, stage: int) -> tuple[Action, ...]:
    """A stage's actions, first to last."""
    return tuple(action for row in timeline for action in row[stage])


def peak_in_flight(timeline: Timeline, stage: int) -> int:
    """The largest number of micro-batches whose forward is done and whose backward is pending on the stage."""
    held = peak = 0
    for action in order(timeline, stage):
        held += 1 if action.kind == FORWARD else -1
        peak = max(peak, held)
    return peak


class Waits(NamedTuple):
    """The work that a stage's actions wait for beyond their data, by micro-batch: `forward[i]`, the stage's backwards
    between its forwards i - 1 and i; `backward[i]`, its forwards between its backwards i - 1 and i."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


def waits(timeline: Timeline, stage: int) -> Waits:
    """The order of a stage as numbers to count up to. ScheduleError unless its forwards come in the order of the
    micro-batches, and its backwards too: the sums of an update are added in that order."""
    counts: dict[str, list[int]] = {FORWARD: [], BACKWARD: []}
    counted = {FORWARD: 0, BACKWARD: 0}
    for action in order(timeline, stage):
        own, other = counts[action.kind], counts[BACKWARD if action.kind == FORWARD else FORWARD]
        if action.micro_batch != len(own):
            raise ScheduleError(
                f"stage {stage} does {action} before {Action(stage, action.kind, len(own))}: the micro-batches must come in "
                f"their order, forward and backward, as their gradients are added",
                render(timeline),
            )
        own.append(len(other) - counted[action.kind])
        counted[action.kind] = len(other)
    return Waits(tuple(counts[FORWARD]), tuple(counts[BACKWARD]))


def max_in_flight(schedule: str, stages: int, micro_batches: int) -> tuple[int, ...]:
    """The most micro-batches that each stage holds at once; ScheduleError for what cannot be carried out. A long timeline
    is not laid out where a short one and the next longer one show that the numbers do not grow."""
    few = 4 * stages  # more micro-batches repeat the middle of a pipeline's schedule
    if micro_batches > few + 1:
        short, longer = (max_in_flight(schedule, stages, count) for count in (few, few + 1))
        if short == longer:
            return short
    timeline = build(schedule, stages, micro_batches)
    for j in range(stages):
        waits(timeline, j)
    return tuple(peak_in_flight(timeline, j) for j in range(stages))


def idle_fraction(timeline: Timeline) -> float:
    """The share of the places for actions that stay empty; each slot has as many places as the fullest slot.

    Where no slot holds two actions (Interleaved, Sequential), that is empty slots / slots. In Grouped a clock is as
    long as a forward and a backward, so a slot with only one of them is half empty.
    """
    slots = [len(slot) for row in timeline for slot in row]
    places = len(slots) * max(slots, default=0)
    return 1 - sum(slots) / places if places else 0.0


def scheduled_idle_fraction(schedule: str, stages: int, micro_batches: int) -> float:
    """The idle fraction of a schedule's timeline, without laying out a long one: past its ramps every micro-batch makes
    it longer by the same number of clocks."""
    few = 4 * stages
    if micro_batches <= few + 1:
        return idle_fraction(build(schedule, stages, micro_batches))
    short, longer = (build(schedule, stages, count) for count in (few, few + 1))
    clocks = len(short) + (micro_batches - few) * (len(longer) - len(short))
    return 1 - 2 * micro_batches / (clocks * max(len(slot) for row in short for slot in row))


def phases(timeline: Timeline) -> Phases:
    """Ramp-up: until the first micro-batch comes back, that is up to the first backward on stage 0. Main: while
    micro-batches enter and leave, up to the last forward on stage 0. Ramp-down: nothing enters any more.

    Too few micro-batches to fill the pipeline leave no main phase: the ramp-down follows the last that enters.
    """
    entering = [k for k, row in enumerate(timeline) for slot in row[:1] for action in slot if action.kind == FORWARD]
    leaving = [k for k, row in enumerate(timeline) for slot in row[:1] for action in slot if action.kind == BACKWARD]
    stop = entering[-1] + 1 if entering else 0
    start = min(leaving[0], stop) if leaving else stop
    return Phases(range(start), range(start, stop), range(stop, len(timeline)))


# --- checks and drawings ---------------------------------------------------------------------------------------------


def validate(timeline: Timeline, stages: int, micro_batches: int) -> None:
    """Refuse a timeline, with an arrow at its first bad clock, unless every stage does each micro-batch's forward once
    and its backward once, after everything they need, and at most one action of a kind in a clock."""
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
    """Return the actions that must be done before: a forward needs the forward of the stage before, a backward the stage's
    own forward and the backward of the stage after."""
    i, j = action.micro_batch, action.stage
    if action.kind == FORWARD:
        return (Action(j - 1, FORWARD, i),) if j > 0 else ()
    own = Action(j, FORWARD, i)
    return (own, Action(j + 1, BACKWARD, i)) if j + 1 < stages else (own,)


def _fault(action: Action, k: int, j: int, done: Mapping[Action, int], stages: int, micro_batches: int) -> str | None:
    """Return the fault of an action of stage j at clock k after those that are done, or None."""
    if action.stage != j:
        return f"stands in the slot of stage {j}"
    if action.kind not in (FORWARD, BACKWARD):
        return f"the kind must be {FORWARD} or {BACKWARD}"
    if not 0 <= action.micro_batch < micro_batches:
        return f"the micro-batches are 0 to {micro_batches - 1}"
    if action in done:
        return f"done before, at clock {done[action]}"
    for needed in dependencies(action, stages):
        same_stage = needed.stage == j  # what another stage hands on arrives one clock later
        if needed not in done or (done[needed] == k and not same_stage):
            return f"needs {needed} {'before it' if same_stage else 'at an earlier clock'}"
    return None


def _refusal(timeline: Timeline, k: int, fault: str) -> ScheduleError:
    return ScheduleError(f"bad pipeline schedule at clock {max(k, 0)}: {fault}", render(timeline, arrow=k))


def render(timeline: Timeline, *, arrow: int | None = None, max_clocks: int = MAX_CLOCKS) -> str:
    """A drawing: stages as rows, clocks as columns, their phase (ramp-up, main, ramp-down) above, "." where a stage waits;
    an arrow below one clock. A timeline of more than `max_clocks` is drawn at its two ends, or around the arrow."""
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
    """The clocks to draw; None stands for some that are left out."""
    if clocks <= max_clocks:
        return [*range(clocks)]
    if arrow is None:
        head = max_clocks // 2
        return [*range(head), None, *range(clocks - (max_clocks - head), clocks)]
    first = min(max(arrow - max_clocks // 2, 0), clocks - max_clocks)
    return [None] * (first > 0) + [*range(first, first + max_clocks)] + [None] * (first + max_clocks < clocks)
