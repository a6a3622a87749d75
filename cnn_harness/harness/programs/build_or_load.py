"""Build a run's programs or load them from the program cache. Log whether a program was built or loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from cnn_harness.base.process import progress
from cnn_harness.emulator.plan.timings import PhaseEnd
from cnn_harness.harness.programs import program_cache
from cnn_harness.harness.reports import build_time
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.run import Run
from cnn_harness.log import RunLog

if TYPE_CHECKING:
    from cnn_harness.harness.programs.program_cache import DiskCacheEntry
    from cnn_harness.ipu_utils import InferenceProgram, TrainingProgram, WorkerGroup

    Entry = DiskCacheEntry | None
AnyProgram = TypeVar("AnyProgram", "TrainingProgram", "InferenceProgram")


def training_program(
    run: Run, execution: Execution, log: RunLog, update: int = 0, recording: bool = False,
    group: WorkerGroup | None = None,
) -> TrainingProgram:  # fmt: skip
    """Return the compiled training program. The arguments `update`, `recording` and `group` are passed to
    `build.training_program`."""

    def built(entry: Entry) -> TrainingProgram:
        from cnn_harness.harness.programs import build

        return build.training_program(run, execution.seed, update, recording, group, entry)

    return _ready(run, execution, log, "training", built, "Compilation time: {:.1f}s.", recording)


def validation_program(run: Run, execution: Execution, log: RunLog) -> InferenceProgram:
    """Return the compiled validation program."""

    def built(entry: Entry) -> InferenceProgram:
        from cnn_harness.harness.programs import build

        return build.validation_program(run, execution, entry)

    return _ready(run, execution, log, "validation", built, "Validation program ready in {:.1f}s.")


def _ready(
    run: Run, execution: Execution, log: RunLog, kind: str, built: Callable[[Entry], AnyProgram], line: str,
    recording: bool = False,
) -> AnyProgram:  # fmt: skip
    """Return a compiled program, and log the seconds that this took with the format string `line`.

    The function `built` builds the program, or loads it from the cache entry that it receives.
    """
    with progress.waiting("Building the program"):
        prepared = PhaseEnd(build_time.PREPARED, time.perf_counter())
        program_cache.import_tensorflow(run, execution.cluster.size)
        from cnn_harness.harness.programs import build  # noqa: F401  # This import is here so that its time is measured separately.

        imported = PhaseEnd(build_time.IMPORTED, time.perf_counter())
        entry = program_cache.cache_entry(run, execution, kind, recording=recording)
        program = built(entry)
        if entry:
            entry.warn = log.warn
        program.compile()
    program.phase_ends[:0] = [prepared, imported]
    log.note(line.format(time.perf_counter() - imported.at))
    for text in entry.report() if entry else ():
        log.detail(f"  {text}")
    return program
