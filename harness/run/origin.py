"""The origin of a call: nothing, unless --restore-path names a run or weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.options.sections import RunOptions
from harness.run.run import Run

if TYPE_CHECKING:
    from harness.checkpoints.read import LoadedCheckpoint
    from harness.processes.team import Team


class Origin:
    """The origin of a call that takes over no options. Subclasses say which ones they take over, and the options that
    no run can start from them with."""

    folder: Path | None = None  # of the run, or the weights, whose options are taken over
    recorded: Mapping[str, Any] = {}  # these options, and whatever else arguments.json tells
    total_replicas: int | None = None  # of a resumed run, which its instances divide anew
    updates: int = 0  # that are done

    def check_source(self, options: RunOptions) -> list[str]:
        """Lines on the weights and options that are taken over; OptionError where these options cannot resume from there."""
        return []

    def check_run(self, run: Run) -> list[str]:
        """OptionError, or another error of wrong input, for what would stop this run later; lines for its description."""
        return []


class TrainingOrigin(Origin, ABC):
    """The origin of a training. `train.run_training` calls these after the checks, in this order."""

    def completion_report(self, run: Run) -> str | None:
        """The lines that a call prints which has nothing to do; None if it has."""
        return None

    @abstractmethod
    def read_checkpoint(self, run: Run) -> tuple[Run, LoadedCheckpoint | None]:
        """The run with lines on damaged checkpoints; the checkpoint that it resumes from, on the instance that reads it."""

    @abstractmethod
    def join(self, run: Run, team: Team, checkpoint: LoadedCheckpoint | None) -> tuple[Run, Path, LoadedCheckpoint | None]:
        """The run as all instances name it, this one's folder for it, which is made, and the checkpoint on all of them."""
