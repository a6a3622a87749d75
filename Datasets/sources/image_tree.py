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
from Datasets.formats import image_headers

_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp", ".heic", ".heif", ".avif",
    ".jxl", ".jp2", ".ppm", ".pgm", ".tga",
)  # fmt: skip
_SYSTEM_FOLDERS = frozenset(  # folders with copies, thumbnails or deleted files
    ("__macosx", "@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "lost+found",
     "__pycache__")
)  # fmt: skip


def pictures_below(folder: Path) -> list[Path]:
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
    """Yield the files in a folder and below, through links too, but for links to a folder around it. A folder that is
    reached twice counts once, so every walk ends."""
    real = os.path.realpath(folder)
    entered = {real, *map(str, Path(real).parents), os.path.realpath(folder.parent)}
    for here, folders, found in os.walk(folder, onerror=_raise_unreadable, followlinks=True):
        below = {name: os.path.realpath(os.path.join(here, name)) for name in sorted(folders) if not _is_hidden(name)}
        folders[:] = []
        for name, place in below.items():
            if place not in entered:
                entered.add(place)
                folders.append(name)
        yield from (Path(here, name) for name in sorted(found) if not _is_hidden(name))


def is_picture(file: Path) -> bool:
    """Return whether a file counts as a picture: by its suffix, or else by its first bytes."""
    return has_suffix(file.name) or image_headers.file_fault(file) is None


def has_suffix(name: str) -> bool:
    """Return whether a file is named like a picture."""
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def _raise_unreadable(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename} cannot be read: {error.strerror}")
