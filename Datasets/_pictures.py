"""Picture files in a tree of folders, one folder a class: found, labelled and served as records.

SOURCE/<class>/*, or SOURCE/train/<class>/* with SOURCE/val, validation or test beside it. Files in folders below a class
belong to it; names that begin with a dot are left alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from Datasets import _labels
from Datasets._spec import DataError

VALIDATION_FOLDERS = ("val", "validation", "test")  # the first that is there
_BEGINNINGS = ((b"\xff\xd8\xff", "JPEG"), (b"\x89PNG\r\n\x1a\n", "PNG"), (b"GIF8", "GIF"), (b"BM", "BMP"))
_LONGEST_BEGINNING = 8


class Picture(NamedTuple):
    """A file, and its label counted from 1."""

    file: Path
    label: int


@dataclass(frozen=True)
class Tree:
    """What lies in the folders. `validation` is None where there is no such split."""

    classes: tuple[str, ...]
    train: list[Picture]
    validation: list[Picture] | None


def tree(top: Path) -> Tree:
    """Every picture below `top`; a DataError names a class without any."""
    train, validation = _splits(top)
    classes = class_names(top)
    pictures = of_classes(train, classes)
    with_some = {picture.label for picture in pictures}
    for label, name in enumerate(classes, 1):
        if label not in with_some:
            raise DataError(f"class {name} is empty: no file in {train / name}; put its pictures there or remove the folder")
    return Tree(classes, pictures, of_classes(validation, classes) if validation else None)


def class_names(top: Path) -> tuple[str, ...]:
    """The classes of the tree in the order of their labels."""
    train, _ = _splits(top)
    names = _folders(train)
    if not names:
        raise DataError(
            f"no classes in {train}: looked for one folder for each class there, with the class's pictures in it, or for "
            f"{top / 'train'} with such folders"
        )
    for name in names:
        if not name.isprintable():
            raise DataError(f"the class folder {name!r} in {train} has unprintable characters in its name; rename it")
    return _labels.ordered(names)


def of_classes(folder: Path, classes: tuple[str, ...]) -> list[Picture]:
    """The pictures of one split, class by class in the order of the labels, sorted by name."""
    found = _folders(folder)
    unknown = sorted(set(found) - set(classes))
    if unknown:
        raise DataError(f"class {unknown[0]} of {folder} is unknown to training, which has: {_few(classes)}")
    return [Picture(file, label) for label, name in enumerate(classes, 1) if name in found for file in _files(folder / name)]


def is_tree(folder: Path) -> bool:
    """Whether there is a picture in one of the folders in it."""
    train, _ = _splits(folder)
    return any(not wrong(file) for name in _folders(train) for file in _files(train / name))


def wrong(file: Path) -> str | None:
    """Why a file cannot be a picture, by its first bytes."""
    try:
        if not file.is_file():  # a pipe would be waited for
            return "is no file" if file.exists() else "does not exist"
        with file.open("rb", buffering=0) as stream:
            beginning = stream.read(_LONGEST_BEGINNING)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not beginning:
        return "is empty"
    if not beginning.startswith(tuple(known for known, _ in _BEGINNINGS)):
        return f"is no {', '.join(kind for _, kind in _BEGINNINGS[:-1])} or {_BEGINNINGS[-1][1]} by its first bytes"
    return None


class FileIndex:
    """Picture files as numbered records, each a serialised tf.train.Example; the interface of RecordIndex."""

    def __init__(self, pictures: list[Picture], classes: tuple[str, ...]) -> None:
        self._pictures = pictures
        self._classes = classes

    def __len__(self) -> int:
        return len(self._pictures)

    def name(self, record: int) -> str:
        """The file."""
        return str(self._pictures[record].file)

    def payload(self, record: int) -> bytes:
        """The file's bytes as they are, and its label."""
        from Datasets import _examples

        file, label = self._pictures[record]
        try:
            return _examples.example(file.read_bytes(), label, self._classes[label - 1])
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from error

    def damage(self, record: int) -> str | None:
        """What the file's beginning says."""
        reason = wrong(self._pictures[record].file)
        return f"it {reason}" if reason else None


def _splits(top: Path) -> tuple[Path, Path | None]:
    """The folders of training and validation. A class may be called train: then pictures lie in that folder itself."""
    if not (top / "train").is_dir() or not _folders(top / "train"):
        return top, None
    return top / "train", next((top / name for name in VALIDATION_FOLDERS if (top / name).is_dir()), None)


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    found = []
    for here, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        found += [Path(here, name) for name in sorted(names) if not name.startswith(".")]
    return found


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
