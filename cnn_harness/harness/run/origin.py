"""The base class of what a call starts from: nothing here; in subclasses, a run or weights with recorded options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnn_harness.harness.options.sections import RunOptions
from cnn_harness.harness.run.cluster import Cluster
from cnn_harness.harness.run.run import Run


class Origin:
    """A call that starts from nothing and inherits no options."""

    folder: Path | None = None  # The run directory or the weights file.
    recorded: Mapping[str, Any] = {}  # The recorded options, as the user gave them.
    total_replicas: int | None = None  # The replicas of all processes of a resumed run.
    updates: int = 0  # The number of updates done before this call.

    def check_source(self, options: RunOptions) -> list[str]:
        """Return notes for the log. Raise OptionError or CheckpointError if a run with these options cannot start."""
        return []

    def options(self, options: RunOptions) -> RunOptions:
        """Return the options without those that have no effect, because the call starts from a run."""
        return options

    def check_run(self, run: Run, cluster: Cluster) -> list[str]:
        """Return notes for a dry run. Raise the errors that would later stop the run."""
        return []
