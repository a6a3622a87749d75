"""Write predictions as a self-contained HTML page, with charts first and numbers below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from cnn_harness.emulator.cost_model import supersteps, variants
from cnn_harness.emulator.cost_model.prediction import Prediction
from cnn_harness.harness.reports import markup, timeline
from cnn_harness.harness.reports.chart import (
    ALL,
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    SAND,
    Box,
    Curves,
    Line,
    Rows,
)
from cnn_harness.harness.reports.predicted_rate import MIB
from cnn_harness.tools.planning import costs, plan_table, roofline_section, scaling, step_panels
from cnn_harness.tools.planning.planned_config import Planned

STAGES = {1: PALE, 2: BLUE, 4: GREEN, 8: SAND, 16: PURPLE}
TERMS = (
    "An IPU is one chip of the system, with its own memory. A stage is the part of the network that one IPU computes. "
    "An IPU is idle while it waits for another stage or for data."
)
WORDS = (
    ("superstep", "All tiles of an IPU compute on their own memory, wait for each other (synchronisation), and exchange "
     "values. A convolution takes several supersteps."),
    ("compute", "The time in which tiles multiply and add, or read and write their own memory."),
    ("exchange", "The time in which tiles send values to each other. Tiles never compute and exchange at the same time. On "
     "a chip without tiles, it is the time to read its memory."),
    ("synchronisation", "The time until all tiles have finished a superstep and started the next. It does not depend on "
     "the size of a layer."),
    ("step", "A block of layers in one pass of a micro-batch: forward, recomputed or backward."),
    ("recomputed", "The forward pass runs again before the backward pass, so that activations need not wait in memory."),
    ("stashed activations", "Results that wait for their backward pass: inputs of stages and blocks, and all of a "
     "micro-batch that is not recomputed."),
    ("activations", "Results of the current blocks that the backward pass still reads."),
    ("temporaries", "Copies and partial sums of the product that is being computed."),
    ("code", "The instructions of all supersteps. Every tile has its own."),
    ("FLOP", "A floating-point operation. A multiply-add counts as two."),
    ("groups of 16", "Each output channel of a convolution reads 16 input channels (its channels per group). G1 and G16 in "
     "the names of recipes have groups of 1 and 16. Without groups, each output channel reads all input channels."),
    ("kernel", "The program of a tile for a product. Matrix units take 16 input and 16 output channels at once. The kernels "
     "for groups of 1, 2 and 4 do fewer multiply-adds per cycle."),
    ("bytes", "The input, output and weights of all parts of a product. Each tile computes one part, and exchanges these "
     "values with other tiles."),
    ("intensity", "The FLOPs for each of these bytes. More channels per group give more FLOPs for the same bytes."),
    ("roof", "The largest possible rate: that of the kernel, or intensity x rate of the exchange, if this is lower."),
    ("rate", "The FLOPs divided by the predicted time of the layer. It is below the roof, because the layer synchronises, "
     "and because kernels and exchange reach a fitted share of their peak."),
)  # fmt: skip
SHOWN = 3  # A timeline shows this number of micro-batches for each stage.


def render(planned: Sequence[Planned]) -> str:
    """Return the complete page as HTML."""
    parts = [markup.paragraph(TERMS)]
    if len(planned) > 1:
        parts += [markup.heading(1, "Plans compared"), markup.text("\n".join(plan_table.comparison(planned)))]
        parts.append(markup.charts([_rates(planned)]))
    parts += [_section(each) for each in planned]
    parts += roofline_section.section([(each.name, each.prediction) for each in planned])
    firsts = {each.name: each for each in reversed(planned) if each.prediction.workload.training}
    parts += [_scaling(each) for each in reversed(firsts.values())]
    names = ", ".join(dict.fromkeys(each.name for each in planned))
    parts += [markup.heading(2, "Words on this page"), markup.table(("word", "meaning"), WORDS)]
    return markup.page(f"Plan: {names}", [*parts, markup.paragraph(plan_table.NOTE)])


def _section(planned: Planned) -> str:
    prediction, timing = planned.prediction, planned.prediction.timing
    room, unsure = prediction.room / MIB, "" if prediction.certain else ", within the error"
    facts = [
        (f"{timing.images_per_second:,.0f}", "images per second"),
        (f"{1e3 * timing.seconds:,.1f} ms", plan_table.unit_of_work(prediction)),
        (f"{timing.hours:,.1f}", "hours"),
        (
            f"{abs(room):,.0f} MiB",
            f"{'free' if prediction.fits else 'too much'} on the fullest {prediction.system.device.kind}{unsure}",
        ),
        (f"{100 * timing.idle_share:.0f} %", "idle"),
        (f"{100 * timing.peak_share:.1f} %", "of the peak arithmetic rate"),
        *([(costs.energy(prediction.kilowatt_hours), "of electricity")] if prediction.kilowatt_hours is not None else []),
    ]
    steps, drawings = supersteps.steps(prediction), []
    panels = [_memory(prediction), _update(prediction), step_panels.phases(prediction, steps)]
    panels.append(step_panels.memory(prediction, steps))
    if len(prediction.memories) > 1:
        others = dict(variants.by_schedule(prediction))
        panels = [_timeline(prediction), *panels, _schedules(prediction, others)]
        timelines = [_timeline(each) for each in others.values()]
        drawings = [markup.folded("Timelines of all schedules", markup.charts(timelines))]
    if planned.given:
        panels.insert(0, _frontier(planned, planned.given))
    return "".join(
        [
            markup.heading(2, f"{planned.name}, predicted on {prediction.system.name}"),
            markup.facts(facts),
            markup.charts(panels),
            *drawings,
            markup.folded("Numbers", markup.text(plan_table.one(planned))),
            markup.folded("Steps of a micro-batch", "".join(map(step_panels.table, steps, _ipus(prediction)))),
        ]
    )


def _scaling(planned: Planned) -> str:
    """Return a section on the found plan, or on the configuration's own plan, on larger and smaller systems."""
    workload = planned.prediction.workload
    if not planned.given:
        workload = planned.run.workload(workload.processes)
    idle = scaling.idle(workload)
    words = (
        f"With global batch {workload.plan.global_batch:,}, replicas share the micro-batches. With a growing batch, each "
        f"replica keeps {workload.plan.accumulation} micro-batches per update. "
    )
    if idle:
        words += f"Global batch {workload.plan.global_batch:,} does not divide among all replicas: {idle}."
    return markup.heading(2, f"{planned.name}, scaled") + markup.paragraph(words) + markup.charts(scaling.panels(workload))


