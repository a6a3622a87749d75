"""Write, read and compare fingerprints.csv, which has a row for each gradient and weight of every update and process
(--fingerprints)."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cnn_harness.base.storage import files
from cnn_harness.base.storage.tables import Table

if TYPE_CHECKING:
    import numpy as np

RECORD = "fingerprints.csv"
COLUMNS = ("iteration", "kind", "process", "tensor", "fingerprint", "norm")
GRADIENT, WEIGHT = KINDS = ("gradient", "weight")
_ROW = re.compile(rb"([0-9]{1,18}),(gradient|weight),([0-9]{1,9}),([!-+\--~]+),([0-9a-f]{16}),([-+.a-z0-9]+)\n")


class Place(NamedTuple):
    """The place of a fingerprint in an update."""

    kind: str
    process: int
    tensor: str


@dataclass(frozen=True)
class Difference:
    """The first fingerprints that differ. All are of one update and kind."""

    update: int
    kind: str
    processes: tuple[int, ...]
    tensors: tuple[str, ...]

    @classmethod
    def at(cls, update: int, places: Sequence[Place]) -> Difference:
        """Return the difference at those places that have the kind of the first."""
        kind = places[0].kind
        processes, tensors = (tuple(dict.fromkeys(each[k] for each in places if each.kind == kind)) for k in (1, 2))
        return cls(update, kind, processes, tensors)

    def __str__(self) -> str:
        count, several = len(self.tensors), "es" * (len(self.processes) > 1)
        what = f"{self.kind} of {self.tensors[0]}" if count == 1 else f"{self.kind}s of {count} tensors"
        return f"update {self.update}, {what}, process{several} {', '.join(map(str, self.processes))}"


def append(folder: Path, first: int, tensors: Sequence[str], found: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Append the hashes and the norms [processes, kinds, tensors] of updates. `first` is the number of earlier updates."""
    path = folder / RECORD
    lines = [] if path.exists() and path.stat().st_size else [",".join(COLUMNS)]
    for update, (hashes, norms) in enumerate(found, first + 1):
        for (k, kind), process, (j, tensor) in product(enumerate(KINDS), range(len(hashes)), enumerate(tensors)):
            lines.append(f"{update},{kind},{process},{tensor},{hashes[process, k, j]:016x},{norms[process, k, j]:.6g}")
    with files.naming(path), files.append(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def truncate_after(folder: Path, updates: int) -> None:
    """Delete the rows after `updates`, which the resumed run will write again, and an unreadable row with all after it."""
    path = folder / RECORD
    if path.exists():
        ends = (row.end for row in _rows(path) if row.update <= updates)
        os.truncate(path, max(ends, default=0))


def sync(folder: Path) -> None:
    """Sync the written rows to disk."""
    Table(folder / RECORD, COLUMNS).sync()


class _Row(NamedTuple):
    update: int
    place: Place
    fingerprint: str
    norm: str
    end: int  # the position after the row in the file


def _rows(path: Path) -> Iterator[_Row]:
    """Yield the rows up to the first one that is incomplete or unreadable."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            end += len(line)
            if row := _ROW.fullmatch(line):
                update, kind, process, tensor, fingerprint, norm = (cell.decode() for cell in row.groups())
                yield _Row(int(update), Place(kind, int(process), tensor), fingerprint, norm, end)
            elif end > len(line):  # only the first line is the heading
                return


def updates(folder: Path, column: str = "fingerprint") -> Iterator[tuple[int, dict[Place, str]]]:
    """Yield the number of each update and its fingerprints (or norms), in the order of the file, up to an unreadable row."""
    path = folder / RECORD
    if path.exists():
        for update, rows in groupby(_rows(path), lambda row: row.update):
            yield update, {row.place: getattr(row, column) for row in rows}


def compare_runs(one: Path, other: Path) -> tuple[int, Difference | None]:
    """Return the number of updates in which both runs have fingerprints of the same tensors and processes, and the first
    difference."""
    common, theirs = 0, updates(other)
    update, other_values = next(theirs, (math.inf, {}))
    for k, own in updates(one):
        while update < k:
            update, other_values = next(theirs, (math.inf, {}))
        if update == k and own.keys() == other_values.keys():
            common += 1
            if found := [place for place in own if own[place] != other_values[place]]:
                return common, Difference.at(k, found)
    return common, None


def compare_processes(folder: Path) -> tuple[int, Difference | None]:
    """Return the number of processes, and the first weights that differ between processes. The difference names processes
    without the most frequent value, or all processes if two values are equally frequent."""
    count = 0
    for update, found in updates(folder):
        weights: dict[str, dict[Place, str]] = {}
        for place, value in found.items():
            if place.kind == WEIGHT:
                weights.setdefault(place.tensor, {})[place] = value
        count = max(map(len, weights.values()), default=count)
        if different := [place for each in weights.values() for place in _minority(each)]:
            return count, Difference.at(update, different)
    return count, None


def _minority(values: dict[Place, str]) -> list[Place]:
    (most, times), *others = Counter(values.values()).most_common()
    tied = bool(others) and others[0][1] == times
    return [place for place, value in values.items() if tied or value != most]
