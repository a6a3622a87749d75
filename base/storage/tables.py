"""The CSV files of a run: rows that are on the disk with the checkpoint they belong to, and can be made anew from the states
of the checkpoints if the files are lost or damaged."""

from __future__ import annotations

import csv
import errno
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from base.fields import decimal_number, whole_number
from base.storage import files, input_files

Row = dict[str, str]
UpdateRanges = list[tuple[int, int]]  # of updates, ends included
MAX_BYTES = 1 << 28  # of a file of rows: some million
MAX_LINES = 1 << 21  # of a file: more than MAX_BYTES of rows that are written, as a short line takes as much memory
MAX_DAMAGED = 100_000  # lines of a file
LONGEST = 1 << 16  # bytes of a row
_WHOLE = ("iteration", "val_size")  # columns of whole numbers
_NOT_FINITE = ("nan", "inf", "-inf")
NAME = "name"  # a first column that a file may lack
_MAY_BE_EMPTY = frozenset((NAME, "epoch", "top5_acc", "loss"))  # rows of averages had no others in older versions
MAX_KEPT = 100_000  # rows in one state: some 20 MB of text
UNVERIFIED = "unverified"  # in a state that has been read: nothing vouches that it is the state that was written
_SINCE, _BEFORE, _ROWS = "since", "before", "rows"  # in a checkpoint's state: rows later than, how many earlier ones, cells


@dataclass(frozen=True)
class Kept:
    """The part of one table in the state of the checkpoint after `done` updates: the value of `Table.rows_for_state`, or
    anything else in a damaged file; None from older versions. `verified`: known to be as written."""

    done: int
    content: Any
    verified: bool = True


@dataclass(frozen=True)
class ExpectedRows:
    """The iterations of a run's rows; unknown after `unknown[0]` up to `unknown[1]`."""

    points: Sequence[int] = ()
    unknown: tuple[int, int] = (0, 0)


@dataclass
class _Merged:
    """Rows by place, of the file and of the states. `expected`: their number up to the last state, which is of `covered`
    updates; `gaps`: places up to there whose rows no state has."""

    rows: dict[int, list[str]]
    expected: int = 0
    covered: int = 0
    gaps: UpdateRanges = field(default_factory=list)
    without_rows: list[int] = field(default_factory=list)  # updates of states that hold no rows
    unverified: list[int] = field(default_factory=list)  # of states whose rows differ from the file's, which win


def kept_rows(states: Iterable[tuple[int, Mapping[str, Any]]], name: str) -> list[Kept]:
    """The rows of one table in the states of checkpoints, each after a number of updates."""
    return [Kept(done, state.get(name), not state.get(UNVERIFIED)) for done, state in states]


