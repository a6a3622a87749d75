"""The objects that all parts of a training share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from base.process.signals import Signals
from harness.checkpoints.write import Writer
from harness.processes.team import Team
from harness.reports import mlperf, profile
from harness.run.run import Run
from log import RunLog


@dataclass(frozen=True)
class TrainingContext:
    """A run in this process: the run itself, with which other instances, where this one writes, and how it is told to
    stop. `writer`: of checkpoints; `mlperf`: the lines for MLPerf; `profile`: this instance's files of one update."""

    run: Run
    team: Team
    folder: Path
    log: RunLog
    writer: Writer
    signals: Signals
    mlperf: mlperf.Events
    profile: profile.ProfileRequest | None

    @property
    def saves(self) -> bool:
        """True if the run has checkpoints."""
        return self.run.length.iterations_per_ckpt > 0

    @property
    def writes(self) -> bool:
        """True if this instance writes checkpoints."""
        return self.team.is_first or self.run.options.checkpoint.ckpt_all_instances
