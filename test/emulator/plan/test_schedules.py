"""Schedules agree with drawings and with formulas over a grid of sizes, and damaged timelines are rejected."""

from __future__ import annotations

import itertools
import re
from itertools import accumulate

import pytest

from cnn_harness.emulator.plan.schedules import (
    SCHEDULES,
    Action,
    ScheduleError,
    build,
    dependencies,
    grouped,
    idle_fraction,
    max_in_flight,
    one_forward_one_backward,
    order,
    peak_in_flight,
    phases,
    render,
    sequential,
    validate,
    waits,
)

GRID = [*itertools.product(range(1, 5), range(1, 7)), (4, 38), (8, 5), (16, 31)]  # N, A
EVERY = [(name, stages, count) for name in SCHEDULES for stages, count in GRID]
LIVE = {
    "Grouped": lambda N, A, j: min(2 * (N - 1 - j) + 1, A),
    "Interleaved": lambda N, A, j: min(N - j, A),
    "Sequential": lambda N, A, j: 1,
}
CLOCKS = {
    "Grouped": lambda N, A: A + 2 * (N - 1),
    "Interleaved": lambda N, A: 2 * (A + N - 1),
    "Sequential": lambda N, A: 2 * N * A,
}
IDLE = {
    "Grouped": lambda N, A: 2 * (N - 1) / (A + 2 * (N - 1)),
    "Interleaved": lambda N, A: (N - 1) / (A + N - 1),
    "Sequential": lambda N, A: 1 - 1 / N,
}


def table(drawing):
    """Return the timeline of a drawing with a line `stage j  cell cell ...` per stage."""
    lines = [line.split() for line in drawing.splitlines() if line.split()[:1] == ["stage"]]
    assert [int(line[1]) for line in lines] == list(range(len(lines)))
    return tuple(zip(*[[cell(text) for text in line[2:]] for line in lines], strict=True))


def cell(text):
    actions = re.findall(r"(\d+)([FB])(\d+)", text)
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
    drawn = table(SCHEDULES[name].__doc__)
    count = max(action.micro_batch for action in clocks_of(drawn)) + 1
    assert SCHEDULES[name](len(drawn[0]), count) == drawn
    assert count >= 2 and len(drawn[0]) >= 2


# --- properties


@pytest.mark.parametrize(("name", "stages", "count"), EVERY)
def test_every_size_is_valid(name, stages, count):
    timeline = build(name, stages, count)
    validate(timeline, stages, count)
    assert len(timeline) == CLOCKS[name](stages, count)
    actions = [action for row in timeline for found in row for action in found]
    assert sorted(map(str, actions)) == sorted(f"{j}{kind}{i}" for j in range(stages) for kind in "FB" for i in range(count))
    assert idle_fraction(timeline) == pytest.approx(IDLE[name](stages, count), abs=1e-12)
    for j in range(stages):
        assert peak_in_flight(timeline, j) == LIVE[name](stages, count, j)
        for kind in "FB":  # gradients are added in this order
            assert [action.micro_batch for action in order(timeline, j) if action.kind == kind] == list(range(count))


@pytest.mark.parametrize(("name", "stages", "count"), EVERY)
def test_waits_define_complete_order(name, stages, count):
    timeline = build(name, stages, count)
    assert max_in_flight(name, stages, count) == tuple(LIVE[name](stages, count, j) for j in range(stages))
    for j in range(stages):
        forward, backward = (list(accumulate(counts)) for counts in waits(timeline, j))
        place = {action: at for at, action in enumerate(order(timeline, j))}
        for i in range(count):  # exactly as many of the other kind are before it
            assert place[Action(j, "F", i)] == i + forward[i] and place[Action(j, "B", i)] == i + backward[i]


def test_large_pipeline_is_instant():
    """Work quadratic in the number of clocks would exceed the time limit of a test."""
    for name in SCHEDULES:
        timeline = build(name, 16, 512)
        assert phases(timeline) and render(timeline) and idle_fraction(timeline)
        assert list(max_in_flight(name, 16, 512)) == [LIVE[name](16, 512, j) for j in range(16)]


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
    timeline = build(name, 3, 4)
    clocks = clocks_of(timeline)
    for action, k in clocks.items():
        j = action.stage
        rest = "+".join(str(other) for other in timeline[k][j] if other != action) or "."
        with pytest.raises(ScheduleError):
            validate(changed(timeline, {(k, j): rest}), 3, 4)
        with pytest.raises(ScheduleError, match="done before"):
            validate(timeline + changed((((),) * 3,), {(0, j): str(action)}), 3, 4)
        for needed in dependencies(action, 3):
            early, late = clocks[needed], k
            swapped = [list(row) for row in timeline]
            swapped[early][needed.stage] = tuple(a for a in timeline[early][needed.stage] if a != needed)
            swapped[late] = [tuple(a for a in found if a != action) for found in swapped[late]]
            swapped[early][j] += (action,)
            swapped[late][needed.stage] += (needed,)
            with pytest.raises(ScheduleError):
                validate(tuple(map(tuple, swapped)), 3, 4)


# --- messages


def test_unknown_schedules_and_sizes_are_rejected():
    with pytest.raises(ScheduleError, match="no pipeline schedule 'Grouped2'; there are: Grouped, Interleaved, Sequential"):
        build("Grouped2", 2, 2)
    for name, (stages, count) in itertools.product(SCHEDULES, ((0, 1), (1, 0), (-1, 4))):
        with pytest.raises(ScheduleError, match=f"{stages} stages and {count} micro-batches: both must be at least 1"):
            build(name, stages, count)
