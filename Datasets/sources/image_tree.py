"""Find image files in a tree of folders.

Names that begin with a dot, and folders added by operating systems, are ignored. A file is an image if its name has the
suffix of an image or its content begins with the header of an image. Thumbs.db and readme.txt are no images.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets.formats import image_headers

_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp", ".heic", ".heif", ".avif",
    ".jxl", ".jp2", ".ppm", ".pgm", ".tga",
)  # fmt: skip
_RAW_SUFFIXES = (  # files of cameras that contain the values of the sensor
    ".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dng", ".erf", ".iiq", ".mrw", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw",
    ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f",
)  # fmt: skip
_SYSTEM_FOLDERS = frozenset(  # folders with copies, thumbnails or deleted files
    ("__macosx", "@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "lost+found",
     "__pycache__")
)  # fmt: skip


def images_below(folder: Path) -> list[Path]:
    """Return all images in a folder and its subfolders, sorted by path; raise DataError if a folder cannot be read."""
    return sorted(file for file in files(folder) if is_image(file))


def filled(folder: Path) -> list[str]:
    """Return the names of the subfolders that have images, except links to a parent folder."""
    real, found = folder.resolve(), names(folder, folders=True)
    inside = [name for name in found if not real.is_relative_to((folder / name).resolve())]
    return [name for name in inside if holds_images(folder / name)]


def holds_images(folder: Path) -> bool:
    """Return whether the folder, or a folder below it, has an image."""
    return any(is_image(file) for file in files(folder))


def named_below(folder: Path) -> bool:
    """Return whether a subfolder has a file named like an image, without opening files."""
    return any(has_suffix(file.name) for name in names(folder, folders=True) for file in files(folder / name))


def has_loose(folder: Path) -> bool:
    """Return whether the folder itself has an image."""
    return any(is_image(folder / name) for name in names(folder, folders=False))


def names(folder: Path, *, folders: bool) -> list[str]:
    """Return the names of the folders, or of the files, directly in a folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() == folders and not _is_hidden(entry.name))
    except OSError as error:
        _raise_unreadable(error)


def files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders. Follow links, except links to a parent folder.

    Each folder is visited only once, so that cycles of links end.
    """
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


def is_image(file: Path) -> bool:
    """Return whether a file is an image, by its suffix or else by its header."""
    return has_suffix(file.name) or image_headers.file_fault(file) is None


def is_raw(file: Path) -> bool:
    """Return whether a file is named like a raw file of a camera."""
    return file.suffix.lower() in _RAW_SUFFIXES


def file_type(name: str) -> str:
    """Return the suffix of a file in lower case; .jpeg and .jpg are the same."""
    suffix = os.path.splitext(name)[1].lower()
    return ".jpg" if suffix in (".jpeg", ".jpe", ".jfif") else suffix


def has_suffix(name: str) -> bool:
    """Return whether a file is named like an image."""
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def _raise_unreadable(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename} cannot be read: {error.strerror}")
