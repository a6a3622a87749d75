"""Show what a run would do: --dry-run, --summary, --compile-only and --dataset-benchmark. No file is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cnn_harness.emulator.plan import schedules
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.harness.commands import answers, run_log
from cnn_harness.harness.options.releases import vintage
from cnn_harness.harness.programs import build_or_load
from cnn_harness.harness.reports import build_time, layer_table, predicted_rate, training_chart
from cnn_harness.harness.reports.build_time import Compilation
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.run import Run
from cnn_harness.log import RunLog

if TYPE_CHECKING:
    from cnn_harness.ipu_utils import InferenceProgram, TrainingProgram

MAX_DRAWN = 1024  # the largest number of micro-batches in a drawn schedule
_LISTED = 8  # the largest number of listed checkpoints


@dataclass(frozen=True)
class Preview:
    """The run to show, and where it would happen. `done` updates are done already; `warnings` are about its origin."""

    run: Run
    execution: Execution
    warnings: Sequence[str]
    done: int
    training: bool


def _dataset_benchmark(asked: Preview) -> None:
    from cnn_harness.harness.evaluation import input_benchmark

    input_benchmark.report(asked.run, asked.execution, asked.training)


def _dry_run(asked: Preview) -> None:
    run, execution = asked.run, asked.execution
    text = _described(run, execution, asked.done) if asked.training else run.summary(execution)
    answers.print_answer(*execution.notes, *asked.warnings, text)


def _summary(asked: Preview) -> None:
    run, after = asked.run, asked.run.options.main.after
    table = layer_table.table_after(run, after, asked.training) if after else layer_table.layer_table(run.network, run.plan)
    answers.print_answer(table)


def _described(run: Run, execution: Execution, done: int) -> str:
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


def _compile_only(asked: Preview) -> None:
    """Build and describe the programs of a training, or the program of a validation."""
    run, execution, training = asked.run, asked.execution, asked.training
    log = RunLog(None)
    head = run_log.training_head(run, execution) if training else run_log.validation_head(run)
    for line in (*execution.notes, *head):
        log.note(line)
    if training:
        program = build_or_load.training_program(run, execution, log)
        _profile(run, log, program)
        megabytes = sum(value.nbytes for value in program.values().values()) / 1e6
        _report(run, log, program, "training", f", {megabytes:,.1f} MB of weights and optimiser state")
    if not training or (run.options.checkpoint.validation and run.data_source.spec.validation_images):
        program = build_or_load.validation_program(run, execution, log)
        if not training:
            _profile(run, log, program)
        _report(run, log, program, "validation")
    log.close()


def _profile(run: Run, log: RunLog, program: TrainingProgram | InferenceProgram) -> None:
    """With --profile-compilation, log how long each phase took."""
    if run.options.device.profile_compilation:
        for line in Compilation(program.phase_ends, build_time.target(None, os.environ)).report():
            log.note(line)


def _report(run: Run, log: RunLog, program: TrainingProgram | InferenceProgram, kind: str, size: str = "") -> None:
    operations = len(program.graph.get_operations())
    words = vintage(run.options.main.release).compiled.format(kind=kind, Kind=kind.capitalize())
    log.note(f"{words}: {operations:,} operations{size}.")
    program.close()


SHOW: Mapping[str, Callable[[Preview], None]] = {  # by option
    "dataset_benchmark": _dataset_benchmark, "dry_run": _dry_run, "summary": _summary, "compile_only": _compile_only,
}  # fmt: skip
