"""The origin of a call: nothing, unless --restore-path names a run or weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.options.sections import RunOptions
from harness.run.run import Run


class Origin:
    """The origin of a call that takes over no options. Subclasses say which ones they take over, and the options that
    no run can start from them with."""

    folder: Path | None = None  # of the run, or the weights, whose options are taken over
    recorded: Mapping[str, Any] = {}  # these options, and whatever else arguments.json tells
    total_replicas: int | None = None  # of a run that goes on, which its instances divide anew
    updates: int = 0  # that are done

    def notes(self, options: RunOptions) -> list[str]:
        """Lines on the weights and options that are taken over; OptionError where these options cannot go on from there."""
        return []

    def is_complete(self, run: Run) -> bool:
        """Return whether the call has nothing to do."""
        return False

    def as_complete(self, run: Run) -> str:
        """Return the lines that a call prints which has nothing to do."""
        return ""

    def check(self, run: Run) -> list[str]:
        """OptionError, or another error of wrong input, for what would stop this run later; lines for its description."""
        return []
