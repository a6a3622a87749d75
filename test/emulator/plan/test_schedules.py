"""Schedules agree with drawings and with the papers' formulas over a grid of sizes, and damaged timelines are rejected."""

from __future__ import annotations

import itertools
import re
from itertools import pairwise

import pytest

from cnn_harness.emulator.plan.schedules import (
    SCHEDULES,
    Action,
    ScheduleError,
    build,
    dependencies,
    from_orders,
    grouped,
    handovers,
    idle_fraction,
    kinds,
    max_in_flight,
    one_forward_one_backward,
    order,
    passes_in_flight,
    peak_in_flight,
    phases,
    render,
    scheduled_idle_fraction,
    sequential,
    validate,
    virtual_stages,
)

GRID = [*itertools.product(range(1, 5), range(1, 7)), (4, 38), (8, 5), (16, 31)]  # N, A
PER_DEVICE = {name: schedule.stages_per_device for name, schedule in SCHEDULES.items()}
EVERY = [(name, stages * PER_DEVICE[name], count) for name in SCHEDULES for stages, count in GRID]
IN_TURN = lambda N, A, j: min(N - j, A)
LIVE = {  # on a device; the papers' formulas hold if there are enough micro-batches
    "Grouped": lambda N, A, j: min(2 * (N - 1 - j) + 1, A),
    "Interleaved": IN_TURN,
    "Sequential": lambda N, A, j: 1,
    "GPipe": lambda N, A, j: A,
    "1F1B": IN_TURN,
    "1F1B-Virtual": lambda N, A, d: 2 * (N // 2 - 1 - d) + N // 2 + 1 if A % (N // 2) == 0 and A >= N else None,
    "ZB-H1": lambda N, A, j: min(N, A),
}
IDLE = {
    "Grouped": lambda N, A: 2 * (N - 1) / (A + 2 * (N - 1)),
    "Interleaved": lambda N, A: (N - 1) / (A + N - 1),
    "Sequential": lambda N, A: 1 - 1 / N,
    "GPipe": lambda N, A: (N - 1) / (A + N - 1),
    "1F1B": lambda N, A: (N - 1) / (A + N - 1),
    "1F1B-Virtual": lambda N, A: (N // 2 - 1) / (2 * A + N // 2 - 1) if A % (N // 2) == 0 else None,
    "ZB-H1": lambda N, A: (N - 1) / (3 * A + N - 1) if A >= N else None,
}


def table(drawing):
    """Return the timeline of a drawing with a line `stage j  cell cell ...` or `IPU d  cell cell ...` per device."""
    lines = [line.split() for line in drawing.splitlines() if line.split()[:1] in (["stage"], ["IPU"])]
    assert [int(line[1]) for line in lines] == list(range(len(lines)))
    return tuple(zip(*[[cell(text) for text in line[2:]] for line in lines], strict=True))


def cell(text):
    actions = re.findall(r"(\d+)([FBW])(\d+)", text)
    return tuple(Action(int(stage), kind, int(micro_batch)) for stage, kind, micro_batch in actions)


def changed(timeline, cells):
    """Return a timeline with some cells replaced, {(clock, stage): text}."""
    return tuple(
        tuple(cell(cells[k, j]) if (k, j) in cells else old for j, old in enumerate(row)) for k, row in enumerate(timeline)
    )


def clocks_of(timeline):
    return {action: k for k, row in enumerate(timeline) for found in row for action in found}


# --- drawings


@pytest.mark.parametrize(
    ("schedule", "stages", "count", "drawing"),
    [
        (grouped, 1, 3, """
            clock    0        1        2
            stage 0  0F0+0B0  0F1+0B1  0F2+0B2
        """),
        (grouped, 3, 5, """
            clock    0    1    2        3        4        5        6        7    8
            stage 0  0F0  0F1  0F2      0F3      0F4+0B0  0B1      0B2      0B3  0B4
            stage 1  .    1F0  1F1      1F2+1B0  1F3+1B1  1F4+1B2  1B3      1B4  .
            stage 2  .    .    2F0+2B0  2F1+2B1  2F2+2B2  2F3+2B3  2F4+2B4  .    .
        """),
        (one_forward_one_backward, 3, 5, """
            clock    0    1    2    3    4    5    6    7    8    9    10   11   12   13
            stage 0  0F0  0F1  0F2  .    .    0B0  0F3  0B1  0F4  0B2  .    0B3  .    0B4
            stage 1  .    1F0  1F1  .    1B0  1F2  1B1  1F3  1B2  1F4  1B3  .    1B4  .
            stage 2  .    .    2F0  2B0  2F1  2B1  2F2  2B2  2F3  2B3  2F4  2B4  .    .
        """),
        (sequential, 3, 2, """
            clock    0    1    2    3    4    5    6    7    8    9    10   11
            stage 0  0F0  .    .    .    .    0B0  0F1  .    .    .    .    0B1
            stage 1  .    1F0  .    .    1B0  .    .    1F1  .    .    1B1  .
            stage 2  .    .    2F0  2B0  .    .    .    .    2F1  2B1  .    .
        """),
    ],
)  # fmt: skip
def test_schedules_match_drawings(schedule, stages, count, drawing):
    assert schedule(stages, count) == table(drawing)


@pytest.mark.parametrize("name", SCHEDULES)
def test_drawing_in_docstring_is_true(name):
    make = SCHEDULES[name].make
    drawn = table(getattr(make, "func", make).__doc__)
    count = max(action.micro_batch for action in clocks_of(drawn)) + 1
    assert make(len(drawn[0]) * PER_DEVICE[name], count) == drawn
    assert count >= 2 and len(drawn[0]) >= 2


# --- properties


@pytest.mark.parametrize(("name", "stages", "count"), EVERY)
def test_every_size_is_valid(name, stages, count):
    timeline = build(name, stages, count)
    validate(timeline, stages, count)
    place = {action: at for at, action in enumerate(action for row in timeline for found in row for action in found)}
    assert sorted(map(str, place)) == sorted(
        f"{j}{kind}{i}" for j in range(stages) for kind in kinds(name) for i in range(count)
    )
    assert all(place[needed] < at for action, at in place.items() for needed in dependencies(action, stages))
    formula = IDLE[name](stages, count)
    assert formula is None or idle_fraction(timeline) == pytest.approx(formula, abs=1e-12)
    assert scheduled_idle_fraction(name, stages, count) == pytest.approx(idle_fraction(timeline), abs=1e-12)
    devices = stages // PER_DEVICE[name]
    for device in range(devices):
        actions = order(timeline, device)
        assert peak_in_flight(actions) == (LIVE[name](stages, count, device) or peak_in_flight(actions))
        for stream in itertools.product(range(device, stages, devices), kinds(name)):  # gradients are added in this order
            own = [action.micro_batch for action in actions if (action.stage, action.kind) == stream]
            assert own == list(range(count))


@pytest.mark.parametrize(("name", "stages", "count"), EVERY)
def test_handovers_define_complete_order(name, stages, count):
    """Every action of a device waits for the one before it: in its stream, by its data, or by a permit."""
    timeline = build(name, stages, count)
    for device in range(len(timeline[0])):
        waited = set()
        for (first, second), handover in handovers(timeline, device).items():
            gives, takes = ([i for i, turns in enumerate(each) if turns] for each in handover)
            waited |= {(Action(*first, i), Action(*second, k)) for i, k in zip(gives, takes, strict=True)}
        pairs = set(pairwise(order(timeline, device)))
        assert waited <= pairs
        for before, after in pairs - waited:
            same_stream = (before.stage, before.kind) == (after.stage, after.kind)
            assert same_stream or before in dependencies(after, stages)


@pytest.mark.parametrize(("name", "stages", "count"), EVERY)
def test_passes_in_flight_suffice(name, stages, count):
    """A loop with this number of passes at once never waits for a pass that it may not begin yet."""
    timeline, most = build(name, stages, count), passes_in_flight(name, stages, count)
    left = {i: len(kinds(name)) * stages for i in range(count)}
    for row in timeline:
        for action in itertools.chain(*row):
            assert action.micro_batch < min(left) + most
            left[action.micro_batch] -= 1
            if not left[action.micro_batch]:
                del left[action.micro_batch]


@pytest.mark.parametrize("per_device", [2, 3, 4])
def test_virtual_stages_divide_idle_time(per_device):
    for devices, rounds in itertools.product(range(1, 5), range(1, 4)):
        count = devices * rounds
        timeline = virtual_stages(per_device * devices, count, per_device)
        validate(timeline, per_device * devices, count)
        assert len(timeline) - 2 * per_device * count == 2 * (devices - 1)  # as in 1F1B, but clocks are shorter


def test_split_backward_has_memory_of_1f1b():
    for stages, count in GRID:
        assert max(max_in_flight("ZB-H1", stages, count)) == max(max_in_flight("1F1B", stages, count))


def test_devices_that_wait_for_each_other_are_rejected():
    orders = [[Action(0, "B", 0), Action(0, "F", 0)], [Action(1, "F", 0), Action(1, "B", 0)]]
    with pytest.raises(ScheduleError, match="wait for each other, before 0B0, 1F0"):
        from_orders(orders, 2)


def test_large_pipeline_is_instant():
    """Work quadratic in the number of clocks would exceed the time limit of a test."""
    for name in SCHEDULES:
        timeline = build(name, 16, 512)
        assert phases(timeline) and render(timeline) and idle_fraction(timeline)
        assert len(max_in_flight(name, 16, 512)) == 16


# --- rejections

PLAIN = table("""
    clock    0    1    2    3    4    5
    stage 0  0F0  0F1  .    0B0  .    0B1
    stage 1  .    1F0  1B0  1F1  1B1  .
""")


def arrow_clock(message):
    """Return the clock at which the arrow of a message points."""
    lines = message.splitlines()
    top = next(line for line in lines if line.startswith("clock "))
    assert lines[-1].strip() == "^"
    return int(top[lines[-1].index("^") :].split()[0])


@pytest.mark.parametrize(
    ("cells", "clock", "fault"),
    [
        ({(0, 1): "1F0", (1, 1): "."}, 0, "1F0: needs 0F0 at an earlier clock"),
        ({(1, 1): "1B0", (2, 1): "1F0"}, 1, "1B0: needs 1F0 before it"),
        ({(5, 0): "."}, 5, "the timeline ends without 0B1"),
        ({(4, 0): "0F0"}, 4, "0F0: done before, at clock 0"),
        ({(1, 0): ".", (1, 1): "0F1"}, 1, "0F1: is in the slot of stage 1"),
        ({(0, 0): "0F0+0F1", (1, 0): "."}, 0, "0F1: the stage does another action of this kind in the same clock"),
        ({(2, 0): "0F2"}, 2, "0F2: the micro-batches are 0 to 1"),
    ],
)  # fmt: skip
def test_damaged_timeline_is_rejected_with_arrow(cells, clock, fault):
    validate(PLAIN, 2, 2)
    damaged = changed(PLAIN, cells)
    with pytest.raises(ScheduleError) as caught:
        validate(damaged, 2, 2)
    first, drawing = str(caught.value).split("\n", 1)
    assert first.endswith(f"clock {clock}: {fault}") and arrow_clock(drawing) == clock and table(drawing) == damaged


@pytest.mark.parametrize("name", SCHEDULES)
def test_missing_repeated_or_swapped_action_is_rejected(name):
    stages = 3 * PER_DEVICE[name]
    timeline = build(name, stages, 4)
    clocks = clocks_of(timeline)
    for action, k in clocks.items():
        j = action.stage % 3
        rest = "+".join(str(other) for other in timeline[k][j] if other != action) or "."
        with pytest.raises(ScheduleError):
            validate(changed(timeline, {(k, j): rest}), stages, 4)
        with pytest.raises(ScheduleError, match="done before"):
            validate(timeline + changed((((),) * 3,), {(0, j): str(action)}), stages, 4)
        for needed in dependencies(action, stages):
            early, late, other = clocks[needed], k, needed.stage % 3
            swapped = [list(row) for row in timeline]
            swapped[early][other] = tuple(a for a in timeline[early][other] if a != needed)
            swapped[late] = [tuple(a for a in found if a != action) for found in swapped[late]]
            swapped[early][j] += (action,)
            swapped[late][other] += (needed,)
            with pytest.raises(ScheduleError):
                validate(tuple(map(tuple, swapped)), stages, 4)


# --- messages


def test_unknown_schedules_and_sizes_are_rejected():
    with pytest.raises(ScheduleError, match=f"no pipeline schedule 'Grouped2'; there are: {', '.join(SCHEDULES)}"):
        build("Grouped2", 2, 2)
    for name, (stages, count) in itertools.product(SCHEDULES, ((0, 1), (1, 0), (-1, 4))):
        with pytest.raises(ScheduleError, match=f"{stages} stages and {count} micro-batches: both must be at least 1"):
            build(name, stages, count)
    with pytest.raises(ScheduleError, match="1F1B-Virtual has 2 stages on each device; 3 stages"):
        build("1F1B-Virtual", 3, 2)
