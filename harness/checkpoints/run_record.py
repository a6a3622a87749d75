"""The record of a run: options, seed, id and data, in the state of its newest checkpoint. Without one, as before the
first one or on other hosts, the file of the last call counts. A .npz file has an entry."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from base.storage import run_files
from harness.checkpoints import find, npz_weights, state_file
from harness.checkpoints.checkpoint import CheckpointError
from harness.run.recorded_arguments import ASKED, RUN_ID, invalid_option


def options(folder: Path) -> dict[str, Any]:
    """Return the options of the run in a folder (or of the weights in a file), as they were requested."""
    recorded = arguments(folder)
    return {**recorded, **(recorded.get(ASKED) or {})}


def arguments(folder: Path) -> dict[str, Any]:
    """Return the record of the run in a folder, or of the weights in a .npz file; empty if there is none."""
    return _located(folder)[1]


def arguments_file(folder: Path) -> Path:
    """Return the file that `arguments` reads; without a record, the arguments.json of a run that has begun."""
    return _located(folder)[0]


def run_id(folder: Path) -> str | None:
    """Return the id of the run in a folder by the file of its last call; None if that does not say."""
    with suppress(CheckpointError):
        return state_file.json_object(_file(folder)).get(RUN_ID)
    return None


def _located(folder: Path) -> tuple[Path, dict[str, Any]]:
    file = npz_weights.located(folder)
    if file:
        return file, _checked(file, npz_weights.options(file))
    for checkpoint in reversed(find.numbered(folder)):
        with suppress(CheckpointError):
            recorded = state_file.read(checkpoint).get(state_file.RECORDED)
            if recorded:
                return checkpoint.state_path, recorded
    path = _file(folder)
    return path, _checked(path, state_file.json_object(path)) if path.exists() else {}


def _file(folder: Path) -> Path:
    first, last = (folder / name for name in run_files.ARGUMENTS)
    return last if last.exists() else first


def _checked(path: Path, recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the record; CheckpointError for values that no run records, as strangers may write."""
    wrong = invalid_option(recorded)
    if wrong:
        raise CheckpointError(f"{path} is damaged: {wrong}")
    return recorded
