"""Describe a run for --dry-run: summary, checkpoints, the schedule of an update, the learning-rate curve."""

from __future__ import annotations

from emulator.plan import schedules
from emulator.plan.plan import ExecutionPlan
from harness.reports import predicted_rate, training_chart
from harness.run.run import Run

MAX_DRAWN = 1024  # micro-batches in a timeline
_LISTED = 8  # checkpoints that are listed


def run(run: Run, done: int = 0) -> str:
    """Return the description of a resolved run. `done`: the updates it has already done."""
    length = run.length
    points = length.checkpoint_points() if length.iterations < 10**6 else []
    shown = ", ".join(map(str, points[:_LISTED])) + (f", ... {points[-1]}" if len(points) > _LISTED else "")
    in_step = min(length.updates_per_host_step, length.iterations)
    every = f"one every {length.iterations_per_ckpt} updates" if length.iterations_per_ckpt else "none"
    return "\n".join(
        [
            run.summary(),
            *predicted_rate.lines(run),
            *[f"Done: {done} of {length.iterations} updates, {length.iterations - done} left"] * (done > 0),
            f"Host steps: {in_step} update{'s' * (in_step > 1)} each; a log line "
            + (
                f"every {length.log_interval} update{'s' * (length.log_interval > 1)}"
                if 0 < length.log_interval < length.iterations
                else "after the first and the last"
            ),
            f"Checkpoints after the initial one: {shown or every}",
            *_timeline(run.plan),
            "Number formats:",
            *run.plan.precision.table(),
            training_chart.text_curve(run.learning_rate, length.iterations, length.epochs),
        ]
    )


def _timeline(plan: ExecutionPlan) -> list[str]:
    """Return the schedule of one replica's update as text: stages in rows, clocks in columns."""
    if len(plan.stages) == 1 or plan.options.shards == 1:  # because no stage waits for another
        return []
    shown = min(plan.accumulation, MAX_DRAWN)
    cut = f", drawn for the first {shown}" if shown < plan.accumulation else ""
    timeline = schedules.build(plan.schedule, len(plan.stages), shown)
    return [
        f"{plan.schedule} schedule of {plan.one_replica}{cut}:",
        schedules.render(timeline, max_clocks=14),
        *[f"(this machine runs all {plan.micro_batches} micro-batches in {plan.passes_per_update} passes of one pipeline)"]
        * (plan.passes_per_update != plan.accumulation),
    ]
