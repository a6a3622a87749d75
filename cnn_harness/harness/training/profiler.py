"""Profile single updates for --profile and --profile-compilation. A profiled update is run in a separate host step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cnn_harness.harness.reports import build_time, profile
from cnn_harness.harness.reports.build_time import Compilation
from cnn_harness.harness.training.run_dir import TrainingContext

if TYPE_CHECKING:
    from cnn_harness.ipu_utils import Metrics, TrainingProgram

Progress = Callable[[float, float], None]  # The function is called after each update, with its loss and accuracy.


class UpdateProfiler:
    """Times the first updates of a call if --profile-compilation is given, and records one update if --profile is given."""

    def __init__(self, context: TrainingContext, program: TrainingProgram, recorded: bool, first: int, last: int) -> None:
        """`recorded` is True if any instance records an update. The call runs the updates first..last-1."""
        self._context, self._program, self._request = context, program, context.profile
        # Record the second update, because the first one warms up caches.
        self._update = -1 if not recorded else first + 1 if first + 1 < last else first
        self._first, self._compilation, self._started = first, None, 0.0
        if context.run.options.device.profile_compilation:
            trace = build_time.target(context.folder, os.environ) if context.team.is_first else None
            self._compilation = Compilation(program.phase_ends, trace)

    @property
    def isolated_updates(self) -> set[int]:
        """The updates that need a separate host step."""
        return {self._update, *((self._first, self._first + 1) if self._compilation else ())}

    def before_update(self, first: int) -> None:
        """Start timing the host step that begins with update `first`."""
        if self._compilation and first == self._first:
            self._compilation.over("restoring, first checkpoint")
        self._started = time.perf_counter()

    def after_update(self, first: int) -> None:
        """Stop timing the host step that began with update `first`, and log the result."""
        if self._compilation and first == self._first:
            self._compilation.over("first update")
        elif self._compilation and first == self._first + 1:
            self._note(self._compilation.again(time.perf_counter() - self._started))

    def records(self, update: int) -> bool:
        """Return whether this instance records the update."""
        return update == self._update and self._request is not None

    def record(self, update: int, learning_rate: float, report: Progress) -> Metrics:
        """Run the update, and write a profile: the times of its pipeline cells and operations. Return the metrics."""
        from cnn_harness.harness.reports import training_chart

        run, request = self._context.run, self._request
        profiled = self._program.profile(learning_rate, request.operations, report)
        title = f"{training_chart.run_title(run.options.values())}: update {update + 1} of {run.name}"
        self._note(profile.write(request, run.plan, title, profiled.cells, profiled.operations, profiled.most_alive))
        return profiled.metrics

    def finish(self) -> None:
        """Log the times that are still missing because the call had no second update."""
        self._note(self._compilation.report() if self._compilation else ())

    def _note(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._context.log.note(line)
