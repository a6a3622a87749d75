"""The time before the first weight update by its parts: `--profile-compilation`.

Python builds the graph, TensorFlow optimises it, and XLA compiles the norms meanwhile. Where programs are not cached, the
first update waits for XLA, so the second one is timed too. A cached program is only loaded. The log gets a table, the run's
folder a Chrome trace.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from base.storage.files import write_atomically
from emulator.plan.timings import PhaseEnd
from harness.reports.profile import FOLDER_VARIABLE

BEGAN = time.perf_counter()  # this module is loaded with the first ones of a command
PREPARED, IMPORTED = "options, data and plan", "import of TensorFlow"
STEM = "compilation"


class Compilation:
    """The phases of one call, one after another, up to its first update or micro-batch."""

    def __init__(self, marks: Iterable[PhaseEnd], target: Path | None = None) -> None:
        """`marks`: the phases so far. `target`: the trace's path, if one is to be written."""
        self._phase_ends, self._target, self._reported = list(marks), target, False

    def over(self, phase: str) -> None:
        """Note that a phase ends now."""
        self._phase_ends.append(PhaseEnd(phase, time.perf_counter()))

    def again(self, seconds: float) -> list[str]:
        """Note that the last phase ran once more, with nothing left to compile; return the report."""
        self._phase_ends.append(replace(self._phase_ends.pop(), note=f"the second took {seconds:.2f} s"))
        return self.report()

    def report(self) -> list[str]:
        """Write the trace and return the table as lines of the log; nothing in a second call."""
        if self._reported:
            return []
        self._reported = True
        begins = [BEGAN, *(mark.at for mark in self._phase_ends)]
        phases = [(mark.phase, begin, mark.at - begin, mark.note) for mark, begin in zip(self._phase_ends, begins)]
        width = max(len(phase) for phase, *_ in phases)
        table = [f"  {phase:{width}}  {seconds:7.2f} s  {note}".rstrip() for phase, _, seconds, note in phases]
        lines = ["\n".join([f"Profile of the compilation, {begins[-1] - BEGAN:.1f} s from the command on:", *table])]
        if self._target:
            events = [
                {"ph": "X", "name": phase, "pid": 0, "tid": 0, "ts": 1e6 * (begin - BEGAN), "dur": 1e6 * seconds}
                for phase, begin, seconds, _ in phases
            ]
            try:
                self._target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._target, json.dumps({"traceEvents": events}))
                lines.append(f"Its phases for chrome://tracing or ui.perfetto.dev: {self._target}")
            except OSError as error:  # no reason to lose the run
                lines.append(f"The profile of the compilation was not written: {error.strerror}: {error.filename}")
        return lines


class FirstUpdates:
    """Times the first two updates of a call, each alone, for its profile."""

    def __init__(self, profile: Compilation, first: int) -> None:
        self._profile, self._first = profile, first
        self.apart = frozenset((first, first + 1))  # updates that want host steps of their own

    def before_update(self, update: int) -> None:
        """Note that a host step is about to run."""
        if update == self._first:
            self._profile.over("restoring, first checkpoint")
        self._started = time.perf_counter()

    def after_update(self, update: int) -> list[str]:
        """Note that an update has run; return the lines to log, after the second."""
        if update == self._first:
            self._profile.over("first update")
        return self._profile.again(time.perf_counter() - self._started) if update == self._first + 1 else []

    def finished(self) -> list[str]:
        """Return the lines to log at the end of a call without a second update."""
        return self._profile.report()


def target(folder: Path | None, environ: Mapping[str, Any]) -> Path | None:
    """Return where the trace goes: to gc-profile's folder or the run's, if there is one."""
    chosen = environ.get(FOLDER_VARIABLE) or folder
    return Path(chosen) / f"{STEM}.json" if chosen else None
