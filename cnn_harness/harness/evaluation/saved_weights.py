"""Check the checkpoints in --restore-path before a validation, a prediction or an inference server uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cnn_harness.harness.checkpoints import compatibility
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.distributed import folders
from cnn_harness.harness.evaluation import photo_predictions, predictions_file
from cnn_harness.harness.options.sections import RunOptions
from cnn_harness.harness.run.cluster import Cluster
from cnn_harness.harness.run.resolve import Origin
from cnn_harness.harness.run.run import Run


class SavedWeights(Origin):
    """The checkpoints in --restore-path. If there are none, the weights are random."""

    def __init__(self, selected: Sequence[Checkpoint], folder: Path | None, recorded: Mapping[str, Any]) -> None:
        """`recorded` are the options of the training that wrote the checkpoints, and `folder` is its run directory."""
        self.checkpoints, self.folder, self.recorded = selected, folder, recorded

    def check_source(self, options: RunOptions) -> list[str]:
        """Return a message if --iterations is given."""
        return [f"{options.words('iterations')} has no effect: this command does not train"] * options.given("iterations")

    def check_run(self, run: Run, cluster: Cluster) -> list[str]:
        """Return a warning for each skipped photo or checkpoint. Raise an error for checkpoints of another network, for
        unreadable photos, and for a run directory that cannot be created."""
        options, warnings = run.options.checkpoint, ()
        predictions_file.check(options.output, options.predict)
        if options.predict:
            warnings = photo_predictions.list_photos(options.predict).warnings
        elif run.options.logging.logs:
            folders.check(run, cluster)
        return [*warnings, *compatibility.check_model(run, self.checkpoints)]
