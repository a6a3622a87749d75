"""What everything in a training shares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.processes.team import Team
from harness.run.run import Run
from log import RunLog


@dataclass(frozen=True)
class Job:
    """A run in this process: what is trained, with which other instances, where this one writes."""

    run: Run
    team: Team
    folder: Path
    log: RunLog

    @property
    def saves(self) -> bool:
        """Whether the run has checkpoints."""
        return self.run.length.iterations_per_ckpt > 0

    @property
    def writes(self) -> bool:
        """Whether this instance writes them."""
        return self.team.first or self.run.options.checkpoint.ckpt_all_instances
