"""The names of the files in a run directory."""

from __future__ import annotations

from pathlib import Path

from cnn_harness.base.storage import locks
from cnn_harness.base.storage.tables import TABLES

ARGUMENTS = ("arguments.json", "arguments_restore.json")  # options of the start, and of the last resumption
APPENDED = (locks.FILE, "log.txt")  # files other than tables to which a run appends
REPLACED = (*ARGUMENTS, "checkpoint", "inference.json", "training.svg", "report.html")
_BY_REQUEST = (
    "fingerprints.csv", "numerics.jsonl", "numerics.svg", "profile.json", "profile.svg", "execution.json", "stdout.txt",
)  # fmt: skip
NAMES = frozenset((*APPENDED, *TABLES, *REPLACED, *_BY_REQUEST))
_BEGINNINGS = (  # beginnings of names that contain a number, host or time, and of editors' backup files
    ".lock", "arguments", "checkpoint", "ckpt-", "evaluation.", "events.out.", "inference.", "log.txt", "result_",
    "training.", "validation.",
)  # fmt: skip

EXPORT = ("labels.txt", "preprocessing.json")  # files written with every export


def is_own(name: str) -> bool:
    """Return whether runs write files with this name."""
    return name in NAMES or name.startswith(_BEGINNINGS)


def is_in_run(file: Path) -> bool:
    """Return whether a file, which may not exist, is in a run directory."""
    return (file.parent / ARGUMENTS[0]).exists()
