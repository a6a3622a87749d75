"""Files that a call names for its results: written whole or not at all, in the place of a file of the same kind at most, and
none of those that a run writes itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from base.errors import OptionError
from base.storage import files, run_files

# The beginnings of files of a kind.
PICTURE, PAGE, JSON, ANY = ("<svg",), ("<!DOCTYPE html>",), ("{", "["), ("",)


def check(
    target: str,
    kind: Sequence[str],
    elsewhere: str = "give the name of a file elsewhere",
    may_replace: Collection[str] = (),
) -> Path:
    """Return the path of a file that can be written as far as its name and folder tell; OptionError for any other.
    `kind`: how files begin that this one may take the place of; `elsewhere`: the way out where its folder may not be
    written; `may_replace`: names of a run's files that this one may take the place of, as a new one of the same kind."""
    path = Path(target)
    for place in (path, Path(os.path.realpath(path))):  # a link leads there
        if run_files.is_own(place.name) and place.name not in may_replace and run_files.is_in_run(place):
            raise OptionError(
                f"{target}: {place.parent} is the folder of a run, which writes such files itself; give another name"
            )
    try:
        if not path.parent.is_dir():
            raise OptionError(f"{target}: there is no folder {path.parent}; make it first")
        if path.is_dir():
            raise OptionError(f"{target} cannot be written: it is a folder; give the name of a file")
        if path.is_file() and not _is_of(path, kind):
            raise OptionError(f"{target} is there already, as a file of something else; move that away or give another name")
        place = path if path.exists() and not path.is_file() else path.parent
        if not os.access(place, os.W_OK):
            raise OptionError(f"{target} cannot be written: {os.strerror(files.refused(place))}; {elsewhere}")
    except OSError as error:
        raise OptionError(f"{target} cannot be written: {error.strerror}") from None
    return path


def _is_of(path: Path, kind: Sequence[str]) -> bool:
    """Return whether a file begins as those of a kind, or is empty; one that may not be read counts as such."""
    if not os.access(path, os.R_OK):
        return True
    with path.open("rb") as file:
        begin = file.read(max(map(len, kind)))
    return not begin or begin.startswith(tuple(each.encode() for each in kind))


def write_atomically(target: str, text: str, kind: Sequence[str], may_replace: Collection[str] = ()) -> None:
    """Write a file, whole or not at all, and through a link or into a pipe or device as such; OptionError where it cannot
    be, as of `check`, OSError where the disk is full or fails."""
    path = check(target, kind, may_replace=may_replace)
    try:
        if path.exists() and not path.is_file():
            _write_into(path, files.encoded(text))
        else:
            files.write_atomically(path.resolve(), text)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
            raise OSError(error.errno, error.strerror, target) from None
        if error.errno == errno.ENXIO and path.is_fifo():
            raise OptionError(f"{target} cannot be written: nobody reads from that pipe; begin with its reader") from None
        raise OptionError(f"{target} cannot be written: {error.strerror or error}") from None


def _write_into(place: Path, content: bytes) -> None:
    """Write into a pipe or a device; ENXIO for a pipe that nobody reads, which would wait for ever."""
    file = os.open(place, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(file, True)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
