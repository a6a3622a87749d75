"""Files that a call names for its results. They never take the place of a file of another kind, or of a run's own file."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from base.errors import OptionError
from base.storage import files, run_files

# The beginnings of files of a kind.
PICTURE, PAGE, JSON, ANY = ("<svg",), ("<!DOCTYPE html>",), ("{", "["), ("",)


def check(target: str, kind: Sequence[str], may_replace: Collection[str] = ()) -> Path:
    """Return the path of a file that can be written; OptionError for any other. `kind`: beginnings of files that may be
    replaced; `may_replace`: names of a run's own files that may be, too."""
    path = Path(target)
    try:
        for place in (path, path.resolve()):  # a link leads there
            if run_files.is_own(place.name) and place.name not in may_replace and run_files.is_in_run(place):
                raise OptionError(
                    f"{target}: {place.parent} is the folder of a run, which writes such files itself; give another name"
                )
        if not path.parent.is_dir():
            raise OptionError(f"{target}: there is no folder {path.parent}; make it first")
        if path.is_dir():
            raise OptionError(f"{target} cannot be written: it is a folder; give the name of a file")
        if path.is_file() and not _is_of(path, kind):
            raise OptionError(f"{target} is there already, as a file of something else; move that away or give another name")
        place = path if path.exists() and not path.is_file() else path.parent
        if not os.access(place, os.W_OK):
            reason = os.strerror(files.refused(place))
            raise OptionError(f"{target} cannot be written: {reason}; give the name of a file elsewhere")
    except OSError as error:
        raise OptionError(f"{target} cannot be written: {error.strerror}") from None
    return path


def _is_of(path: Path, kind: Sequence[str]) -> bool:
    """Return whether a file begins as those of a kind, or is empty; a file that may not be read counts as such."""
    if not os.access(path, os.R_OK):
        return True
    with path.open("rb") as file:
        begin = file.read(max(map(len, kind)))
    return not begin or begin.startswith(tuple(each.encode() for each in kind))


def write_atomically(target: str, text: str, kind: Sequence[str], may_replace: Collection[str] = ()) -> None:
    """Write a file, whole or not at all, or into a pipe or a device; OptionError as of `check`, OSError for a full disk."""
    path = check(target, kind, may_replace)
    if path.exists() and not path.is_file():
        with files.naming(path):
            path.write_bytes(files.encoded(text))
    else:
        files.write_atomically(path.resolve(), text)
