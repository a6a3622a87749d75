"""The names of the files that a run writes into its folder, and the folders that hold runs or an export by such names."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from base.storage import locks
from base.storage.run_tables import TABLES

ARGUMENTS = ("arguments.json", "arguments_restore.json")  # of the run's beginning, and of its last restore
APPENDED = (locks.FILE, "log.txt")  # besides the tables
REPLACED = (*ARGUMENTS, "checkpoint", "inference.json", "training.svg", "report.html")
_BY_REQUEST = ("numerics.jsonl", "numerics.svg", "profile.json", "profile.svg", "execution.json", "stdout.txt")
NAMES = frozenset((*APPENDED, *TABLES, *REPLACED, *_BY_REQUEST))
_BEGINNINGS = (  # of names with a number, a host or a time in them, and of what editors leave beside
    ".lock", "arguments", "checkpoint", "ckpt-", "evaluation.", "events.out.", "inference.", "log.txt", "result_",
    "training.", "validation.",
)  # fmt: skip

EXPORT = ("labels.txt", "preprocessing.json")  # beside every export
RUNS, AN_EXPORT = "runs", "an export"  # in folders, in words
# a sweep's folder, and that of a run which has just begun, have the lock's file alone
_MARKS = (((ARGUMENTS[0],), RUNS), ((locks.FILE,), RUNS), (EXPORT, AN_EXPORT))
_DEEPEST = 3  # logs/sweep/<its name>/<trial>
_LOOKED_AT = 1000  # names in a folder and in those below: the first run is among the first


def is_own(name: str) -> bool:
    """Return whether a run writes files of that name itself."""
    return name in NAMES or name.startswith(_BEGINNINGS)


def is_in_run(file: Path) -> bool:
    """Return whether the folder of a file, which need not be there, is that of a run."""
    return (file.parent / ARGUMENTS[0]).exists()


def held_in(folder: Path) -> str | None:
    """Return RUNS or AN_EXPORT for a folder that is one or has one not far below, by the names in it; None for any other.
    Folders that are linked or cannot be read below it are passed over."""
    level, names = [folder], _LOOKED_AT
    for _ in range(_DEEPEST + 1):
        for place in level:
            for marks, what in _MARKS:
                if all((place / name).is_file() for name in marks):
                    return what
        below: list[Path] = []
        for place in level:
            found = list(itertools.islice(_entries(place), names))
            names -= len(found)
            below += [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]
        level = below
    return None


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        yield from entries