class Table:
    """A CSV file. `named`: with the column `name`, which otherwise follows from a row's iteration; a file that is there
    decides itself. `lag`: updates after a row's iteration that a checkpoint must have to keep the row: 0 for training rows,
    which go before the checkpoint of their update, 1 for validation rows, which follow it."""

    def __init__(self, path: Path, columns: tuple[str, ...], lag: int, named: bool = True) -> None:
        self.path, self.columns, self._lag = path, columns, lag
        self._new_named = named or columns[0] != NAME
        self._since = 0  # the update of the last permanent checkpoint
        self._before = 0  # rows that it and earlier ones keep
        self._recent: list[list[str]] = []

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row; OSError if that cannot be done. Rows of averages, whose iteration is negative, are not kept by
        checkpoints: they are made anew at the end of a run."""
        cells = [str(row[column]) for column in self.columns]
        head = [] if os.path.lexists(self.path) else [self.columns]
        text = self._text([*head, cells])
        with files.naming(self.path), files.append(self.path) as out:
            out.write(text)
        if row["iteration"] >= 0:
            self._recent.append(cells)
            if len(self._recent) > 2 * MAX_KEPT:  # no checkpoint comes, or seldom
                self._since, self._before, self._recent = self._bounded(self._recent)

    def sync(self) -> None:
        """Put the rows that were written onto the disk; from any thread, so that the file stays open for rows to come."""
        if os.path.lexists(self.path):
            with input_files.open_regular_file(self.path) as written:
                os.fsync(written.fileno())

    def rows_for_state(self, updates: int, permanent: bool) -> dict[str, Any]:
        """Return the rows since the last checkpoint, for the training state of the checkpoint after `updates`.
        `permanent`: it is not replaced by the next one, which therefore need not repeat them."""
        own = [cells for cells in self._recent if self._place(cells) + self._lag <= updates]
        since, before, last = self._bounded(own)
        state = {_SINCE: since, _BEFORE: before, _ROWS: last}
        if permanent:
            self._since, self._before = updates, self._before + len(own)
            self._recent = [cells for cells in self._recent if self._place(cells) + self._lag > updates]
        return state

    def _bounded(self, recent: list[list[str]]) -> tuple[int, int, list[list[str]]]:
        """The last of these rows; the update since which they are, and how many rows there were before."""
        left = recent[:-MAX_KEPT]
        since = self._place(left[-1]) + self._lag if left else self._since
        return since, self._before + len(left), recent[-MAX_KEPT:]

    def rebuild(
        self, updates: int, states: Iterable[Kept], permanent: bool, expected_rows: Callable[[], ExpectedRows] = ExpectedRows
    ) -> list[str]:
        """Prepare the file for a run that resumes from the checkpoint after `updates`: drop the rows that are
        about to come again, and restore missing and damaged rows. Returns warnings for the log.

        `states`: of every sound checkpoint up to this one, in order. `permanent`: as for `rows_for_state`. `expected_rows`:
        of a run, for updates without a state.
        """
        file_rows, damaged, ragged, cut = self._sound_rows()
        rows = {self._place(cells): cells for cells in file_rows if 0 <= self._place(cells) <= updates}
        merge = self._merged(dict(rows), updates, states, permanent)
        merged = dict(sorted(merge.rows.items()))
        damaged += 0 <= cut <= updates and cut not in merged
        if damaged or ragged or list(merged.values()) != file_rows:
            files.write_atomically(self.path, self._text([self.columns, *merged.values()]))
        self._recent = [cells for place, cells in merged.items() if place + self._lag > self._since]
        rebuilt = sum(rows.get(place) != cells for place, cells in merged.items())
        return [*self._doubts(merge), *self._warnings(rebuilt, damaged, *self._missing(merge, updates, expected_rows))]

    def _merged(self, rows: dict[int, list[str]], updates: int, states: Iterable[Kept], permanent: bool) -> _Merged:
        merge = _Merged(rows)
        self._since, self._before = 0, 0
        for state in (state for state in states if state.content is not None):
            if not (_sound(state) and all(map(self._is_sound, state.content[_ROWS])) and self._fits(state)):
                merge.without_rows.append(state.done)
                continue
            since, before = self._add(merge, state)
            resumes_here = state.done == updates and not permanent
            self._since, self._before = (since, before) if resumes_here else (state.done, merge.expected)
        return merge

    def _add(self, merge: _Merged, state: Kept) -> tuple[int, int]:
        """Add the rows of one state; return the update they begin after, and the number of rows before. Without `verified`
        they only fill gaps of the file."""
        since, before, done = state.content[_SINCE], state.content[_BEFORE], state.done
        own = {self._place(cells): cells for cells in state.content[_ROWS]}
        if state.verified:
            merge.rows = {k: cells for k, cells in merge.rows.items() if not since < k + self._lag <= done} | own
        else:
            merge.unverified += [done] * any(merge.rows.get(k, cells) != cells for k, cells in own.items())
            merge.rows = own | merge.rows
            before = sum(k + self._lag <= since for k in merge.rows)
        if since > merge.covered:
            merge.gaps.append((merge.covered + 1 - self._lag, since - self._lag))
        merge.covered, merge.expected = done, before + len(own)
        return since, before

    def _missing(
        self, merge: _Merged, updates: int, expected_rows: Callable[[], ExpectedRows]
    ) -> tuple[int, UpdateRanges, bool]:
        """The number of rows lost for good, the updates they were of, and whether there may be more."""
        missing = merge.expected - sum(place + self._lag <= merge.covered for place in merge.rows)
        ranges = [(max(0, first), end) for first, end in merge.gaps] if missing > 0 else []
        last = max([merge.covered - self._lag, *merge.rows])
        expected, end = expected_rows() if merge.covered < updates else ExpectedRows(), updates - self._lag
        lost = [place for place in expected.points if last < place <= end]
        more = max(last, expected.unknown[0]) < min(end, expected.unknown[1])
        return max(0, missing) + len(lost), ranges + [(lost[0], lost[-1]) for _ in lost[:1]], more

    def is_as_kept(self, updates: int, states: Iterable[Kept]) -> bool:
        """Return whether `rebuild` would change nothing but rows of averages: every row that a state keeps is there, no
        damaged or later one, none twice, and one header. Rows that no state keeps are believed, as the newest one of
        validations."""
        file_rows, damaged, ragged, _ = self._sound_rows()
        own = [cells for cells in file_rows if self._place(cells) >= 0]
        rows = {self._place(cells): cells for cells in own if self._place(cells) <= updates}
        merged = Table(self.path, self.columns, self._lag)._merged(rows, updates, states, True).rows
        return not (damaged or ragged) and [merged[place] for place in sorted(merged)] == own

    def agrees_with(self, updates: int, states: Iterable[Kept]) -> bool:
        """Return whether the rows up to an update are those that states keep; later ones, which a killed run leaves, and
        rows that no state keeps may be any."""
        placed = {self._place(cells): cells for cells in self._sound_rows()[0]}
        rows = {place: cells for place, cells in placed.items() if 0 <= place <= updates}
        return Table(self.path, self.columns, self._lag)._merged(dict(rows), updates, states, True).rows == rows

    def read(self) -> list[Row]:
        """The rows that are whole."""
        return [dict(zip(self.columns, cells)) for cells in self._sound_rows()[0]]

    def _doubts(self, merge: _Merged) -> list[str]:
        """Warnings about states that are passed over."""
        name = self.path.name
        left_out = "warning: the state of ckpt-{} holds what cannot be rows of {}: left out"
        return [left_out.format(done, name) for done in merge.without_rows] + [
            f"warning: {name} and the state of ckpt-{done} differ, and nothing vouches for the state: the file's rows stay"
            for done in merge.unverified
        ]

    def _warnings(self, rebuilt: int, damaged: int, missing: int, where: UpdateRanges, more: bool) -> list[str]:
        name, notes = self.path.name, []
        if rebuilt:
            notes.append(
                f"warning: {name} had {rebuilt} missing or damaged {_rows(rebuilt)}: made anew from the checkpoints"
            )
        elif damaged:
            notes.append(f"warning: {name} had {damaged} damaged {_rows(damaged)}, left out")
        if missing:
            ranges = " and ".join(
                f"updates {first} to {last}" if last > first else f"update {last}" for first, last in where
            )
            place = f" of {ranges}" if ranges else ""
            count = f"{'at least ' * more}{missing} {_rows(missing)}"
            notes.append(f"warning: {name} lacks {count}{place}, of which no checkpoint is left to make them from")
        return notes

    def _sound_rows(self) -> tuple[list[list[str]], int, bool, int]:
        """The whole rows of the file; the number of damaged ones; whether the file has to be written again anyway, for a
        last line cut short by the end of the process, or a header that is missing or repeated; and the place of a row that
        was cut short, -1 for none or an unknown one."""
        if not os.path.lexists(self.path):
            return [], 0, False, -1
        if not stat.S_ISREG(os.stat(self.path, follow_symlinks=False).st_mode):  # it is replaced by a file of the run's own
            return [], 1, True, -1
        whole, damaged, heads, rest = [], 0, [], ""
        for number, line in enumerate(_lines(self.path)):
            if not line.endswith("\n"):
                rest = line
                break
            line = line[:-1]
            cells = self._with_name(line.removesuffix("\r").split(","))
            if tuple(cells) == self.columns:
                heads.append(number)
                continue
            sound = self._is_sound(cells)
            damaged += not sound
            if damaged > MAX_DAMAGED:
                raise _beyond(self.path, f"{MAX_DAMAGED:,} lines that are no rows")
            if number > MAX_LINES:
                raise _beyond(self.path, f"{MAX_LINES:,} lines")
            whole += [cells] * sound
        first_cells = rest.split(",")[self.columns.index("iteration") - (not self._named()) :]
        cut = (
            int(first_cells[0])
            if len(first_cells) > 1 and first_cells[0].isascii() and first_cells[0].isdigit() and len(first_cells[0]) < 19
            else -1
        )
        return whole, damaged, bool(rest) or heads != [0], cut

    def _is_sound(self, cells: Sequence[str]) -> bool:
        if len(cells) != len(self.columns) or not all(cell.isascii() and cell.isprintable() for cell in cells):
            return False
        try:
            for name, cell in zip(self.columns, cells):
                if name != "name" and (cell or name not in _MAY_BE_EMPTY):
                    (whole_number if name in _WHOLE else cell_number)(cell)
            return abs(self._place(cells)) < 1 << 63
        except ValueError:
            return False

    def _fits(self, state: Kept) -> bool:
        """Return whether the rows in the table's part of a checkpoint are of its updates."""
        return all(state.content[_SINCE] < self._place(cells) + self._lag <= state.done for cells in state.content[_ROWS])

    def _text(self, rows: Iterable[Sequence[str]]) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows if self._named() else (cells[1:] for cells in rows))
        return text.getvalue().encode()

    def _named(self) -> bool:
        """Return whether the file has the column of names."""
        if self.columns[0] != NAME or not os.path.lexists(self.path):
            return self._new_named
        head = next(_lines(self.path), "").rstrip()
        return head != ",".join(self.columns[1:]) if head else self._new_named

    def _with_name(self, cells: list[str]) -> list[str]:
        """Return the cells of a line, with the name that the file may leave out: that of the update's checkpoint."""
        unnamed = self.columns[0] == NAME and len(cells) == len(self.columns) - 1
        if not unnamed:
            return cells
        if tuple(cells) == self.columns[1:]:
            return [NAME, *cells]
        return ["" if cells[0].startswith("-") else f"ckpt-{cells[0]}", *cells]

    def _place(self, cells: Sequence[str]) -> int:
        return int(cells[self.columns.index("iteration")])