def _frontier(planned: Planned, given: Prediction) -> Curves:
    """Return a scatter plot of rate over memory. A dot is the fastest plan for a number of stages and a micro-batch size."""
    by_stages: dict[int, list[Prediction]] = {}
    for each in planned.frontier:
        by_stages.setdefault(len(each.workload.plan.stages), []).append(each)
    groups = [
        (f"{count} stage{'s' * (count > 1)}", plans, STAGES.get(count, GREY), 1)
        for count, plans in sorted(by_stages.items())
    ]
    groups += [("given plan", [given], INK, 2), ("chosen plan", [planned.prediction], ORANGE, 2)]
    lines = [
        Line(label, [(p.fullest.total / MIB, p.timing.images_per_second) for p in plans], colour, 0, size, last=False)
        for label, plans, colour, size in groups
    ]
    title = f"Images per second: fastest of {planned.looked_at:,} plans for each number of stages and micro-batch size"
    limit, most = planned.prediction.capacity / MIB, max(y for line in lines for _, y in line.points)
    lines.insert(0, Line(f"limit: {limit:,.0f} MiB", [(limit, 0), (limit, most)], RED, last=False))
    return Curves(title, lines, (0, 1.03 * max(limit, given.fullest.total / MIB)), 0, "MiB on the fullest IPU")


def _timeline(prediction: Prediction) -> Rows:
    """Return a timeline of the first micro-batches of a weight update, with predicted times."""
    timing, plan = prediction.timing, prediction.workload.plan
    count, names = min(plan.accumulation, SHOWN * len(prediction.memories)), _ipus(prediction)
    cells = [
        (action, 1e3 * begin, 1e3 * end, f"{1e3 * (end - begin):.2f} ms") for action, begin, end in timing.placed(count)
    ]
    title = f"{plan.schedule} schedule of one replica: {count} of {plan.accumulation} micro-batches"
    return timeline.panel(title, cells, names, "ms")


def _ipus(prediction: Prediction) -> list[str]:
    return [f"{prediction.system.device.kind} {k}" for k in range(len(prediction.memories))]


def _memory(prediction: Prediction) -> Rows:
    """Return a stacked bar for the memory of each IPU, with a line at the limit."""
    marks, limit = [], prediction.capacity / MIB
    for row, memory in enumerate(prediction.memories):
        begin = 0.0
        for name, size in asdict(memory).items():
            end, words = begin + size / MIB, name.replace("_", " ")
            marks.append(Box(begin, end, step_panels.PARTS[name], row, words, f"{words}: {size / MIB:,.1f} MiB"))
            begin = end
    marks.append(Box(limit, limit, RED, ALL, f"limit: {limit:,.0f} MiB", least=2, thick=1))
    axis = 0.0, 1.03 * max(limit, prediction.fullest.total / MIB)
    return Rows("Memory of each IPU", _ipus(prediction), marks, "MiB", x_axis=axis)


def _update(prediction: Prediction) -> Rows:
    """Return a bar for each part of the time of an update, or in inference of a micro-batch."""
    rows = [
        (f"{name.replace('_', ' ')}: {1e3 * seconds:,.2f} ms", seconds, BLUE)
        for name, seconds in prediction.update_parts.items()
        if seconds > 0
    ]
    return _bars(f"Time {plan_table.unit_of_work(prediction)}", rows)


def _schedules(prediction: Prediction, others: Mapping[str, Prediction]) -> Rows:
    """Return a bar for the rate with each pipeline schedule."""
    rows = []
    for schedule, other in others.items():
        words = f"{schedule}: {other.timing.images_per_second:,.0f} img/sec, {other.fullest.total / MIB:,.0f} MiB"
        own = schedule == prediction.workload.plan.schedule
        rows.append((words, other.timing.images_per_second, BLUE if own else GREY))
    return _bars("Schedules", rows)


def _rates(planned: Sequence[Planned]) -> Rows:
    """Return a bar for the rate of each plan. The bar is red if the plan does not fit in memory."""
    rows = []
    for each in planned:
        p, rate = each.prediction, each.prediction.timing.images_per_second
        memory = f"{p.fullest.total / MIB:,.0f} of {p.capacity / MIB:,.0f} MiB"
        rows.append((f"{each.name}, {p.system.name}: {rate:,.0f} img/sec, {memory}", rate, BLUE if p.fits else RED))
    return _bars("Images per second, and memory of the fullest IPU", rows)


def _bars(title: str, rows: Iterable[tuple[str, float, str]]) -> Rows:
    """Return a panel with a bar for each (name, value, colour)."""
    rows = list(rows)
    bars = [Box(0, value, colour, k) for k, (_, value, colour) in enumerate(rows)]
    return Rows(title, [words for words, _, _ in rows], bars, tick=None, height=16)
