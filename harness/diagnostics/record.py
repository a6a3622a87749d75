"""numerics.jsonl in a run's folder: an observation in each line. A long run's file is large, so that lines are read one by
one, and told apart by how they begin and end."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

from base import bounds
from base.storage import files, input_files
from emulator.numerics.observation import Observation, ObservedTensor

NAME = "numerics.jsonl"
_MAX_LINE = 64 << 20  # bytes: a hundred times what a network of a thousand tensors takes
_WRITTEN = re.compile(rb'\{"updates": ([0-9]{1,18}), "loss_scale": ')
_END = b"}]}\n"


def append(folder: Path, observation: Observation) -> None:
    """Write an observation behind the others."""
    line = {
        "updates": observation.updates,
        "loss_scale": observation.scale,
        "tensors": [tensor.as_record() for tensor in observation.tensors],
    }
    with files.naming(folder / NAME), files.append(folder / NAME) as file:
        file.write((json.dumps(line) + "\n").encode())


def read(folder: Path) -> list[Observation]:
    """The observations of a folder; a line that is none, as the last one of a run that was killed, is left out."""
    return [found for line in _lines(folder) if (found := _observation(line))]


def truncate_after(folder: Path, updates: int) -> None:
    """Drop the observations after `updates`, which will be made again, and lines that are none."""
    end, kept = 0, True
    for line in _lines(folder):
        if not _is_until(line, updates):
            kept = False
        elif kept:
            end += len(line)
        else:  # behind one that goes
            files.write_atomically(folder / NAME, b"".join(each for each in _lines(folder) if _is_until(each, updates)))
            return
    if not kept:
        with files.append(folder / NAME) as file:
            file.truncate(end)


def is_missing(folder: Path, updates: int, every: int) -> bool:
    """Return whether an observation is due after `updates`, and not there."""
    due = updates > 0 and updates % every == 0
    return due and not any(_updates(line) == updates and _observation(line) for line in _lines(folder))


def _lines(folder: Path) -> Iterator[bytes]:
    """Every line with its end, which the last one may lack; a longer one than any observation in pieces, which are none."""
    try:
        file = input_files.open_regular_file(folder / NAME)
    except FileNotFoundError:
        return
    with io.BufferedReader(file) as stream:
        while line := stream.readline(_MAX_LINE):
            yield line


def _is_until(line: bytes, updates: int) -> bool:
    found = _updates(line)
    return found is not None and found <= updates


def _updates(line: bytes) -> int | None:
    """The updates of an observation's line, which is read whole only if it is not as `append` writes one; None for another
    line, and for one without its end, which the next would follow."""
    if not line.endswith(b"\n"):
        return None
    written = _WRITTEN.match(line)
    if written and line.endswith(_END):
        return int(written[1])
    found = _observation(line)
    return found.updates if found else None


def _observation(line: bytes) -> Observation | None:
    try:
        record = bounds.json_value(line.decode("utf-8", errors="replace"))
        tensors = tuple(ObservedTensor.of_record(each) for each in record["tensors"])
        return Observation(int(record["updates"]), float(record["loss_scale"]), tensors)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
