"""Pipeline schedules as tables of actions: which device works on which micro-batch at which clock.

A timeline has one row for each clock, and each row has one slot for each device (IPU). A slot holds the actions of the
device in that clock, in order; it is empty if the device waits. Stage j is on device j % D, so a device has one stage or,
with virtual stages, several. Charts, idle time and the executor's order (`handovers`) are computed from the timeline. A
clock has no length in seconds.

The planner counts one replica's micro-batches: an update has as many as the accumulation count. For the executor, a
"micro-batch" of the timeline is a pass: several micro-batches if they are folded or if replicas share batch norm. An update
of a process has `ExecutionPlan.passes_per_update` passes.

Letters: N is the number of stages, D the number of devices, A the number of micro-batches; i is a micro-batch, j a stage, d
a device and k a clock.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise, zip_longest
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypeVar

from cnn_harness.base.errors import UserError

FORWARD, BACKWARD, WEIGHTS = KINDS = ("F", "B", "W")
KIND_NAMES = {FORWARD: "forward", BACKWARD: "backward", WEIGHTS: "weight gradients"}
MAX_CLOCKS = 20  # longer timelines are drawn without their middle.


class ScheduleError(UserError):
    """The schedule is unknown, or its timeline does not train the model. The message may end with a drawing."""


@dataclass(frozen=True, slots=True)
class Action:
    """The work of one stage on one micro-batch, written as `<stage><kind><micro-batch>`. Kinds are the forward pass (F), the
    backward pass (B) and, if a schedule splits the backward pass, the gradients of the weights (W)."""

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Slot: TypeAlias = tuple[Action, ...]
Row: TypeAlias = tuple[Slot, ...]
Timeline: TypeAlias = tuple[Row, ...]
Clock: TypeAlias = Callable[[int, int], int]  # (micro-batch i, stage j) -> clock k
Stream: TypeAlias = tuple[int, str]  # a stage and a kind: the actions of a stream run in the order of the micro-batches.
Fact = TypeVar("Fact")


class Schedule(NamedTuple):
    """A row of the table of schedules. `make` maps the numbers of stages and of micro-batches to a timeline. `split` means
    that backward passes are split in B (gradient of the stage's input) and W (gradients of its weights)."""

    make: Callable[[int, int], Timeline]
    stages_per_device: int = 1
    split: bool = False


# --- the schedules ---------------------------------------------------------------------------------------------------


def grouped(stages: int, micro_batches: int) -> Timeline:
    """Return the Grouped schedule: a forward and a backward in every clock. Stage j holds 2(N-1-j) + 1 micro-batches.

    clock    0    1        2        3        4        5
    stage 0  0F0  0F1      0F2+0B0  0F3+0B1  0B2      0B3
    stage 1  .    1F0+1B0  1F1+1B1  1F2+1B2  1F3+1B3  .
    """
    return from_clocks(stages, micro_batches, lambda i, j: i + j, lambda i, j: i + 2 * (stages - 1) - j)


def all_forwards_first(stages: int, micro_batches: int) -> Timeline:
    """Return GPipe's schedule (arXiv 1811.06965). Every stage holds all A micro-batches. Backwards run in the order of the
    forwards, because gradients are added in that order.

    clock    0    1    2    3    4    5    6    7
    stage 0  0F0  0F1  0F2  .    .    0B0  0B1  0B2
    stage 1  .    1F0  1F1  1F2  1B0  1B1  1B2  .
    """
    return from_orders([
        [*_stream(j, FORWARD, micro_batches), *_stream(j, BACKWARD, micro_batches)] for j in range(stages)
    ], stages)  # fmt: skip


def one_forward_one_backward(stages: int, micro_batches: int) -> Timeline:
    """Return 1F1B (PipeDream-flush, arXiv 2006.09503): one forward and one backward in turn. Graphcore calls it Interleaved.

    Stage j holds at most min(N - j, A) micro-batches, about half as many as in Grouped. A stage first fills up, then takes
    another micro-batch after each backward. The idle fraction is (N-1)/(A+N-1).

    clock    0    1    2    3    4    5    6    7    8    9
    stage 0  0F0  0F1  .    0B0  0F2  0B1  0F3  0B2  .    0B3
    stage 1  .    1F0  1B0  1F1  1B1  1F2  1B2  1F3  1B3  .
    """
    return from_orders([_in_turn(j, stages, micro_batches) for j in range(stages)], stages)


def sequential(stages: int, micro_batches: int) -> Timeline:
    """Return the Sequential schedule: one stage works at a time, on one micro-batch after another. Stages that share a
    device run in this order.

    clock    0    1    2    3    4    5    6    7
    stage 0  0F0  .    .    0B0  0F1  .    .    0B1
    stage 1  .    1F0  1B0  .    .    1F1  1B1  .
    """
    return from_orders([
        [Action(j, kind, i) for i in range(micro_batches) for kind in (FORWARD, BACKWARD)] for j in range(stages)
    ], stages)  # fmt: skip


def virtual_stages(stages: int, micro_batches: int, per_device: int) -> Timeline:
    """Return 1F1B with v virtual stages per device (Megatron-LM, arXiv 2104.04473), here with v = 2.

    A device takes D micro-batches through one of its stages, then the same through its next. The ramps are as long as in
    1F1B, but of stages that are v times shorter: the idle fraction is (D-1)/(vA+D-1) if D divides A. Device d holds up to
    2(D-1-d) + (v-1)D + 1 micro-batches, each in one of its stages.

    clock  0    1    2    3    4    5    6    7    8    9
    IPU 0  0F0  0F1  2F0  2F1  .    2B0  .    2B1  0B0  0B1
    IPU 1  .    1F0  1F1  3F0  3B0  3F1  3B1  1B0  1B1  .
    """
    devices = stages // per_device
    rounds = [range(first, min(first + devices, micro_batches)) for first in range(0, micro_batches, devices or 1)]

    def visits(device: int, kind: str, places: Sequence[int]) -> list[Action]:
        return [Action(place * devices + device, kind, i) for each in rounds for place in places for i in each]

    def order(device: int) -> Iterable[Action]:
        forwards, backwards = visits(device, FORWARD, range(per_device)), visits(device, BACKWARD, range(per_device)[::-1])
        return _alternating(forwards, backwards, 2 * (devices - 1 - device) + (per_device - 1) * devices)

    return from_orders([order(device) for device in range(devices)], stages)


def zero_bubble(stages: int, micro_batches: int) -> Timeline:
    """Return ZB-H1 (Zero Bubble, arXiv 2401.10241): 1F1B in which stage j computes the gradients of its weights j
    micro-batches later, so that the stages before it get their gradients earlier.

    From F to W, a stage holds at most N micro-batches, as the first stage of 1F1B does. The idle fraction is
    (N-1)/(3A+N-1) if A is at least N.

    clock    0    1    2    3    4    5    6    7    8    9
    stage 0  0F0  0F1  .    0B0  0W0  0F2  0B1  0W1  0B2  0W2
    stage 1  .    1F0  1B0  1F1  1B1  1W0  1F2  1B2  1W1  1W2
    """

    def order(stage: int) -> Iterable[Action]:
        weights = deque(_stream(stage, WEIGHTS, micro_batches))
        for action in _in_turn(stage, stages, micro_batches):
            yield action
            if action.kind == BACKWARD and action.micro_batch >= stage:
                yield weights.popleft()
        yield from weights

    return from_orders([order(j) for j in range(stages)], stages)


SCHEDULES: Mapping[str, Schedule] = MappingProxyType({
    "Grouped": Schedule(grouped),
    "Interleaved": Schedule(one_forward_one_backward),
    "Sequential": Schedule(sequential),
    "GPipe": Schedule(all_forwards_first),
    "1F1B": Schedule(one_forward_one_backward),
    "1F1B-Virtual": Schedule(partial(virtual_stages, per_device=2), stages_per_device=2),
    "ZB-H1": Schedule(zero_bubble, split=True),
})  # fmt: skip
ON_IPUS = ("Grouped", "Interleaved", "Sequential")  # the schedules of Graphcore's SDK.


def build(schedule: str, stages: int, micro_batches: int) -> Timeline:
    """Return the validated timeline of the schedule with a name."""
    if schedule not in SCHEDULES:
        raise ScheduleError(f"no pipeline schedule '{schedule}'; there are: {', '.join(SCHEDULES)}")
    row = SCHEDULES[schedule]
    if stages < 1 or micro_batches < 1:
        raise ScheduleError(f"pipeline of {stages} stages and {micro_batches} micro-batches: both must be at least 1")
    if stages % row.stages_per_device:
        raise ScheduleError(
            f"pipeline schedule {schedule} has {row.stages_per_device} stages on each device; {stages} stages cannot be "
            f"divided; give a multiple of {row.stages_per_device}"
        )
    timeline = row.make(stages, micro_batches)
    validate(timeline, stages, micro_batches)
    return timeline


def from_clocks(stages: int, micro_batches: int, forward: Clock, backward: Clock) -> Timeline:
    """Return the timeline in which `forward` and `backward` give the clock of each action. In a slot, the forward comes
    first."""
    last = max(backward(micro_batches - 1, j) for j in range(stages))
    rows: list[list[Slot]] = [[()] * stages for _ in range(last + 1)]
    for kind, clock in ((FORWARD, forward), (BACKWARD, backward)):
        for j in range(stages):
            for i in range(micro_batches):
                rows[clock(i, j)][j] += (Action(j, kind, i),)
    return tuple(tuple(row) for row in rows)


def from_orders(orders: Iterable[Iterable[Action]], stages: int) -> Timeline:
    """Return the timeline in which each device runs its actions in the given order, each as early as possible. Raise
    ScheduleError if the devices wait for each other."""
    left = [deque(order) for order in orders]
    done: set[Action] = set()
    rows: list[Row] = []
    while any(left):
        ready = [bool(own) and done.issuperset(dependencies(own[0], stages)) for own in left]
        rows.append(tuple((own.popleft(),) if now else () for own, now in zip(left, ready)))
        if not any(ready):
            waiting = ", ".join(str(own[0]) for own in left if own)
            raise _refusal(tuple(rows), len(rows) - 1, f"the devices wait for each other, before {waiting}")
        done.update(action for slot in rows[-1] for action in slot)
    return tuple(rows)


def _stream(stage: int, kind: str, micro_batches: int) -> list[Action]:
    return [Action(stage, kind, i) for i in range(micro_batches)]


def _alternating(forwards: Sequence[Action], backwards: Sequence[Action], ahead: int) -> Iterable[Action]:
    """Yield `ahead` forwards, then forwards and backwards in turn."""
    yield from forwards[:ahead]
    for pair in zip_longest(forwards[ahead:], backwards):
        yield from filter(None, pair)


def _in_turn(stage: int, stages: int, micro_batches: int) -> Iterable[Action]:
    """Yield the forwards and backwards of a stage in 1F1B."""
    each = (_stream(stage, kind, micro_batches) for kind in (FORWARD, BACKWARD))
    return _alternating(*each, stages - 1 - stage)


# --- facts -----------------------------------------------------------------------------------------------------------


def order(timeline: Timeline, device: int) -> tuple[Action, ...]:
    """Return a device's actions in order."""
    return tuple(action for row in timeline for action in row[device])


def kinds(schedule: str) -> tuple[str, ...]:
    """Return the kinds of actions in a schedule."""
    return KINDS if SCHEDULES[schedule].split else (FORWARD, BACKWARD)


def peak_in_flight(actions: Sequence[Action]) -> int:
    """Return the largest number of micro-batches between their forward and their last action, given the actions in order. On
    a device with several stages, a micro-batch counts in each stage."""
    last = WEIGHTS if any(action.kind == WEIGHTS for action in actions) else BACKWARD
    held = peak = 0
    for action in actions:
        held += (action.kind == FORWARD) - (action.kind == last)
        peak = max(peak, held)
    return peak


class Handover(NamedTuple):
    """The actions at which a device turns from one stream to another: for each micro-batch, whether the first stream's
    action is the last one before a turn, and whether the second stream's action is the first one after a turn."""

    gives: tuple[bool, ...]
    takes: tuple[bool, ...]


def handovers(timeline: Timeline, device: int) -> dict[tuple[Stream, Stream], Handover]:
    """Return the order of a device's actions as its turns from stream to stream. Turns that data dependencies imply are left
    out.

    Raise ScheduleError if the actions of a stream are not in the order of the micro-batches, in which gradients are added.
    """
    actions = order(timeline, device)
    stages = _stages(timeline)
    counts: dict[Stream, int] = defaultdict(int)
    for action in actions:
        stream = action.stage, action.kind
        if action.micro_batch != counts[stream]:
            raise ScheduleError(
                f"stage {action.stage} does {action} before {Action(*stream, counts[stream])}: the micro-batches must come "
                f"in order, forward and backward, because gradients are added in that order",
                render(timeline),
            )
        counts[stream] += 1
    turns: dict[tuple[Stream, Stream], tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    for before, after in pairwise(actions):
        streams = (before.stage, before.kind), (after.stage, after.kind)
        if streams[0] != streams[1] and before not in dependencies(after, stages):
            turns[streams][0].add(before.micro_batch)
            turns[streams][1].add(after.micro_batch)
    passes = range(max(counts.values(), default=0))
    return {streams: Handover(*(tuple(i in own for i in passes) for own in each)) for streams, each in turns.items()}


def max_in_flight(schedule: str, stages: int, micro_batches: int) -> tuple[int, ...]:
    """Return the largest number of micro-batches that each stage holds at once. Raise ScheduleError for a schedule that
    cannot run."""

    def held(timeline: Timeline) -> tuple[int, ...]:
        orders = [order(timeline, device) for device in range(len(timeline[0]))]
        for device in range(len(orders)):
            handovers(timeline, device)
        own = ([action for action in orders[j % len(orders)] if action.stage == j] for j in range(stages))
        return tuple(map(peak_in_flight, own))

    return _of_any_length(schedule, stages, micro_batches, held)


@lru_cache(maxsize=64)
def passes_in_flight(schedule: str, stages: int, micro_batches: int) -> int:
    """Return the largest number of micro-batches in the whole pipeline at once, from the first to the last action of
    each."""

    def most(timeline: Timeline) -> int:
        clocks: dict[int, list[int]] = defaultdict(list)
        for k, row in enumerate(timeline):
            for slot in row:
                for action in slot:
                    clocks[action.micro_batch].append(k)
        changes = sorted([(own[0], -1) for own in clocks.values()] + [(own[-1], 1) for own in clocks.values()])
        held = peak = 0
        for _, change in changes:  # at a clock, micro-batches begin before others end.
            held -= change
            peak = max(peak, held)
        return peak

    return _of_any_length(schedule, stages, micro_batches, most)


def _of_any_length(schedule: str, stages: int, micro_batches: int, fact: Callable[[Timeline], Fact]) -> Fact:
    """Return a fact of a timeline. Do not build a long timeline if two shorter timelines have the same fact."""
    few, more = _short(stages, micro_batches), _short(stages, micro_batches) + stages
    if more < micro_batches:
        found = fact(build(schedule, stages, few))
        if found == fact(build(schedule, stages, more)):
            return found
    return fact(build(schedule, stages, micro_batches))


def _short(stages: int, micro_batches: int) -> int:
    """Return a number of micro-batches after which another N micro-batches only repeat the middle of a schedule."""
    return 4 * stages + micro_batches % stages


def idle_fraction(timeline: Timeline) -> float:
    """Return the fraction of the devices' time that is idle, if every action takes the same time.

    In most schedules, a slot has room for one action. In Grouped, it has room for a forward and a backward, so a slot with
    one action is half idle.
    """
    slots = [len(slot) for row in timeline for slot in row]
    places = len(slots) * max(slots, default=0)
    return 1 - sum(slots) / places if places else 0.0


def scheduled_idle_fraction(schedule: str, stages: int, micro_batches: int) -> float:
    """Return the idle fraction of a schedule without building a long timeline. After the ramp-up, every N micro-batches add
    the same number of clocks."""
    few = _short(stages, micro_batches)
    if micro_batches <= few + stages:
        return idle_fraction(build(schedule, stages, micro_batches))
    short, longer = (build(schedule, stages, count) for count in (few, few + stages))
    clocks = len(short) + (micro_batches - few) // stages * (len(longer) - len(short))
    places = clocks * len(short[0]) * max(len(slot) for row in short for slot in row)
    return 1 - len(kinds(schedule)) * stages * micro_batches / places


def phases(timeline: Timeline) -> tuple[range, range, range]:
    """Return the clocks of the ramp-up, the main phase and the ramp-down of a timeline.

    The ramp-up ends before the first backward on stage 0, and the main phase with the last forward on stage 0. The main
    phase is empty if there are too few micro-batches to fill the pipeline.
    """
    first = [(k, action.kind) for k, row in enumerate(timeline) for slot in row for action in slot if action.stage == 0]
    entering, leaving = ([k for k, kind in first if kind == each] for each in (FORWARD, BACKWARD))
    stop = entering[-1] + 1 if entering else 0
    start = min(leaving[0], stop) if leaving else stop
    return range(start), range(start, stop), range(stop, len(timeline))


def _stages(timeline: Timeline) -> int:
    return 1 + max((action.stage for row in timeline for slot in row for action in slot), default=-1)


def slot_names(stages: int, devices: int) -> list[str]:
    """Return the names of a timeline's slots: of stages, or of devices that have several."""
    return [f"{'stage' if stages == devices else 'IPU'} {slot}" for slot in range(devices)]


# --- checks and drawings ---------------------------------------------------------------------------------------------


def validate(timeline: Timeline, stages: int, micro_batches: int) -> None:
    """Raise ScheduleError, with an arrow at the first bad clock, unless the timeline is valid.

    Every stage must do each micro-batch's forward once and its backward once, after everything they need, with at most one
    action of a kind in a slot. If the timeline has gradients of weights (W), every stage must do them once too. All devices
    must have the same number of stages.
    """
    done: dict[Action, int] = {}  # -> clock
    devices = len(timeline[0]) if timeline else stages
    for k, row in enumerate(timeline):
        if len(row) != devices or stages % devices:
            raise _refusal(timeline, k, f"the row has {len(row)} slots for {stages} stages")
        for device, slot in enumerate(row):
            for place, action in enumerate(slot):
                fault = _fault(action, k, done, stages, micro_batches)
                if action.stage % devices != device:
                    fault = f"is in the slot of {slot_names(stages, devices)[device]}"
                elif fault is None and any(other.kind == action.kind for other in slot[:place]):
                    fault = "the stage does another action of this kind in the same clock"
                if fault:
                    raise _refusal(timeline, k, f"{action}: {fault}")
                done[action] = k
    expected = KINDS if any(action.kind == WEIGHTS for action in done) else (FORWARD, BACKWARD)
    if len(done) != len(expected) * stages * micro_batches:
        every = (Action(j, kind, i) for kind in expected for i in range(micro_batches) for j in range(stages))
        missing = next(action for action in every if action not in done)
        raise _refusal(timeline, len(timeline) - 1, f"the timeline ends without {missing}")


def dependencies(action: Action, stages: int) -> tuple[Action, ...]:
    """Return the actions that must be done before an action. A forward needs the forward of the previous stage. A backward
    needs the forward of its own stage and the backward of the next stage. Gradients of weights need the backward of their
    stage."""
    i, j = action.micro_batch, action.stage
    if action.kind == FORWARD:
        return (Action(j - 1, FORWARD, i),) if j > 0 else ()
    if action.kind == WEIGHTS:
        return (Action(j, BACKWARD, i),)
    own = Action(j, FORWARD, i)
    return (own, Action(j + 1, BACKWARD, i)) if j + 1 < stages else (own,)


def _fault(action: Action, k: int, done: Mapping[Action, int], stages: int, micro_batches: int) -> str | None:
    """Return the error in an action at clock k, or None. `done` has the clocks of earlier actions."""
    if action.kind not in KINDS:
        return f"the kind must be one of {', '.join(KINDS)}"
    if not 0 <= action.micro_batch < micro_batches:
        return f"the micro-batches are 0 to {micro_batches - 1}"
    if action in done:
        return f"done before, at clock {done[action]}"
    for needed in dependencies(action, stages):
        same_stage = needed.stage == action.stage  # data from another stage arrives one clock later.
        if needed not in done or (done[needed] == k and not same_stage):
            return f"needs {needed} {'before it' if same_stage else 'at an earlier clock'}"
    return None


def _refusal(timeline: Timeline, k: int, fault: str) -> ScheduleError:
    return ScheduleError(f"bad pipeline schedule at clock {max(k, 0)}: {fault}", render(timeline, arrow=k))


def render(timeline: Timeline, *, arrow: int | None = None, max_clocks: int = MAX_CLOCKS) -> str:
    """Return a drawing of the timeline as text. Rows are devices, columns are clocks with their phase (up, main, down)
    above, and "." means that a device waits. `arrow` marks a clock. If the timeline has more than `max_clocks`, only the
    clocks around the arrow or at both ends are drawn."""
    devices = max((len(row) for row in timeline), default=0)
    names = slot_names(max(devices, _stages(timeline)), devices)
    labels = {k: label for label, clocks in zip(("up", "main", "down"), phases(timeline)) for k in clocks}
    columns = [["clock", "ramp", *names, ""]]
    for k in _shown(len(timeline), arrow, max_clocks):
        if k is None:
            columns.append(["..."] * (2 + devices) + [""])
            continue
        slots = ["+".join(map(str, slot)) or "." for slot in timeline[k]]
        columns.append([str(k), labels[k], *slots, *["?"] * (devices - len(slots)), "^" if k == arrow else ""])
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
