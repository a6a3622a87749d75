"""The origin of a call: nothing, or in subclasses a run or weights whose options the call inherits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.options.sections import RunOptions
from harness.run.run import Run


class Origin:
    """An origin without recorded options."""

    folder: Path | None = None  # a run directory, or a file of weights
    recorded: Mapping[str, Any] = {}  # the options, as they were requested
    total_replicas: int | None = None  # of all instances of a resumed run
    updates: int = 0  # the number of updates done before this call

    def check_source(self, options: RunOptions) -> list[str]:
        """Return notes for the log. OptionError or CheckpointError if a run with these options cannot start here."""
        return []

    def check_run(self, run: Run) -> list[str]:
        """Return notes for a dry run. Raise the errors that would stop this run later."""
        return []
