"""The tables of a run, training.csv and validation.csv.

Rows are appended one by one, and synced to disk before the next checkpoint. A resumed run first removes the rows of the
updates that it will repeat.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cnn_harness.base.storage import files, input_files

TRAINING_COLUMNS = (
    "step", "iteration", "epoch", "lr", "loss_batch", "loss_avg", "train_acc_batch", "train_acc_avg",
    "it_time", "img_per_sec", "total_time", "input_share",
    "noise_scale",
)  # fmt: skip
VALIDATION_COLUMNS = (
    "name", "iteration", "epoch", "val_acc", "raw_acc", "val_time", "val_size", "img_per_sec", "latency",
    "top5_acc", "loss",
)  # fmt: skip
TABLES = {"training.csv": TRAINING_COLUMNS, "validation.csv": VALIDATION_COLUMNS}
# Map tags in TensorBoard and other trackers to columns. TensorBoard shows tags with the same prefix side by side.
TRAINING_TAGS = {
    "loss/train": "loss_avg",
    "accuracy/train": "train_acc_avg",
    "learning rate": "lr",
    "images per second": "img_per_sec",
}
VALIDATION_TAGS = {"loss/validation": "loss", "accuracy/validation": "val_acc", "accuracy/validation top-5": "top5_acc"}

Row = dict[str, str]
MAX_BYTES = 1 << 28  # limit for a table: a few million rows
_WHOLE = ("iteration", "val_size")  # columns that hold whole numbers
_NAME = "name"  # the first column; older files do not have it
_UNKNOWN = "nan"  # the cells of columns that an older training.csv does not have


class Table:
    """A CSV file. The column `iteration` is the number of updates, or negative for averaged checkpoints.

    If `named` is true, a new file gets the first column `name`. For files without it, names are made from `iteration`.
    """

    def __init__(self, path: Path, columns: tuple[str, ...], named: bool = True) -> None:
        self.path, self.columns = path, columns
        self._new_named = named or columns[0] != _NAME

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row; raise OSError if it cannot be written."""
        cells = [str(row[column]) for column in self.columns]
        head = [] if os.path.lexists(self.path) else [self.columns]
        text = self._text([*head, cells])
        with files.naming(self.path), files.append(self.path) as out:
            out.write(text)

    def sync(self) -> None:
        """Sync the written rows to disk. May be called from any thread."""
        if self.path.exists():
            with self.path.open("rb") as written:
                os.fsync(written.fileno())

    def rewind(self, updates: int) -> None:
        """Remove incomplete rows, rows of averages, and rows after the first `updates` updates.

        The resumed run writes these rows again.
        """
        if self.path.exists():
            place = self.columns.index("iteration")
            rows = self._text([self.columns, *(cells for cells in self._rows() if 0 <= int(cells[place]) <= updates)])
            if self._content() != rows:
                files.write_atomically(self.path, rows)

    def read(self) -> list[Row]:
        """Return the complete rows; [] if there is no file."""
        return [dict(zip(self.columns, cells)) for cells in self._rows()]

    def _content(self) -> bytes:
        return input_files.content(self.path, MAX_BYTES) if self.path.exists() else b""

    def _rows(self) -> Iterator[list[str]]:
        header, *lines = self._content().decode("utf-8", errors="replace").split("\n")[:-1] or [""]
        older = self.columns[: header.count(",") + 1] == tuple(header.split(","))
        missing = [_UNKNOWN] * (len(self.columns) - header.count(",") - 1) if older else []
        for line in [header, *lines]:
            cells = [*line.split(","), *missing]
            if self.columns[0] == _NAME and len(cells) == len(self.columns) - 1:  # derive the name from the update
                cells = ["" if cells[0].startswith("-") else f"ckpt-{cells[0]}", *cells]
            if self._is_whole(cells):
                yield cells

    def _is_whole(self, cells: Sequence[str]) -> bool:
        """Return whether every cell except the name is a number. This is false for the header and for incomplete rows."""
        with suppress(ValueError):
            for name, cell in zip(self.columns, cells, strict=True):
                if name != _NAME:
                    (int if name in _WHOLE else float)(cell)
            return True
        return False

    def _text(self, rows: Iterable[Sequence[str]]) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows if self._named() else (cells[1:] for cells in rows))
        return text.getvalue().encode()

    def _named(self) -> bool:
        """Return whether the file has the column `name`."""
        content = self._content() if self.columns[0] == _NAME else b""
        return not content.startswith(",".join(self.columns[1:]).encode()) if content else self._new_named


def run_table(folder: Path, name: str, named: bool = True) -> Table:
    """Return a run's training.csv or validation.csv, which may not exist. `named` is passed to `Table`."""
    return Table(folder / name, TABLES[name], named)
