"""The state in a checkpoint that is no variable, a JSON object: the meter's averages and the record of the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from base import bounds
from base.storage import input_files
from harness.checkpoints import manifest
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError

ITERATION = "iteration"  # the updates that are done, in manifests
SAFETY = "rolling"  # true in a checkpoint that the next one replaces
RECORDED = "arguments"  # the content of the call's arguments.json: options, seed, run id, data
MAX_JSON = 64 << 20  # bytes of arguments or a state


def read(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the state; empty without its file. CheckpointError unless the manifest proves it."""
    if not os.path.lexists(checkpoint.state_path):
        return {}
    if not manifest.matches(checkpoint.state_path, Path(checkpoint.prefix)):
        raise CheckpointError(f"{checkpoint.state_path.name} has other content than was written")
    return json_object(checkpoint.state_path)


def json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; CheckpointError for any other content."""
    try:
        value = bounds.json_value(input_files.content(path, MAX_JSON))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {bounds.reason(error)}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged: it must hold one JSON object")
    return value
