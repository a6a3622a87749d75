"""SHA256SUMS of an export: the digests of its files, as `sha256sum -c` reads them, and --predict before it believes one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from base import bounds
from base.storage import files, input_files

FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def of(folder: Path, name: str) -> dict[str, str]:
    """Return the digest of a file in a folder, or of every file of a folder in it, by name."""
    path = folder / name
    paths = [path] if not path.is_dir() else sorted(each for each in path.rglob("*") if not each.is_dir())
    return {each.relative_to(folder).as_posix(): _digest(each) for each in paths}


def listed(folder: Path) -> dict[str, str]:
    """Return the digests that are kept; empty without the file. ValueError for other content than `keep` writes."""
    try:
        lines = input_files.text(folder / FILE, bounds.TEXT).splitlines()
    except FileNotFoundError:
        return {}
    found = [_LINE.fullmatch(line) for line in lines]
    if not found or not all(found):
        raise ValueError("it has other lines than sha256sum writes")
    return {line[2]: line[1] for line in found}


def keep(folder: Path, digests: Mapping[str, str]) -> None:
    """Write the digests of files by name."""
    files.write_atomically(folder / FILE, "".join(f"{digests[name]}  {name}\n" for name in sorted(digests)))


def difference(folder: Path, names: Iterable[str]) -> str | None:
    """Return which of some files, or folders, has other bytes than were written, or None: all are as they were, or nothing
    is kept of any."""
    kept = listed(folder)
    for name in names if kept else ():
        expected = {each: digest for each, digest in kept.items() if each == name or each.startswith(f"{name}/")}
        found = of(folder, name)
        for each in sorted(expected.keys() | found.keys()):
            if expected.get(each) != found.get(each):
                return each
    return None


def _digest(path: Path) -> str:
    with input_files.open_regular_file(path) as file:
        return input_files.sha256(file)
