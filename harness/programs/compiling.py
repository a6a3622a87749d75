"""A run's programs, built or taken from those that are kept, with the log's lines about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    return _compiled(
        run, log, "training", "Compilation time: {:.1f}s.", recording,
        lambda build, cache_entry: build.training_program(run, update, recording, group, cache_entry),
    )  # fmt: skip


def validation_program(run: Run, log: RunLog) -> InferenceProgram:
    """The compiled validation program."""
    return _compiled(
        run, log, "validation", "Validation program ready in {:.1f}s.", False,
        lambda build, cache_entry: build.validation_program(run, cache_entry),
    )  # fmt: skip


def _compiled(run: Run, log: RunLog, kind: str, line: str, recording: bool, make: Callable[[Any, Any], Any]) -> Any:
    """The program that `make` gives from the module that builds graphs and the place where programs of this kind are kept.
    `line`: of the log, with the seconds that took."""
    prepared = PhaseEnd(compilation.PREPARED, time.perf_counter())
    program_cache.import_tensorflow(run)
    from harness.programs import build

    started = time.perf_counter()
    cache_entry = program_cache.cache_entry(run, kind, recording=recording)
    program = make(build, cache_entry)
    program.compile()
    program.phase_ends[:0] = [prepared, PhaseEnd(compilation.IMPORTED, started)]
    for text in (line.format(time.perf_counter() - started), *(cache_entry.report() if cache_entry else ())):
        log.note(text)
    return program
