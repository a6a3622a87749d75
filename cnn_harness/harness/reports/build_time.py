"""Break down the time before the first weight update (`--profile-compilation`): a table in the log and a Chrome trace.

XLA compiles the norms while Python builds the graph and TensorFlow optimises it. If no compiled program is cached, the first
update waits for XLA, so the second update is timed for comparison.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cnn_harness.base.storage.files import write_atomically
from cnn_harness.emulator.plan.timings import PhaseEnd
from cnn_harness.harness.reports.profile import FOLDER_VARIABLE

BEGAN = time.perf_counter()  # Every command imports this module early, so this is about the start of the process.
PREPARED, IMPORTED = "options, data and plan", "import of TensorFlow"
STEM = "compilation"


class Compilation:
    """The phases of a command in order of time, up to the first update or micro-batch."""

    def __init__(self, marks: Iterable[PhaseEnd], target: Path | None = None) -> None:
        """`marks` are the phases that are already over. The trace is written to `target`, or not at all if it is None."""
        self._phase_ends, self._target, self._reported = list(marks), target, False

    def over(self, phase: str) -> None:
        """Record the end of a phase."""
        self._phase_ends.append(PhaseEnd(phase, time.perf_counter()))

    def again(self, seconds: float) -> list[str]:
        """Record the time of a second run of the last phase, which compiles nothing, and return the report."""
        self._phase_ends.append(replace(self._phase_ends.pop(), note=f"the second took {seconds:.2f} s"))
        return self.report()

    def report(self) -> list[str]:
        """Write the trace and return the log lines. Later calls return no lines."""
        if self._reported:
            return []
        self._reported = True
        begins = [BEGAN, *(mark.at for mark in self._phase_ends)]
        phases = [(mark.phase, begin, mark.at - begin, mark.note) for mark, begin in zip(self._phase_ends, begins)]
        width = max(len(phase) for phase, *_ in phases)
        table = [f"  {phase:{width}}  {seconds:7.2f} s  {note}".rstrip() for phase, _, seconds, note in phases]
        lines = ["\n".join([f"Compilation profile, {begins[-1] - BEGAN:.1f} s since the command started:", *table])]
        if self._target:
            events = [
                {"ph": "X", "name": phase, "pid": 0, "tid": 0, "ts": 1e6 * (begin - BEGAN), "dur": 1e6 * seconds}
                for phase, begin, seconds, _ in phases
            ]
            try:
                self._target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._target, json.dumps({"traceEvents": events}))
                lines.append(f"Trace of the phases for chrome://tracing or ui.perfetto.dev: {self._target}")
            except OSError as error:  # The run continues without a profile.
                lines.append(f"The compilation profile was not written: {error.strerror}: {error.filename}")
        return lines


def target(folder: Path | None, environ: Mapping[str, Any]) -> Path | None:
    """Return the path of the trace, in the directory given to gc-profile or else in the run directory `folder`; None if
    there is no directory."""
    chosen = environ.get(FOLDER_VARIABLE) or folder
    return Path(chosen) / f"{STEM}.json" if chosen else None
