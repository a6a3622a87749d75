"""The CSV files of a run: appended row by row, on the disk before the checkpoint that follows, cut back on resuming."""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from base.fields import decimal_number, whole_number
from base.storage import files, input_files

Row = dict[str, str]
MAX_BYTES = 1 << 28  # of a file of rows: some million
MAX_LINES = 1 << 21  # of a file: more than MAX_BYTES of rows that are written, as a short line takes as much memory
LONGEST = 1 << 16  # bytes of a row
_WHOLE = ("iteration", "val_size")  # columns of whole numbers
NAME = "name"  # a first column that a file may lack
_NOT_FINITE = ("nan", "inf", "-inf")


class Table:
    """A CSV file whose rows have the number of updates in the column `iteration`, negative for averages. `named`: with the
    first column `name`, which otherwise follows from the updates; a file that is there decides itself."""

    def __init__(self, path: Path, columns: tuple[str, ...], named: bool = True) -> None:
        self.path, self.columns = path, columns
        self._new_named = named or columns[0] != NAME

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row; OSError if that cannot be done."""
        cells = [str(row[column]) for column in self.columns]
        head = [] if os.path.lexists(self.path) else [self.columns]
        text = self._text([*head, cells])
        with files.naming(self.path), files.append(self.path) as out:
            out.write(text)

    def sync(self) -> None:
        """Put the rows that were written onto the disk; from any thread, so that the file stays open for rows to come."""
        if os.path.lexists(self.path):
            with input_files.open_regular_file(self.path) as written:
                os.fsync(written.fileno())

    def rewind(self, updates: int) -> None:
        """Cut the file back to the rows of a run's first `updates`. Later rows come again, as do those of averages; a killed
        process may have left a part of one."""
        if os.path.lexists(self.path):
            rows = self._text([self.columns, *(cells for cells in self._rows() if 0 <= self._updates(cells) <= updates)])
            if input_files.content(self.path, MAX_BYTES) != rows:
                files.write_atomically(self.path, rows)

    def read(self) -> list[Row]:
        """Return the rows that are whole; none without a file."""
        return [dict(zip(self.columns, cells)) for cells in self._rows()]

    def _rows(self) -> Iterator[list[str]]:
        if not os.path.lexists(self.path):
            return
        content = input_files.content(self.path, MAX_BYTES)
        if content.count(b"\n") > MAX_LINES:
            raise OSError(errno.EFBIG, f"Has more than the {MAX_LINES:,} lines that are read of such a file", str(self.path))
        for line in content.decode("utf-8", errors="replace").split("\n")[:-1]:
            cells = self._with_name(line.removesuffix("\r").split(","))
            if tuple(cells) != self.columns and self._is_sound(cells):
                yield cells

    def _is_sound(self, cells: Sequence[str]) -> bool:
        if len(cells) != len(self.columns):
            return False
        try:
            for name, cell in zip(self.columns, cells):
                if name != NAME:
                    (whole_number if name in _WHOLE else cell_number)(cell)
        except ValueError:
            return False
        return True

    def _text(self, rows: Iterable[Sequence[str]]) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows if self._named() else (cells[1:] for cells in rows))
        return text.getvalue().encode()

    def _named(self) -> bool:
        """Return whether the file has the column of names."""
        if self.columns[0] != NAME or not os.path.lexists(self.path):
            return self._new_named
        with input_files.open_regular_file(self.path) as file:
            return not file.read(LONGEST).startswith(",".join(self.columns[1:]).encode())

    def _with_name(self, cells: list[str]) -> list[str]:
        """Return the cells of a line, with the name that the file may leave out: that of the update's checkpoint."""
        if self.columns[0] != NAME or len(cells) != len(self.columns) - 1:
            return cells
        return ["" if cells[0].startswith("-") else f"ckpt-{cells[0]}", *cells]

    def _updates(self, cells: Sequence[str]) -> int:
        return int(cells[self.columns.index("iteration")])


def cell_number(cell: str) -> float:
    """The number in a cell as rows are written, which may be none or infinite; ValueError for any other text."""
    return float(cell) if cell in _NOT_FINITE else decimal_number(cell)
