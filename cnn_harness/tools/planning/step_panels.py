"""Draw the steps of a micro-batch: their time by phase of the supersteps, and the memory over these steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate, groupby

from cnn_harness.emulator.cost_model.prediction import Prediction
from cnn_harness.emulator.cost_model.supersteps import Phases, Step
from cnn_harness.harness.reports import markup
from cnn_harness.harness.reports.chart import BLUE, GREY, ORANGE, RED, Box, Curves, Line, Rows
from cnn_harness.harness.reports.predicted_rate import MIB

PARTS = {
    "weights": "#264653", "optimiser_state": "#2a9d8f", "gradients": "#8ab17d", "stashed_activations": "#e9c46a",
    "activations": "#f4a261", "temporaries": "#e76f51", "images": "#9b5de5", "code": "#8d99ae",
}  # fmt: skip
VARYING = ("stashed_activations", "activations", "temporaries")  # The other parts stay the same over an update.
PHASES = dict(zip(Phases._fields, (BLUE, ORANGE, GREY)))


def phases(prediction: Prediction, steps: Sequence[Sequence[Step]]) -> Rows:
    """Return a bar for each IPU and pass of a micro-batch, divided into the phases of its supersteps."""
    names, marks, chip = [], [], prediction.system.device.kind
    for ipu, own in enumerate(steps):
        for kind in dict.fromkeys(step.step for step in own):
            count, begin = sum(step.supersteps for step in own if step.step == kind), 0.0
            for phase, colour in PHASES.items():
                end = begin + 1e3 * sum(getattr(step.seconds, phase) for step in own if step.step == kind)
                marks.append(Box(begin, end, colour, len(names), phase, f"{phase}: {end - begin:.3f} ms"))
                begin = end
            names.append(f"{chip} {ipu}, {kind}: {count:,} supersteps, {begin:.2f} ms")
    micro_batches = prediction.workload.plan.accumulation
    most = max(sum(step.supersteps for step in own) for own in steps)
    note = f"An update has {micro_batches} x {most:,} supersteps on the {chip} with most, then all-reduce and update."
    note *= prediction.workload.training
    return Rows("A micro-batch by phase of its supersteps", names, marks, "ms", height=16, note=note)


def memory(prediction: Prediction, steps: Sequence[Sequence[Step]]) -> Curves:
    """Return the memory of the fullest chip over the steps of a micro-batch, as stacked areas."""
    ipu = prediction.memories.index(prediction.fullest)
    own = [(step, asdict(step.memory), 1e3 * sum(step.seconds)) for step in steps[ipu] if step.memory]
    ends = list(accumulate(duration for _, _, duration in own))
    limit, lines, below = prediction.capacity / MIB, [], [0.0] * len(own)
    for name in sorted(PARTS, key=VARYING.__contains__):
        below = [low + parts[name] / MIB for low, (_, parts, _) in zip(below, own)]
        points = [(x, top) for begin, end, top in zip((0.0, *ends), ends, below) for x in (begin, end)]
        if any(parts[name] for _, parts, _ in own):
            lines.append(Line(name.replace("_", " "), points, PARTS[name], 8, last=False, filled=True))
    lines = [*reversed(lines), Line(f"limit: {limit:,.0f} MiB", [(0, limit), (ends[-1], limit)], RED, last=False)]
    parts = [list(group)[-1] for _, group in groupby(zip(own, ends), lambda each: each[0][0].step)]
    kinds = list(dict.fromkeys(step.step for (step, _, _), _ in parts))
    words = f"{' and '.join(kinds)} in turn" if len(kinds) < len(parts) else ", ".join(
        f"{kind} until {end:.2f}" for kind, (_, end) in zip(kinds, parts))  # fmt: skip
    title = f"Memory of {prediction.system.device.kind} {ipu} over the steps of a micro-batch (MiB)"
    return Curves(title, lines, (0, ends[-1]), 0, f"ms: {words}", height=210)


def table(steps: Sequence[Step], chip: str) -> str:
    """Return a table of the steps of a chip with a name."""
    rows = []
    for step in steps:
        times = [("n", f"{1e3 * seconds:.4f}") for seconds in step.seconds]
        parts = asdict(step.memory) if step.memory else {}
        sizes = [parts[name] for name in VARYING] + [sum(parts.values())] if parts else []
        rows.append(
            (f"{step.stage}: {step.block}, {step.step}", ("n", f"{step.supersteps:,}"), *times,
             *(("n", f"{size / MIB:,.1f}") for size in sizes))
        )  # fmt: skip
    words = (name.replace("_", " ") for name in VARYING)
    caption = (
        f"{chip}: times in ms, and memory in MiB at the fullest moment of a step. Times sum to those of the stage, and the "
        "largest memory is that of the chip. A forward pass that is recomputed keeps less, so its memory is not counted."
    )
    return markup.table(("stage: block, step", "supersteps", *PHASES, *words, "memory"), rows, caption)
