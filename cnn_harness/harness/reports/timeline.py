"""Draw timelines of one weight update. Each stage, or device with several stages, has a row that shows its passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from cnn_harness.emulator.plan import schedules, timings
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.plan.schedules import BACKWARD, FORWARD, KIND_NAMES, WEIGHTS, Action
from cnn_harness.emulator.plan.timings import CellTiming

if TYPE_CHECKING:
    from cnn_harness.harness.reports.chart import Rows

COLOURS = {FORWARD: "#3d78b5", BACKWARD: "#d9772b", WEIGHTS: "#4f9d69"}
MAX_CLOCKS = 64  # Only the start of a longer schedule is drawn, because the rest repeats the same pattern.
Cell = tuple[Action, float, float, str]  # A cell is a pass, its start, its end and its tooltip.


def svg(plan: ExecutionPlan, ran: Sequence[CellTiming], title: str, cores: int) -> str:
    """Return the scheduled timeline of one update above the measured one."""
    from cnn_harness.harness.reports import chart

    timeline = schedules.build(plan.schedule, len(plan.stages), min(plan.passes_per_update, MAX_CLOCKS))[:MAX_CLOCKS]
    shown = {action for row in timeline for cell in row for action in cell}
    cut = "" if len(shown) == len(ran) else f" (first {len(timeline)} clocks)"
    zero = min((cell.begin for cell in ran), default=0.0)
    measured = [
        (cell.action, 1000 * (cell.begin - zero), 1000 * (cell.end - zero), f"{1000 * (cell.end - cell.begin):.2f} ms")
        for cell in ran
        if cell.action in shown
    ]
    scheduled_idle = schedules.scheduled_idle_fraction(plan.schedule, len(plan.stages), plan.passes_per_update)
    idle = [scheduled_idle, timings.idle_fraction(ran, plan.pipeline_devices)]
    # With one device, all stages share it, so there is no idle time.
    shares = [f": {100 * share:.0f} % idle" if plan.options.shards > 1 else "" for share in idle]
    names = schedules.slot_names(len(plan.stages), plan.pipeline_devices)
    panels = (
        panel(f"Scheduled{shares[0]}{cut}", _scheduled(timeline), names, "clock"),
        panel(f"Measured{shares[1]}{cut}", measured, names, "ms"),
    )
    return chart.figure(panels, title, [_about(plan, cores)])


def panel(title: str, cells: Iterable[Cell], names: Sequence[str], unit: str) -> Rows:
    """Return a panel with a row for each name and a numbered bar for each pass. Stage j is in row j % rows."""
    from cnn_harness.harness.reports.chart import LIGHT, Box, Rows

    bars = [
        Box(begin, end, COLOURS[action.kind], action.stage % len(names), KIND_NAMES[action.kind],
            f"stage {action.stage}, {KIND_NAMES[action.kind]} of pass {action.micro_batch}: {tooltip}",
            str(action.micro_batch))
        for action, begin, end, tooltip in cells
    ]  # fmt: skip
    low, high = min((bar.x0 for bar in bars), default=0.0), max((bar.x1 for bar in bars), default=1.0)
    idle = [Box(low, high, LIGHT, stage, "idle (numbers: passes)") for stage in range(len(names))]
    return Rows(title, names, [*bars, *idle], unit, height=38, wide=True)


def _about(plan: ExecutionPlan, cores: int) -> str:
    passes = f"{plan.passes_per_update} pass{'es' if plan.passes_per_update > 1 else ''} of {plan.samples_per_pass} samples"
    stages = f"{len(plan.stages)} stage{'s' if len(plan.stages) > 1 else ''}"
    apart = plan.options.shards > 1 and plan.passes_per_update != plan.accumulation
    ipus = f"; on IPUs {plan.one_replica}" if apart else ""
    return f"One weight update: {passes} through {stages}, {plan.schedule}; measured on {cores} CPU cores{ipus}"


def _scheduled(timeline: schedules.Timeline) -> Iterator[Cell]:
    """Yield the passes of a schedule, with start and end in clocks. If a stage can have two passes in a clock, each pass
    takes half of the clock."""
    places = max(len(cell) for row in timeline for cell in row)
    for clock, row in enumerate(timeline):
        for cell in row:
            for place, action in enumerate(cell):
                # A backward pass is always at the end of the clock.
                place += places - len(cell) if action.kind == BACKWARD else 0
                width = 1 / places
                yield action, clock + place * width, clock + (place + 1) * width, f"clock {clock}"
