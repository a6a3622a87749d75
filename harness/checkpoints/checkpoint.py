"""Name checkpoints: the prefix of their files, and the number of weight updates in the name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from base.errors import WrongInput

AVERAGES = "ckpt"  # the folder of averages, in the run directory
UNSAVED = "final"  # the name in validation.csv of final weights without a checkpoint
NUMBERED = re.compile(r"ckpt-(0|[1-9][0-9]{0,17})")
Shapes = Mapping[str, tuple[int, ...]]  # of tensors by name


class CheckpointError(WrongInput):
    """A checkpoint is missing, damaged or does not fit."""


@dataclass(frozen=True)
class Checkpoint:
    """The prefix of a checkpoint's files, or one file of weights, and its updates (-1: an average or another name)."""

    prefix: str
    updates: int = -1

    @classmethod
    def at(cls, folder: Path, updates: int) -> Checkpoint:
        """Return the checkpoint of a run after this number of updates, which need not exist yet."""
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
        """The file of the state that is not in variables."""
        return Path(self.prefix + ".state.json")


def updates_in_name(name: str) -> int | None:
    """Return the number of updates in the name of a checkpoint; None if it has none."""
    match = re.search(NUMBERED.pattern + "$", name)
    return int(match[1]) if match else None
