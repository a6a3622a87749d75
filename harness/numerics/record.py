"""numerics.jsonl in a run's folder: an observation in each line."""

from __future__ import annotations

import json
from pathlib import Path

from base import bounds
from base.storage import files, input_files
from emulator.numerics.observation import Observation, ObservedTensor

NAME = "numerics.jsonl"
MAX_BYTES = 256 << 20  # that are read


def append(folder: Path, observation: Observation) -> None:
    """Write an observation behind the others."""
    line = {
        "updates": observation.updates,
        "loss_scale": observation.scale,
        "tensors": [tensor.as_record() for tensor in observation.tensors],
    }
    with files.append(folder / NAME) as file:
        file.write((json.dumps(line) + "\n").encode())


def read(folder: Path) -> list[Observation]:
    """The observations of a folder; a line that is none, as the last one of a run that was killed, is left out."""
    return [found for line in _lines(folder) if (found := _observation(line))]


def truncate_after(folder: Path, updates: int) -> None:
    """Drop the observations after `updates`, which will be made again."""
    lines = _lines(folder)
    kept = [line for line in lines if (found := _observation(line)) and found.updates <= updates]
    if kept != lines:
        files.write_atomically(folder / NAME, "".join(f"{line}\n" for line in kept))


def is_missing(folder: Path, updates: int, every: int) -> bool:
    """Return whether an observation is due after `updates`, and not there."""
    return updates > 0 and updates % every == 0 and all(each.updates != updates for each in read(folder))


def _lines(folder: Path) -> list[str]:
    try:
        content = input_files.content(folder / NAME, MAX_BYTES)
    except FileNotFoundError:
        return []
    return content.decode("utf-8", errors="replace").splitlines()


def _observation(line: str) -> Observation | None:
    try:
        record = bounds.json_value(line)
        tensors = tuple(ObservedTensor.of_record(each) for each in record["tensors"])
        return Observation(int(record["updates"]), float(record["loss_scale"]), tensors)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
