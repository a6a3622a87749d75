"""A checkpoint by its name: the prefix of its files, and the weight updates that the name promises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from base.errors import WrongInput

AVERAGES = "ckpt"  # folder of averaged checkpoints, in that of their run
UNSAVED = "final"  # the name in validation.csv of weights that no checkpoint has
NUMBERED = re.compile(r"ckpt-(0|[1-9][0-9]{0,17})")
Shapes = Mapping[str, tuple[int, ...]]  # of tensors by name


class CheckpointError(WrongInput):
    """A checkpoint that is not there, or does not fit."""


@dataclass(frozen=True)
class Checkpoint:
    """The prefix of a checkpoint's files (or one .npz), and the updates done (-1: an average, or another name)."""

    prefix: str
    updates: int = -1

    @classmethod
    def at(cls, folder: Path, updates: int) -> Checkpoint:
        """A run's checkpoint after this number of updates, written or not yet."""
        return cls(str(folder / f"ckpt-{updates}"), updates)

    @classmethod
    def of_index(cls, index: Path) -> Checkpoint:
        """The checkpoint of an .index file."""
        prefix = str(index).removesuffix(".index")
        number = updates_in_name(Path(prefix).name)
        return cls(prefix, -1 if number is None else number)

    @property
    def name(self) -> str:
        """The name in logs."""
        return Path(self.prefix).name

    @property
    def state_path(self) -> Path:
        """The file of the state that is no variable."""
        return Path(self.prefix + ".state.json")


def updates_in_name(name: str) -> int | None:
    """The updates that a checkpoint's name promises; None for a name of another kind."""
    match = re.search(NUMBERED.pattern + "$", name)
    return int(match[1]) if match else None
