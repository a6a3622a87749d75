"""The updates of a call that are recorded or timed, each in a host step of its own: --profile, --profile-compilation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from harness.reports import compilation, profile
from harness.reports.compilation import Compilation, FirstUpdates
from harness.training.job import Job

if TYPE_CHECKING:
    from ipu_utils import Metrics, TrainingProgram

Progress = Callable[[float, float], None]  # called with loss and accuracy of every update


class UpdateProfiler:
    """Carries host steps out, and records those that are asked for."""

    def __init__(
        self, job: Job, program: TrainingProgram, request: profile.Request | None, recorded: bool, first: int, last: int
    ) -> None:
        """`request`: what this instance writes of the recorded update, if one is `recorded` in any instance; `first`: the
        call's first update, `last`: that it ends after."""
        self._job, self._program, self._request = job, program, request
        # the first update of a call warms caches up
        self._update = -1 if not recorded else first + 1 if first + 1 < last else first
        self._first_updates: FirstUpdates | None = None
        if job.run.options.device.profile_compilation:
            trace = compilation.target(job.folder, os.environ) if job.team.first else None
            self._first_updates = FirstUpdates(Compilation(program.phase_ends, trace), first)

    @property
    def isolated_updates(self) -> set[int]:
        """The updates that get host steps of their own."""
        return {self._update, *(self._first_updates.apart if self._first_updates else ())}

    def step(self, first: int, end: int, report: Progress) -> tuple[Metrics, float]:
        """Updates first..end-1, or fewer if they are stopped, and their seconds."""
        run, timed = self._job.run, self._first_updates
        if timed:
            timed.begins(first)
        started = time.perf_counter()
        if first == self._update and self._request:
            metrics = self._recorded(first, self._request, report)
        else:
            metrics = self._program.step([run.rate(i) for i in range(first, end)], report)
        seconds = time.perf_counter() - started
        self._note(timed.ended(first) if timed else ())
        return metrics, seconds

    def finish(self) -> None:
        """The log's lines on a call that had no second update."""
        self._note(self._first_updates.settled() if self._first_updates else ())

    def _recorded(self, update: int, request: profile.Request, report: Progress) -> Metrics:
        run = self._job.run
        record = self._program.profile(run.rate(update), request.operations, report)
        title = f"{run.name}, update {update + 1}"
        self._note(profile.write(request, run.plan, title, record.cells, record.operations, record.most_alive))
        return record.metrics

    def _note(self, lines: Sequence[str] | Iterator[str]) -> None:
        for line in lines:
            self._job.log.note(line)
