"""Image files in a tree of folders, one folder a class: listed, labelled and served as records.

SOURCE/<class>/*, or splits with class folders in SOURCE (`split_folders`). Files in folders below a class belong to it, and
in folders that are linked there; folders without pictures are no classes.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from base.errors import DataError
from base.storage import input_files
from Datasets.formats import class_names, image_headers, split_names
from Datasets.formats.image_headers import MAX_BYTES
from Datasets.sources import image_tree, split_folders
from Datasets.sources.split_folders import Splits, listed

_TESTED_TOGETHER = 16  # files opened at once: the time goes into waiting for the disc


class Picture(NamedTuple):
    """A file, and its label counted from 1."""

    file: Path
    label: int


class BadFile(NamedTuple):
    """A file that cannot be taken for a picture, and why."""

    file: Path
    reason: str


@dataclass(frozen=True)
class Listing:
    """Pictures by split; `validation` is None where the source has no such split. `notes`: lines for the log."""

    classes: tuple[str, ...]
    train: list[Picture]
    validation: list[Picture] | None
    notes: tuple[str, ...] = ()

    def splits(self) -> dict[str, list[Picture]]:
        """Return the splits that hold pictures."""
        return {"train": self.train} | ({"validation": self.validation} if self.validation else {})

    def class_images(self) -> tuple[int, ...]:
        """Return the number of training images of each class."""
        counts = Counter(picture.label for picture in self.train)
        return tuple(counts[label] for label in range(1, len(self.classes) + 1))


def tree(top: Path, train: Path | None = None, validation: Path | None = None) -> Listing:
    """Return every picture below `top`, or of splits that are given. DataError for a tree without classes, or with folders
    that may be classes or splits."""
    splits = split_folders.find(top, train, validation)
    found = _class_folders(splits.train, splits.class_folders)
    per_class = {name: _class_files(folders) for name, folders in found.items()}
    classes = _ordered([name for name, (pictures, _) in per_class.items() if pictures], splits.train)
    pictures = [Picture(file, label) for label, name in enumerate(classes, 1) for file in per_class[name][0]]
    others = [file for name in classes for file in per_class[name][1]]
    held_out, more = pictures_by_class(splits.validation, classes) if splits.validation else (None, [])
    notes = [
        f"the pictures in {folder} itself are left out: they are in no folder of a class" for folder in _loose(top, splits)
    ]
    if empty := [name for name in sorted(per_class) if name not in classes]:
        notes.append(f"warning: folders without pictures are left out: {listed(empty)}")
    if others := [*others, *more]:
        notes.append(f"files that are no pictures are left out: {len(others)}, as {others[0]}")
    return Listing(classes, pictures, held_out, (*splits.notes, *notes))


def classes_of(top: Path, train: Path | None = None, validation: Path | None = None) -> tuple[str, ...]:
    """Return the classes of the tree in the order of their labels."""
    splits = split_folders.find(top, train, validation)
    found = _class_folders(splits.train, splits.class_folders).items()
    return _ordered([name for name, folders in found if any(map(image_tree.holds_pictures, folders))], splits.train)


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
            f"splits with such folders, as train and val; or {split_folders.SPLITS_HINT}"
        )
    return class_names.ordered(names)


def pictures_by_class(folder: Path, classes: tuple[str, ...]) -> tuple[list[Picture], list[Path]]:
    """Return the pictures of one split, class by class in the order of the labels, sorted by name; and the files that are
    none."""
    folders = _class_folders(folder, image_tree.names(folder, folders=True))
    found = {name: _class_files(there) for name, there in folders.items()}
    unknown = sorted(name for name, (pictures, _) in found.items() if pictures and name not in classes)
    if unknown:
        raise DataError(f"class {unknown[0]} of {folder} is unknown to training, which has: {listed(classes)}")
    pictures = [Picture(file, label) for label, name in enumerate(classes, 1) if name in found for file in found[name][0]]
    return pictures, [file for name in sorted(found) for file in found[name][1]]


def _class_files(folders: list[Path]) -> tuple[list[Path], list[Path]]:
    """The pictures of a class, and the files that are none."""
    pictures: list[Path] = []
    others: list[Path] = []
    for folder in folders:
        for file in image_tree.files(folder):
            (pictures if image_tree.is_picture(file) else others).append(file)
    return pictures, others


def damaged(pictures: list[Picture]) -> list[BadFile]:
    """The files whose headers are no picture's, read several at once."""
    with ThreadPoolExecutor(_TESTED_TOGETHER) as pool:
        reasons = list(pool.map(image_headers.file_fault, [picture.file for picture in pictures]))
    return [BadFile(picture.file, reason) for picture, reason in zip(pictures, reasons) if reason]


def is_tree(folder: Path) -> bool:
    """Return whether a folder in this one holds a picture."""
    return any(image_tree.holds_pictures(folder / name) for name in image_tree.names(folder, folders=True))


def split_off(listing: Listing, fraction: float, place: Callable[[Path], str], seed: int, option: str) -> Listing:
    """Return the listing with a part of every class' pictures as its validation split, the same for the same seed and
    names; one picture of each class stays in training. DataError, which names the `option`, if there is none to take."""
    by_class: dict[int, list[Picture]] = defaultdict(list)
    for picture in listing.train:
        by_class[picture.label].append(picture)
    chosen: set[Picture] = set()
    for pictures in by_class.values():
        count = min(round(fraction * len(pictures)), len(pictures) - 1)
        chosen |= set(shuffled(pictures, place, f"{seed} validation")[:count])
    if not chosen:
        largest = max(map(len, by_class.values()))
        remedy = f"give {1 / largest:.2g} or more" if largest > 1 else "add pictures, for one stays in training"
        raise DataError(f"{option} {fraction:g} takes no picture of any class: the largest has {largest}; {remedy}")
    train = [picture for picture in listing.train if picture not in chosen]
    return replace(listing, train=train, validation=[picture for picture in listing.train if picture in chosen])


def shuffled(pictures: list[Picture], place: Callable[[Path], str], key: str) -> list[Picture]:
    """Return the pictures in an order that follows from `key` and their places alone."""

    def drawn(picture: Picture) -> tuple[bytes, str]:
        name = place(picture.file)
        return hashlib.blake2b(f"{key}\0{name}".encode("utf-8", "surrogateescape"), digest_size=16).digest(), name

    return sorted(pictures, key=drawn)


class FileIndex:
    """Picture files as numbered records, each a serialised tf.train.Example; the interface of RecordIndex."""

    def __init__(self, pictures: list[Picture], classes: tuple[str, ...]) -> None:
        self._pictures = pictures
        self._classes = classes

    def __len__(self) -> int:
        return len(self._pictures)

    def name(self, record: int) -> str:
        return str(self._pictures[record].file)

    def picture(self, record: int) -> str:
        return self.name(record)

    def payload(self, record: int) -> bytes:
        """The file's bytes as they are, and its label."""
        from Datasets.formats import tf_example

        file, label = self._pictures[record]
        try:
            return tf_example.serialised(input_files.content(file, MAX_BYTES), label, self._classes[label - 1])
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from error


def _loose(top: Path, splits: Splits) -> list[Path]:
    """The folders of training and validation, and those named like splits beside them, with pictures in no class folder."""
    places, beside = [splits.train, *[splits.validation] * bool(splits.validation)], splits.train.parent
    if splits.train != top:
        places += [beside / name for name in image_tree.names(beside, folders=True) if split_names.split_of(name)]
    return [place for place in dict.fromkeys(places) if image_tree.has_loose(place)]
