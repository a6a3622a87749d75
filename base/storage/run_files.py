"""The names of the files that a run writes into its folder."""

from __future__ import annotations

from pathlib import Path

from base.storage import locks
from base.storage.tables import TABLES

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


def is_own(name: str) -> bool:
    """Return whether a run writes files of that name itself."""
    return name in NAMES or name.startswith(_BEGINNINGS)


def is_in_run(file: Path) -> bool:
    """Return whether the folder of a file, which need not be there, is that of a run."""
    return (file.parent / ARGUMENTS[0]).exists()
