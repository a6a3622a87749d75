"""A run's folder as a report reads it: its rows, its recorded options, and lines on missing files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from base import bounds
from base.errors import OptionError
from base.fields import short, whole_number
from base.storage import input_files, tables
from base.storage.run_files import ARGUMENTS
from base.storage.tables import TABLES
from harness.checkpoints import run_record
from harness.reports import plot, validations

Row = Mapping[str, str]
_REQUIRED = ("iteration", "epoch")


@dataclass(frozen=True)
class RunFolder:
    """The files that a run wrote. `arguments`: the content of its last arguments file, empty if it is missing; `options`:
    those among them that were requested; `notes`: lines on all that a finished run would not leave so."""

    path: Path
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    training: Sequence[Row]
    validation: Sequence[Row]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def network(self) -> str:
        """Model, size and data set for people; the folder's name where nothing records them."""
        return plot.run_title(self.options) or self.name

    @property
    def best(self) -> Row | None:
        """The row of the best validation; None without any."""
        return next(iter(validations.ranked(self._validated)), None)

    @property
    def done(self) -> int:
        """The updates that the rows tell of."""
        rows = [*self.training, *self.validation]
        return max((int(number(row, "iteration")) for row in rows if number(row, "iteration") >= 0), default=0)

    @property
    def out_of_patience(self) -> bool:
        """Whether --patience ended the run: the last validations brought no better accuracy."""
        checkpoints, patience = validations.by_update(self._validated), self.arguments.get("patience")
        return isinstance(patience, int) and validations.patience_is_over(checkpoints, patience)

    @property
    def _validated(self) -> list[Row]:
        """The rows that tell an accuracy."""
        return [row for row in self.validation if number(row, "val_acc") >= 0]


def read(path: Path) -> RunFolder:
    """The run in a folder; OptionError for a folder that is no run, a run without rows and damaged rows, CheckpointError for
    damaged arguments."""
    if not path.is_dir():
        raise OptionError(f"{path} is {'no folder' if path.exists() else 'not there'}; give a run folder, as in logs/<run>")
    present = [name for name in (*TABLES, *ARGUMENTS) if (path / name).exists()]
    if not present:
        raise OptionError(f"{path} is no run folder: it has no training.csv, validation.csv or arguments.json")
    notes: list[str] = []
    training, validation = (_rows(path / name, notes) for name in TABLES)
    if not training and not validation:
        raise OptionError(f"{path} has no rows yet: a report needs training.csv or validation.csv with one row at least")
    arguments = run_record.arguments(path)
    if not arguments:
        notes.append("arguments.json is missing: options, plan and environment of the run are not known")
    return RunFolder(path, arguments, run_record.options(path), training, validation, tuple(notes))


def number(row: Row, column: str) -> float:
    """A cell as a number; nan for an empty or missing one."""
    with suppress(ValueError):
        return float(row.get(column) or math.nan)
    return math.nan


def _rows(path: Path, notes: list[str]) -> list[Row]:
    """Return the rows of one file; OptionError names the first line that is none. A last line without an end is of a process
    that still writes, or was killed, and is left out with a note."""
    columns = TABLES[path.name]
    try:
        text = input_files.content(path, tables.MAX_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {bounds.reason(error)}") from None
    whole, _, rest = text.rpartition("\n")
    first, *lines = whole.split("\n")
    if rest:
        notes.append(f"the last line of {path.name} is not whole yet and left out")
    head = first.split(",")
    if first and (len(set(head)) < len(head) or not set(_REQUIRED) <= set(head) <= set(columns)):
        raise _damaged(path, f"its first line must name the columns {', '.join(columns)}")
    rows = []
    for k, line in enumerate(lines, 2):
        cells = line.split(",")
        if not _is_row(head, cells):
            raise _damaged(path, f"line {k} is no row: {short(line)}")
        rows.append(dict(zip(head, cells)))
    return rows


def _damaged(path: Path, reason: str) -> OptionError:
    return OptionError(f"{path} is damaged: {reason}")


def _is_row(head: Sequence[str], cells: Sequence[str]) -> bool:
    """Return whether a line has a cell for each column, and numbers where they belong, the update's a whole one; any but
    the update's and the epoch's may be missing, or not finite."""
    if len(cells) != len(head):
        return False
    named = dict(zip(head, cells))
    try:
        whole_number(named["iteration"])
        values = {name: float(cell) for name, cell in named.items() if name != "name" and cell}
    except ValueError:
        return False
    return all(math.isfinite(values.get(name, math.nan)) for name in _REQUIRED)
