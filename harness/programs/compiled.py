"""A run's programs, built or taken from the program cache, with log lines about it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from emulator.plan.timings import PhaseEnd
from harness.programs import program_cache
from harness.reports import compilation
from harness.run.run import Run
from log import RunLog

if TYPE_CHECKING:
    from ipu_utils import InferenceProgram, TrainingProgram, WorkerGroup


def training_program(
    run: Run, log: RunLog, update: int = 0, recording: bool = False, group: WorkerGroup | None = None
) -> TrainingProgram:
    """Return the compiled training program, whose data begin at weight update `update`. `recording`: of its cells' times;
    `group`: the instances that train together."""
    phases = _import_tensorflow(run)
    from harness.programs import build

    entry = program_cache.cache_entry(run, "training", recording=recording)
    program = build.training_program(run, update, recording, group, entry)
    _compile(program, phases, entry, log, "Compilation time: {:.1f}s.")
    return program


def validation_program(run: Run, log: RunLog) -> InferenceProgram:
    """Return the compiled validation program."""
    phases = _import_tensorflow(run)
    from harness.programs import build

    entry = program_cache.cache_entry(run, "validation", recording=False)
    program = build.validation_program(run, entry)
    _compile(program, phases, entry, log, "Validation program ready in {:.1f}s.")
    return program


def _import_tensorflow(run: Run) -> list[PhaseEnd]:
    """Import TensorFlow and the module that builds graphs; return the ends of the run's preparation and of the imports."""
    prepared = PhaseEnd(compilation.PREPARED, time.perf_counter())
    program_cache.import_tensorflow(run)
    from harness.programs import build  # noqa: F401

    return [prepared, PhaseEnd(compilation.IMPORTED, time.perf_counter())]


def _compile(
    program: TrainingProgram | InferenceProgram,
    phases: list[PhaseEnd],
    entry: program_cache.DiskCacheEntry | None,
    log: RunLog,
    line: str,
) -> None:
    """Make a program ready to run. `line`: of the log, with the seconds since the imports."""
    if entry:
        entry.warn = log.warn
    program.compile()
    program.phase_ends[:0] = phases
    for text in (line.format(time.perf_counter() - phases[-1].at), *(entry.report() if entry else ())):
        log.note(text)
