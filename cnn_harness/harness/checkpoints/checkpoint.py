"""Define `Checkpoint`: the path of a checkpoint, and the number of weight updates in its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cnn_harness.base.errors import WrongInput

AVERAGES = "ckpt"  # the folder of averages in a run directory
UNSAVED = "final"  # the name in validation.csv of final weights that were not saved
NUMBERED = re.compile(r"ckpt-(0|[1-9][0-9]{0,17})")
Shapes = Mapping[str, tuple[int, ...]]  # {name of a tensor: shape}


class CheckpointError(WrongInput):
    """A checkpoint is missing, damaged or does not fit."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint or weights file.

    prefix: the path of its files without the endings, or the path of the weights file
    updates: the number in the name; -1 for averages and other names
    """

    prefix: str
    updates: int = -1

    @classmethod
    def at(cls, folder: Path, updates: int) -> Checkpoint:
        """Return the checkpoint of a run after this number of updates. The files need not exist."""
        return cls(str(folder / f"ckpt-{updates}"), updates)

    @classmethod
    def of_index(cls, index: Path) -> Checkpoint:
        """Return the checkpoint of an .index file."""
        prefix = str(index).removesuffix(".index")
        number = updates_in_name(Path(prefix).name)
        return cls(prefix, -1 if number is None else number)

    @property
    def name(self) -> str:
        """The name without its folder."""
        return Path(self.prefix).name

    @property
    def state_path(self) -> Path:
        """The file of the state that is not stored in tensors."""
        return Path(self.prefix + ".state.json")


def updates_in_name(name: str) -> int | None:
    """Return the number of updates in the name of a checkpoint, or None if the name has no number."""
    match = re.search(NUMBERED.pattern + "$", name)
    return int(match[1]) if match else None
