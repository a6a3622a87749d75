"""A run's programs, built or taken from those that are kept, with the log's lines about it."""

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
    """The compiled training program, its data beginning at weight update `update`; `recording`: of its cells' times;
    `group`: the instances that train together."""
    imports = _import_builder(run)
    from harness.programs import build

    cache_entry = program_cache.cache_entry(run, "training", recording=recording)
    program = build.training_program(run, update, recording, group, cache_entry)
    _compile(program, imports, cache_entry, log, "Compilation time: {:.1f}s.")
    return program


def validation_program(run: Run, log: RunLog) -> InferenceProgram:
    """The compiled validation program."""
    imports = _import_builder(run)
    from harness.programs import build

    cache_entry = program_cache.cache_entry(run, "validation", recording=False)
    program = build.validation_program(run, cache_entry)
    _compile(program, imports, cache_entry, log, "Validation program ready in {:.1f}s.")
    return program


def _import_builder(run: Run) -> list[PhaseEnd]:
    """Import TensorFlow and the module that builds graphs; return the ends of the run's preparation and of the imports."""
    prepared = PhaseEnd(compilation.PREPARED, time.perf_counter())
    program_cache.import_tensorflow(run)
    from harness.programs import build  # noqa: F401

    return [prepared, PhaseEnd(compilation.IMPORTED, time.perf_counter())]


def _compile(
    program: TrainingProgram | InferenceProgram,
    imports: list[PhaseEnd],
    cache_entry: program_cache.DiskCacheEntry | None,
    log: RunLog,
    line: str,
) -> None:
    """Make a program ready to run. `line`: of the log, with the seconds since the imports."""
    if cache_entry:
        cache_entry.warn = log.warn
    program.compile()
    program.phase_ends[:0] = imports
    for text in (line.format(time.perf_counter() - imports[-1].at), *(cache_entry.report() if cache_entry else ())):
        log.note(text)
