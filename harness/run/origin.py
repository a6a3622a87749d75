"""The start of a call: from nothing, unless a subclass names a run or weights whose options are inherited."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.options.sections import RunOptions
from harness.run.run import Run


class Origin:
    """A start without recorded options."""

    folder: Path | None = None  # the run directory, or weights file, whose options are inherited
    recorded: Mapping[str, Any] = {}  # its record, with the options as they were requested
    total_replicas: int | None = None  # of a resumed run; its instances share them
    updates: int = 0  # done before this call

    def check_source(self, options: RunOptions) -> list[str]:
        """Return notes for the log; OptionError or CheckpointError if these options cannot start from the source."""
        return []

    def check_run(self, run: Run) -> list[str]:
        """Return notes for a dry run; raise an error for whatever would stop this run later."""
        return []
