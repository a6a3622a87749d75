"""Write, read and compare fingerprints.csv, which has a row for each gradient and weight of every update and process
(--fingerprints)."""

from __future__ import annotations

import csv
import os
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
    """Delete an incomplete row, and the rows after `updates`, which the resumed run will write again."""
    path, kept = folder / RECORD, 0
    if not path.exists():
        return
    with path.open("rb") as file:
        for k, line in enumerate(file):
            if not line.endswith(b"\n") or (k and int(line.split(b",")[0]) > updates):
                break
            kept += len(line)
    os.truncate(path, kept)


def sync(folder: Path) -> None:
    """Sync the written rows to disk."""
    Table(folder / RECORD, COLUMNS).sync()


def updates(folder: Path, column: str = "fingerprint") -> Iterator[tuple[int, dict[Place, str]]]:
    """Yield the number of each update, and its fingerprints (or norms) in the order of the file. Skip an incomplete row."""
    path = folder / RECORD
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if line.endswith("\n"))
        for update, of_update in groupby(rows, lambda row: int(row["iteration"])):
            yield update, {Place(row["kind"], int(row["process"]), row["tensor"]): row[column] for row in of_update}


def compare_runs(one: Path, other: Path) -> tuple[int, Difference | None]:
    """Return the number of updates of which both runs have fingerprints, and the first difference."""
    theirs, common = dict(updates(other)), 0
    for update, own in updates(one):
        common += update in theirs
        both = own.keys() & theirs.get(update, {}).keys()
        if found := [place for place in own if place in both and own[place] != theirs[update][place]]:
            return common, Difference.at(update, found)
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
