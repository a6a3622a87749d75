"""A picture of a weight update: stages as rows, forward, backward and idle, as the schedule has it and as it ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emulator.plan import schedules, timings
from emulator.plan.plan import ExecutionPlan
from emulator.plan.schedules import BACKWARD, FORWARD, Action
from emulator.plan.timings import CellTiming
from harness.reports import svg

LEFT, RIGHT, EDGE = 68, 14, 14  # pixels: margins around a panel, and around texts
ROW, SPACE, AXIS, GAP = 34, 6, 26, 38  # pixels: a stage's row, between rows, below a panel, above the next
_NUMBERS = 15  # pixels: of the passes' numbers
COLOURS = {FORWARD: "#3d78b5", BACKWARD: "#d9772b"}
WORDS = {FORWARD: "forward", BACKWARD: "backward"}
IDLE = "#eef0f2"
MAX_CLOCKS = 64  # drawn; of a longer schedule the beginning, which is what its rest repeats


@dataclass(frozen=True)
class _Bar:
    """A cell as it is drawn: its place on the panel's axis."""

    action: Action
    begin: float
    end: float
    says: str


def picture(plan: ExecutionPlan, ran: Sequence[CellTiming], title: str, cores: int) -> str:
    """The schedule of one update above the measured one."""
    timeline = schedules.build(plan.schedule, len(plan.stages), min(plan.passes_per_update, MAX_CLOCKS))[:MAX_CLOCKS]
    shown = {action for row in timeline for cell in row for action in cell}
    cut = "" if len(shown) == len(ran) else f" (drawn: its first {len(timeline)} clocks)"
    zero = min((cell.begin for cell in ran), default=0.0)
    measured = [
        _Bar(cell.action, 1000 * (cell.begin - zero), 1000 * (cell.end - zero), f"{1000 * (cell.end - cell.begin):.2f} ms")
        for cell in ran
        if cell.action in shown
    ]
    scheduled_idle = schedules.scheduled_idle_fraction(plan.schedule, len(plan.stages), plan.passes_per_update)
    idle = [scheduled_idle, timings.idle_fraction(ran, len(plan.stages))]
    # on one device the stages do not wait: they share it
    told = [f": {100 * share:.0f} % idle" if plan.options.shards > 1 else "" for share in idle]
    panels = (
        (f"Scheduled{told[0]}{cut}", list(_scheduled(timeline)), "clock"),
        (f"Measured{told[1]}{cut}", measured, "ms"),
    )
    room = svg.WIDTH - 2 * EDGE
    heading, about = svg.wrapped(title, room, 18, "bold"), svg.wrapped(_about(plan, cores), room)
    parts = [
        *svg.paragraph(EDGE, 28, heading, size=18, weight="bold"),
        *svg.paragraph(EDGE, 28 + 21 * len(heading), about, fill=svg.SOFT),
    ]
    entries = ((COLOURS[FORWARD], "forward"), (COLOURS[BACKWARD], "backward"), (IDLE, "idle; numbers are passes"))
    legend, y = svg.legend([(svg.square(colour), word) for colour, word in entries],
                           EDGE, 36.0 + 21 * len(heading + about), svg.WIDTH - EDGE)  # fmt: skip
    for name, bars, unit in panels:
        y += GAP
        parts += _panel(y, len(plan.stages), name, bars, unit)
        y += len(plan.stages) * (ROW + SPACE) + AXIS
    return svg.document(svg.WIDTH, y, [*parts, *legend], title)


def _about(plan: ExecutionPlan, cores: int) -> str:
    passes = f"{plan.passes_per_update} pass{'es' if plan.passes_per_update > 1 else ''} of {plan.samples_per_pass} samples"
    stages = f"{len(plan.stages)} stage{'s' if len(plan.stages) > 1 else ''}"
    apart = plan.options.shards > 1 and plan.passes_per_update != plan.accumulation
    ipus = f"; on IPUs {plan.one_replica}" if apart else ""
    return f"One weight update: {passes} through {stages}, {plan.schedule}; measured on {cores} CPU cores{ipus}"


def _scheduled(timeline: schedules.Timeline) -> Iterator[_Bar]:
    """The timeline's cells; actions that share one share its clock."""
    places = max(len(cell) for row in timeline for cell in row)
    for clock, row in enumerate(timeline):
        for cell in row:
            for place, action in enumerate(cell):
                place += places - len(cell) if action.kind == BACKWARD else 0  # a lone backward keeps its place
                width = 1 / places
                yield _Bar(action, clock + place * width, clock + (place + 1) * width, f"clock {clock}")


def _panel(top: float, stages: int, name: str, bars: Sequence[_Bar], unit: str) -> Iterator[str]:
    low, high = min((bar.begin for bar in bars), default=0.0), max((bar.end for bar in bars), default=1.0)
    room = svg.WIDTH - LEFT - RIGHT
    scale = room / ((high - low) or 1.0)
    bottom = top + stages * (ROW + SPACE)
    yield svg.text(EDGE, top - 12, name, weight="bold")
    for stage in range(stages):
        y = top + stage * (ROW + SPACE)
        yield svg.text(LEFT - 8, y + ROW / 2 + 5, f"stage {stage}", size=15, anchor="end")
        yield f'<rect x="{LEFT}" y="{y}" width="{room}" height="{ROW}" fill="{IDLE}"/>'
    for bar in bars:
        y = top + bar.action.stage * (ROW + SPACE)
        yield _drawn(bar, LEFT + (bar.begin - low) * scale, y, (bar.end - bar.begin) * scale)
    for tick in svg.ticks(low, high, 6):
        x = LEFT + (tick - low) * scale
        yield svg.rule(x, bottom - SPACE, x, bottom, svg.AXIS) + svg.text(x, bottom + 15, f"{tick:g}", anchor="middle")
    yield svg.text(LEFT - 16, bottom + 15, unit, anchor="end")


def _drawn(bar: _Bar, x: float, y: float, width: float) -> str:
    """A cell with its pass's number, if there is room for it, and its story for the mouse."""
    action = bar.action
    says = f"stage {action.stage}, {WORDS[action.kind]} of pass {action.micro_batch}: {bar.says}"
    box = f'<rect x="{x:.2f}" y="{y}" width="{max(width - 0.6, 0.4):.2f}" height="{ROW}" fill="{COLOURS[action.kind]}"/>'
    number = str(action.micro_batch)
    label = ""
    if width > svg.text_width(number, _NUMBERS) + 3:
        label = svg.text(x + width / 2, y + ROW / 2 + 5, number, size=_NUMBERS, anchor="middle", fill=svg.BRIGHT)
    return f"<g><title>{svg.escaped(says)}</title>{box}{label}</g>"
