"""Image files in a tree of folders, one folder a class: listed, labelled and served as records.

SOURCE/<class>/*, or splits with class folders in SOURCE (`split_folders`). Files in folders below a class belong to it, and
in folders that are linked there; folders without pictures are no classes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from base.errors import DataError
from base.storage import input_files
from Datasets.formats import class_names, image_headers
from Datasets.formats.image_headers import MAX_BYTES
from Datasets.sources import picture_files, split_folders
from Datasets.sources.split_folders import Splits, few

_TESTED_TOGETHER = 16  # files opened at once: the time goes into waiting for the disc


class Picture(NamedTuple):
    """A file, and its label counted from 1."""

    file: Path
    label: int


class BadFile(NamedTuple):
    """A file that cannot be taken for a picture, and why."""

    file: Path
    reason: str

    @property
    def advice(self) -> str:
        """The reason with the remedy."""
        if image_headers.REMEDY.search(self.reason):
            return self.reason
        unread = self.reason.startswith(image_headers.UNREAD)  # which tells nothing of the picture
        return f"{self.reason}; {'make it readable' if unread else 'remove the damaged picture'}"


@dataclass(frozen=True)
class Listing:
    """Pictures by split; `validation` is None where the source has no such split. `left_out`: files that are no pictures;
    `found`: the log's lines on the folders."""

    classes: tuple[str, ...]
    train: list[Picture]
    validation: list[Picture] | None
    left_out: list[Path] = field(default_factory=list)
    found: tuple[str, ...] = ()

    def splits(self) -> dict[str, list[Picture]]:
        """The splits that hold pictures."""
        return {"train": self.train} | ({"validation": self.validation} if self.validation else {})

    @property
    def notes(self) -> tuple[str, ...]:
        """The log's lines about the folders, and the files left out."""
        count = len(self.left_out)
        number = f"{count} files that are no pictures are" if count > 1 else "1 file that is no picture is"
        line = f"{number} left out: {self.left_out[0]}{', ...' * (count > 1)}" if count else ""
        return self.found + (line,) * bool(line)


def tree(top: Path, train: Path | None = None, validation: Path | None = None) -> Listing:
    """Return every picture below `top`, or of splits that are given. DataError for a tree without classes, or with folders
    that may be classes or splits."""
    splits = split_folders.find(top, train, validation)
    found = _class_folders(splits.train, splits.class_folders)
    per_class = {name: _of_class(folders) for name, folders in found.items()}
    classes = _ordered([name for name, (pictures, _) in per_class.items() if pictures], splits.train)
    pictures = [Picture(file, label) for label, name in enumerate(classes, 1) for file in per_class[name][0]]
    left_out = [file for name in classes for file in per_class[name][1]]
    held_out, more = of_classes(splits.validation, classes) if splits.validation else (None, [])
    empty = [name for name in sorted(per_class) if name not in classes]
    are, hold = ("are", "they hold") if len(empty) > 1 else ("is", "it holds")
    notes = [
        *splits.notes,
        *(
            f"the pictures in {folder} itself are left out: they are in no folder of a class"
            for folder in _loose(top, splits)
        ),
        *[f"warning: {few(empty)} {are} left out: {hold} no pictures"] * bool(empty),
    ]
    return Listing(classes, pictures, held_out, left_out + more, tuple(notes))


def classes_of(top: Path, train: Path | None = None, validation: Path | None = None) -> tuple[str, ...]:
    """Return the classes of the tree in the order of their labels."""
    splits = split_folders.find(top, train, validation)
    found = _class_folders(splits.train, splits.class_folders)
    return _ordered(
        [name for name, folders in found.items() if any(map(picture_files.holds_pictures, folders))], splits.train
    )


def _class_folders(split: Path, folders: list[str]) -> dict[str, list[Path]]:
    """The folders of each class, which are several where a name has several spellings."""
    found: dict[str, list[Path]] = {}
    for name in folders:
        if not name.isprintable() or not name.strip():
            fault = "nothing but blanks" if name.isprintable() else "unprintable characters"
            raise DataError(f"the class folder {name!r} in {split} has {fault} in its name; rename it")
        found.setdefault(class_names.normal(name), []).append(split / name)
    return found


def _ordered(names: list[str], train: Path) -> tuple[str, ...]:
    if not names:
        raise DataError(
            f"no classes in {train}: looked for one folder for each class there, with the class's pictures in it, or for "
            f"splits with such folders, as train and val; or {split_folders.NAME_THEM}"
        )
    same = class_names.same_number(names)
    if same:
        first, second = (names[place] for place in same)
        raise DataError(f"the class folders {first} and {second} in {train} are one number; join them, or rename one")
    return class_names.ordered(names)


def of_classes(folder: Path, classes: tuple[str, ...]) -> tuple[list[Picture], list[Path]]:
    """Return the pictures of one split, class by class in the order of the labels, sorted by name; and the files that are
    none."""
    found = {
        name: _of_class(there) for name, there in _class_folders(folder, picture_files.names(folder, folders=True)).items()
    }
    unknown = sorted(name for name, (pictures, _) in found.items() if pictures and name not in classes)
    if unknown:
        raise DataError(f"class {unknown[0]} of {folder} is unknown to training, which has: {few(classes)}")
    pictures = [Picture(file, label) for label, name in enumerate(classes, 1) if name in found for file in found[name][0]]
    return pictures, [file for name in sorted(found) for file in found[name][1]]


def _of_class(folders: list[Path]) -> tuple[list[Path], list[Path]]:
    """The pictures of a class, and the files that are none."""
    pictures: list[Path] = []
    others: list[Path] = []
    for folder in folders:
        for file in picture_files.files(folder):
            (pictures if picture_files.is_picture(file) else others).append(file)
    return pictures, others


def damaged(pictures: list[Picture]) -> list[BadFile]:
    """The files whose headers are no picture's, read several at once."""
    with ThreadPoolExecutor(_TESTED_TOGETHER) as pool:
        reasons = list(pool.map(image_headers.file_fault, [picture.file for picture in pictures]))
    return [BadFile(picture.file, reason) for picture, reason in zip(pictures, reasons) if reason]


def is_tree(folder: Path) -> bool:
    """Return whether a folder in this one holds a picture."""
    return any(picture_files.holds_pictures(folder / name) for name in picture_files.names(folder, folders=True))


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

    def picture(self, record: int) -> str:
        """The file."""
        return self.name(record)

    def payload(self, record: int) -> bytes:
        """The file's bytes as they are, and its label."""
        from Datasets.formats import tf_example

        file, label = self._pictures[record]
        try:
            return tf_example.serialised(input_files.content(file, MAX_BYTES), label, self._classes[label - 1])
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from error

    def damage(self, record: int) -> str | None:
        """The fault in the file's header."""
        reason = image_headers.file_fault(self._pictures[record].file)
        return f"it {reason}" if reason else None


def _loose(top: Path, splits: Splits) -> list[Path]:
    """The folders of training and validation, and those named like splits beside them, with pictures in no class folder."""
    places, beside = [splits.train, *[splits.validation] * bool(splits.validation)], splits.train.parent
    if splits.train != top:
        places += [beside / name for name in picture_files.names(beside, folders=True) if split_folders.split_of(name)]
    return [place for place in dict.fromkeys(places) if picture_files.has_loose(place)]