def cell_number(cell: str) -> float:
    """The number in a cell as rows are written, which may be none or infinite; ValueError for any other text."""
    return float(cell) if cell in _NOT_FINITE else decimal_number(cell)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file with their ends, one after another; a line that is longer than any row comes in pieces."""
    with input_files.open_regular_file(path) as file, io.BufferedReader(file) as lines:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise _beyond(path, f"the {MAX_BYTES:,} bytes that are read of a run's rows")
        while line := lines.readline(LONGEST):
            whole = line.endswith(b"\n") or len(line) < LONGEST
            yield line.decode("utf-8", errors="replace") + "\n" * (not whole)


def _beyond(path: Path, most: str) -> OSError:
    reason = f"Has more than {most}; move it elsewhere, and the rows that the checkpoints keep are made anew"
    return OSError(errno.EFBIG, reason, str(path))


def _rows(count: int) -> str:
    return "row" if count == 1 else "rows"


def _sound(state: Kept) -> bool:
    """Return whether the table's part of a checkpoint has the form that `rows_for_state` gives: at most one row of
    each update, and one of the beginning."""
    content = state.content
    return (
        isinstance(content, Mapping)
        and all(type(content.get(name)) is int for name in (_SINCE, _BEFORE))
        and 0 <= content[_SINCE] <= state.done
        and 0 <= content[_BEFORE] <= content[_SINCE] + 1
        and isinstance(content.get(_ROWS), list)
        and all(isinstance(cells, list) for cells in content[_ROWS])
        and all(isinstance(cell, str) for cells in content[_ROWS] for cell in cells)
    )
