"""The files of pictures in a tree of folders: which names count, and which files are pictures.

Names that begin with a dot are left out, and so are the folders that systems add, and files with neither the suffix nor the
first bytes of a picture (Thumbs.db, readme.txt).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from base.errors import DataError
from base.storage import run_files
from Datasets.formats import image_headers

_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp", ".heic", ".heif", ".avif",
    ".jxl", ".jp2", ".ppm", ".pgm", ".tga",
)  # fmt: skip
_OF_SYSTEMS = frozenset(  # folders with copies, thumbnails or deleted files
    ("__macosx", "@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "lost+found",
     "__pycache__")
)  # fmt: skip


def below(folder: Path) -> list[Path]:
    """Return every picture in a folder and the folders below, in the order of the paths, whatever they are called. DataError
    for a folder that cannot be read."""
    return sorted(file for file in files(folder) if is_picture(file))


def filled(folder: Path) -> list[str]:
    """Return the folders in a folder that hold pictures; links to a folder around it are none of them."""
    real, found = folder.resolve(), names(folder, folders=True)
    inside = [name for name in found if not real.is_relative_to((folder / name).resolve())]
    return [name for name in inside if holds_pictures(folder / name)]


def holds_pictures(folder: Path) -> bool:
    """Return whether a file in the folder or below counts as a picture."""
    return any(is_picture(file) for file in files(folder))


def named_below(folder: Path) -> bool:
    """Return whether a folder in this one holds a file that is named like a picture; opens none."""
    return any(has_suffix(file.name) for name in names(folder, folders=True) for file in files(folder / name))


def has_loose(folder: Path) -> bool:
    """Return whether a file in the folder itself counts as a picture."""
    return any(is_picture(folder / name) for name in names(folder, folders=False))


def names(folder: Path, *, folders: bool) -> list[str]:
    """Return the folders, or the files, in a folder itself."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() == folders and not _is_hidden(entry.name))
    except OSError as error:
        _raise_unreadable(error)


def files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below, through links too. A folder that is reached twice counts once, so every walk
    ends."""
    entered: set[str] = set()
    _is_new(folder, folder, entered)
    for here, folders, found in os.walk(folder, onerror=_raise_unreadable, followlinks=True):
        seen = sorted(name for name in folders if not _is_hidden(name))
        folders[:] = [name for name in seen if _is_new(Path(here, name), folder, entered)]
        yield from (Path(here, name) for name in sorted(found) if not _is_hidden(name))


def is_picture(file: Path) -> bool:
    """Return whether a file counts as a picture: by its suffix, or else by its first bytes. Files that runs write are not
    opened."""
    return has_suffix(file.name) or (not run_files.is_own(file.name) and image_headers.file_fault(file) is None)


def has_suffix(name: str) -> bool:
    """Return whether a file is named like a picture."""
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _OF_SYSTEMS


def _is_new(folder: Path, walked: Path, entered: set[str]) -> bool:
    """Return whether the walk has not entered a folder yet, by whatever name; counts it among the entered ones. DataError
    for a link out of `walked` to a folder around it: every class would belong to this one."""
    real = os.path.realpath(folder)
    around = os.path.realpath(walked.parent), os.path.dirname(os.path.realpath(walked))
    if any(Path(place).is_relative_to(real) for place in around):
        raise DataError(f"{folder} is a link to {real}, the folder around {walked} or one further up; remove the link")
    new = real not in entered
    entered.add(real)
    return new


def _raise_unreadable(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename} cannot be read: {error.strerror}")
