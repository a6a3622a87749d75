"""Read the state of a checkpoint, and the record of a run: its options, seed and data.

The state has averages of the log and the record of the run. The record is read from the newest checkpoint, otherwise from
arguments.json. A weights file has its own record.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from cnn_harness.base import bounds
from cnn_harness.base.storage import input_files, run_files
from cnn_harness.harness.checkpoints import find, manifest, weights_file
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from cnn_harness.harness.run.recorded_arguments import ASKED, RUN_ID, invalid_option

SAFETY = "rolling"  # a key of the state: true if the next checkpoint replaces this checkpoint
RECORDED = "arguments"  # a key of the state: the content of arguments.json
_MAX_BYTES = 64 << 20


def state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the state of a checkpoint, or {} if it has none. Raise CheckpointError if its digest is wrong."""
    if not checkpoint.state_path.exists():
        return {}
    if not manifest.matches(checkpoint.state_path, Path(checkpoint.prefix)):
        raise CheckpointError(f"{checkpoint.state_path.name} has changed since it was written")
    return _json_object(checkpoint.state_path)


def options(folder: Path) -> dict[str, Any]:
    """Return the options of a run directory or a weights file, as the user gave them."""
    recorded = arguments(folder)
    return {**recorded, **(recorded.get(ASKED) or {})}


def arguments(folder: Path) -> dict[str, Any]:
    """Return the record of a run directory or a weights file, or {} if there is none."""
    return _located(folder)[1]


def arguments_file(folder: Path) -> Path:
    """Return the file that `arguments` reads; if there is no record, return the path of arguments.json."""
    return _located(folder)[0]


def run_id(folder: Path) -> str | None:
    """Return the id of a run from arguments.json, or None if it is not recorded."""
    with suppress(CheckpointError):
        return _json_object(_file(folder)).get(RUN_ID)
    return None


def _located(folder: Path) -> tuple[Path, dict[str, Any]]:
    file = weights_file.located(folder)
    if file:
        return file, _checked(file, weights_file.options(file))
    for checkpoint in reversed(find.numbered(folder)):
        with suppress(CheckpointError):
            recorded = state(checkpoint).get(RECORDED)
            if recorded:
                return checkpoint.state_path, recorded
    path = _file(folder)
    return path, _checked(path, _json_object(path)) if path.exists() else {}


def _file(folder: Path) -> Path:
    first, last = (folder / name for name in run_files.ARGUMENTS)
    return last if last.exists() else first


def _json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raise CheckpointError for any other content."""
    try:
        value = bounds.json_value(input_files.content(path, _MAX_BYTES))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {bounds.reason(error)}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged: it must contain one JSON object")
    return value


def _checked(path: Path, recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the record. Raise CheckpointError if a value has a wrong type."""
    wrong = invalid_option(recorded)
    if wrong:
        raise CheckpointError(f"{path} is damaged: {wrong}")
    return recorded
