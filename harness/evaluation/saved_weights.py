"""The weights that a validation or a server starts from: what --restore-path names, and what does not fit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.checkpoints import compatibility
from harness.checkpoints.checkpoint import Checkpoint
from harness.evaluation import photo_predictions, predictions_file
from harness.options.sections import RunOptions
from harness.processes import folders
from harness.run.origin import Origin
from harness.run.run import Run


class SavedWeights(Origin):
    """The checkpoints that --restore-path names; none: random weights."""

    def __init__(self, selected: Sequence[Checkpoint], folder: Path | None, recorded: Mapping[str, Any]) -> None:
        """`folder`: where the options of their training are `recorded`."""
        self.checkpoints, self.folder, self.recorded = selected, folder, recorded

    def check_source(self, options: RunOptions) -> list[str]:
        """A line on a number of updates, of which there are none."""
        return [f"{options.words('iterations')} changes nothing: nothing is trained here"] * options.given("iterations")

    def check_run(self, run: Run) -> list[str]:
        """Refuse checkpoints of another network, photographs that are none, and a folder that cannot be made; a line on
        each checkpoint that is left out."""
        options, warnings = run.options.checkpoint, ()
        predictions_file.check(options.output, options.predict)
        if options.predict:
            warnings = photo_predictions.list_photographs(options.predict).warnings
        elif run.options.logging.logs:
            folders.check(run)
        return [*warnings, *compatibility.check_model(run, self.checkpoints)]
