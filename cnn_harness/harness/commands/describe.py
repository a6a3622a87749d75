"""Describe a run for --dry-run: summary, checkpoints, pipeline schedule and learning-rate curve."""

from __future__ import annotations

from cnn_harness.emulator.plan import schedules
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.harness.reports import predicted_rate, training_chart
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.run import Run

MAX_DRAWN = 1024  # the largest number of micro-batches in a drawn schedule
_LISTED = 8  # the largest number of listed checkpoints


def run(run: Run, execution: Execution, done: int = 0) -> str:
    """Return the description of a run that has already done `done` updates."""
    length = run.length
    points = length.checkpoint_points() if length.iterations < 10**6 else []
    shown = ", ".join(map(str, points[:_LISTED])) + (f", ... {points[-1]}" if len(points) > _LISTED else "")
    in_step = min(length.updates_per_host_step, length.iterations)
    every = f"one every {length.iterations_per_ckpt} updates" if length.iterations_per_ckpt else "none"
    return "\n".join(
        [
            run.summary(execution),
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
    """Return the pipeline schedule of one update as text: a row for each stage, a column for each clock."""
    if len(plan.stages) == 1 or plan.options.shards == 1:  # no stage waits for another stage
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
