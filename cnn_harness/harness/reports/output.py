"""Write output files under names that the user gives, without replacing files of another type or of a run."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.base.storage import files, run_files

# The texts with which files of each type begin. A file may begin with any text if its type is ANY.
SVG, PAGE, JSON, ANY = ("<svg",), ("<!DOCTYPE html>",), ("{", "["), ("",)


def check(target: str, kind: Sequence[str], may_replace: Collection[str] = ()) -> Path:
    """Return the path of an output file. Raise OptionError if the file must not or cannot be written.

    An existing file may be replaced only if it begins with a text in `kind`. In a run directory, the files that the run
    itself writes may be replaced only if their names are in `may_replace`.
    """
    path = Path(target)
    try:
        for place in (path, path.resolve()):  # a link may point into a run directory
            if run_files.is_own(place.name) and place.name not in may_replace and run_files.is_in_run(place):
                raise OptionError(
                    f"{target}: the run in {place.parent} itself writes a file of this name; choose another name"
                )
        if not path.parent.is_dir():
            raise OptionError(f"{target}: the folder {path.parent} does not exist; create it first")
        if path.is_dir():
            raise OptionError(f"{target} cannot be written: it is a folder; give a file name")
        if path.is_file() and not _is_of(path, kind):
            raise OptionError(f"{target} already exists and contains something else; move it away or choose another name")
        place = path if path.exists() and not path.is_file() else path.parent
        if not os.access(place, os.W_OK):
            reason = os.strerror(files.refused(place))
            raise OptionError(f"{target} cannot be written: {reason}; write to another folder")
    except OSError as error:
        raise OptionError(f"{target} cannot be written: {error.strerror}") from None
    return path


def _is_of(path: Path, kind: Sequence[str]) -> bool:
    """Return whether a file begins with one of these texts. True for empty and unreadable files."""
    if not os.access(path, os.R_OK):
        return True
    with path.open("rb") as file:
        begin = file.read(max(map(len, kind)))
    return not begin or begin.startswith(tuple(each.encode() for each in kind))


def write_atomically(target: str, text: str, kind: Sequence[str], may_replace: Collection[str] = ()) -> None:
    """Write a file atomically; write to a pipe or a device directly. Raise OptionError for the same reasons as `check`, and
    OSError if the disk is full."""
    path = check(target, kind, may_replace)
    if path.exists() and not path.is_file():
        with files.naming(path):
            path.write_bytes(files.encoded(text))
    else:
        files.write_atomically(path.resolve(), text)
