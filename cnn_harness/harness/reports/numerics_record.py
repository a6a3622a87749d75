"""Write and read numerics.jsonl, the observations of a run by --numerics: a line for each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from cnn_harness.base.storage import files

if TYPE_CHECKING:
    from cnn_harness.emulator.numerics.observation import Observation

RECORD = "numerics.jsonl"
_WHOLE_LINE = re.compile(rb'\{"updates": ([0-9]{1,18}), "loss_scale": .*\]\}\n', re.DOTALL)


def append(folder: Path, observation: Observation) -> None:
    """Append an observation to numerics.jsonl."""
    line = {
        "updates": observation.updates,
        "loss_scale": observation.scale,
        "tensors": [tensor.as_record() for tensor in observation.tensors],
    }
    with files.naming(folder / RECORD), files.append(folder / RECORD) as file:
        file.write((json.dumps(line) + "\n").encode())


def truncate_after(folder: Path, updates: int) -> None:
    """Delete incomplete lines, and observations after `updates`. The resumed run will make these observations again."""
    lines = _lines(folder)
    kept = [line for line in lines if 0 <= _updates(line) <= updates]
    if kept != lines:
        files.write_atomically(folder / RECORD, b"".join(kept))


def is_missing(folder: Path, updates: int, every: int) -> bool:
    """Return whether the observation after `updates` should exist but is missing."""
    return updates > 0 and updates % every == 0 and updates not in map(_updates, _lines(folder))


def _lines(folder: Path) -> list[bytes]:
    path = folder / RECORD
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def _updates(line: bytes) -> int:
    """Return the number of updates in a line of numerics.jsonl; -1 for an incomplete line."""
    whole = _WHOLE_LINE.fullmatch(line)
    return int(whole[1]) if whole else -1
