"""Build the programs of a run and describe them, for --compile-only. No file is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cnn_harness.harness.commands import run_log
from cnn_harness.harness.options.releases import vintage
from cnn_harness.harness.programs import build_or_load
from cnn_harness.harness.reports import build_time
from cnn_harness.harness.reports.build_time import Compilation
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.run import Run
from cnn_harness.log import RunLog

if TYPE_CHECKING:
    from cnn_harness.ipu_utils import InferenceProgram, TrainingProgram


def report(run: Run, execution: Execution, training: bool) -> None:
    """Build and describe the programs of a training, or the program of a validation."""
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
