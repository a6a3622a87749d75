"""Write output files that the user names. They never replace a file of another kind, nor a run's own file."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from base.errors import OptionError
from base.storage import files, run_files

# What files of each kind begin with.
SVG, PAGE, JSON, ANY = ("<svg",), ("<!DOCTYPE html>",), ("{", "["), ("",)


def check(target: str, kind: Sequence[str], may_replace: Collection[str] = ()) -> Path:
    """Return the path of an output file; OptionError if it must not or cannot be written. `kind`: beginnings of files that
    may be replaced. `may_replace`: names of a run's own files that may be replaced, too."""
    path = Path(target)
    try:
        for place in (path, path.resolve()):  # a link may point into a run directory
            if run_files.is_own(place.name) and place.name not in may_replace and run_files.is_in_run(place):
                raise OptionError(
                    f"{target}: {place.parent} is a run directory, and runs write a file of that name; choose another name"
                )
        if not path.parent.is_dir():
            raise OptionError(f"{target}: the folder {path.parent} does not exist; create it first")
        if path.is_dir():
            raise OptionError(f"{target} cannot be written: it is a folder; give a file name")
        if path.is_file() and not _is_of(path, kind):
            raise OptionError(f"{target} exists and is a file of another kind; move it away or choose another name")
        place = path if path.exists() and not path.is_file() else path.parent
        if not os.access(place, os.W_OK):
            reason = os.strerror(files.refused(place))
            raise OptionError(f"{target} cannot be written: {reason}; write to another folder")
    except OSError as error:
        raise OptionError(f"{target} cannot be written: {error.strerror}") from None
    return path


def _is_of(path: Path, kind: Sequence[str]) -> bool:
    """Return whether a file is of a kind. Empty and unreadable files count as any kind."""
    if not os.access(path, os.R_OK):
        return True
    with path.open("rb") as file:
        begin = file.read(max(map(len, kind)))
    return not begin or begin.startswith(tuple(each.encode() for each in kind))


def write_atomically(target: str, text: str, kind: Sequence[str], may_replace: Collection[str] = ()) -> None:
    """Write a file atomically; write into a pipe or a device directly. Raise OptionError like `check`, OSError if the disk
    is full."""
    path = check(target, kind, may_replace)
    if path.exists() and not path.is_file():
        with files.naming(path):
            path.write_bytes(files.encoded(text))
    else:
        files.write_atomically(path.resolve(), text)
