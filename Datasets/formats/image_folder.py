"""Image files in a tree of folders, one folder a class: listed, labelled and served as records.

SOURCE/<class>/*, or SOURCE/train/<class>/* with SOURCE/val, validation or test beside it, the first of them with pictures
in class folders. Files in folders below a class belong to it, and in folders that are linked there; names that begin with a
dot are left out, and so are files with neither the suffix nor the first bytes of a picture (Thumbs.db, readme.txt), and
folders beside the classes that hold runs or an export, and no pictures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

from base.errors import DataError
from base.storage import input_files, run_files
from Datasets.formats import class_names, image_headers
from Datasets.formats.image_headers import MAX_BYTES

VALIDATION_FOLDERS = ("val", "validation", "test")  # the first with pictures of classes


_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp", ".heic", ".heif", ".avif",
    ".jxl", ".jp2", ".ppm", ".pgm", ".tga",
)  # fmt: skip
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
    `loose`: folders of a split with pictures that are in no class folder; `apart`: folders beside the classes that are none,
    each with what they hold instead of pictures."""

    classes: tuple[str, ...]
    train: list[Picture]
    validation: list[Picture] | None
    left_out: list[Path] = field(default_factory=list)
    loose: tuple[Path, ...] = ()
    apart: Mapping[str, str] = field(default_factory=dict)

    def splits(self) -> dict[str, list[Picture]]:
        """The splits that hold pictures."""
        return {"train": self.train} | ({"validation": self.validation} if self.validation else {})

    @property
    def notes(self) -> tuple[str, ...]:
        """The log's lines about the files and folders left out."""
        lines = [f"the pictures in {folder} itself are left out: they are in no folder of a class" for folder in self.loose]
        if self.left_out:
            count = len(self.left_out)
            number = f"{count} files that are no pictures are" if count > 1 else "1 file that is no picture is"
            lines.append(f"{number} left out: {self.left_out[0]}{', ...' * (count > 1)}")
        for what in sorted({*self.apart.values()}):
            names = [name for name, held in self.apart.items() if held == what]
            are, hold = ("are", "they hold") if len(names) > 1 else ("is", "it holds")
            lines.append(f"{_few(tuple(names))} {are} left out: {hold} {what}, and no pictures")
        return tuple(lines)


def tree(top: Path) -> Listing:
    """Every picture below `top`; a DataError names a class without any."""
    train, validation = _splits(top)
    apart = _apart(train) | (_apart(validation) if validation else {})
    classes = _classes(top, train)
    pictures, left_out = of_classes(train, classes)
    with_some = {picture.label for picture in pictures}
    for label, name in enumerate(classes, 1):
        if label not in with_some:
            raise DataError(
                f"class {name} is empty: no picture in {train / name}; put its pictures there or remove the folder"
            )
    held_out, more = of_classes(validation, classes) if validation else (None, [])
    return Listing(classes, pictures, held_out, left_out + more, _loose(top, train), apart)


def classes_of(top: Path) -> tuple[str, ...]:
    """The classes of the tree in the order of their labels."""
    return _classes(top, _splits(top)[0])


def _classes(top: Path, train: Path) -> tuple[str, ...]:
    names = _class_folders(train)
    if not names:
        raise DataError(
            f"no classes in {train}: looked for one folder for each class there, with the class's pictures in it, or for "
            f"{top / 'train'} with such folders"
        )
    for name in names:
        if not name.isprintable() or not name.strip():
            fault = "nothing but blanks" if name.isprintable() else "unprintable characters"
            raise DataError(f"the class folder {name!r} in {train} has {fault} in its name; rename it")
    same = class_names.same_number(names)
    if same:
        first, second = (names[place] for place in same)
        raise DataError(f"the class folders {first} and {second} in {train} are one number; join them, or rename one")
    return class_names.ordered(names)


def of_classes(folder: Path, classes: tuple[str, ...]) -> tuple[list[Picture], list[Path]]:
    """The pictures of one split, class by class in the order of the labels, sorted by name; and the files that are none."""
    folders = _class_folders(folder)
    unknown = sorted(set(folders) - set(classes))
    if unknown:
        raise DataError(f"class {unknown[0]} of {folder} is unknown to training, which has: {_few(classes)}")
    pictures: list[Picture] = []
    others: list[Path] = []
    for label, name in enumerate(classes, 1):
        for file in _files(folder / name) if name in folders else ():
            if _is_image(file):
                pictures.append(Picture(file, label))
            else:
                others.append(file)
    return pictures, others


def below(folder: Path) -> list[Path]:
    """Every picture in a folder and the folders below, in the order of the paths, whatever they are called; DataError for a
    folder that cannot be read."""
    return sorted(file for file in _files(folder) if _is_image(file))


def damaged(pictures: list[Picture]) -> list[BadFile]:
    """The files whose headers are no picture's, read several at once."""
    with ThreadPoolExecutor(_TESTED_TOGETHER) as pool:
        reasons = list(pool.map(image_headers.file_fault, [picture.file for picture in pictures]))
    return [BadFile(picture.file, reason) for picture, reason in zip(pictures, reasons) if reason]


def is_tree(folder: Path) -> bool:
    """Return whether one of the class folders holds a picture."""
    train, _ = _splits(folder)
    return any(_holds_pictures(train / name) for name in _folders(train))


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


def _splits(top: Path) -> tuple[Path, Path | None]:
    """The folders of training and validation. A class may be called train: then pictures lie in that folder itself.
    DataError where it may be either."""
    if not (top / "train").is_dir() or not _folders(top / "train"):
        return top, None
    splits = {"train", *VALIDATION_FOLDERS}
    beside = [name for name in _folders(top) if name not in splits and _holds_pictures(top / name)]
    if beside:
        raise DataError(
            f"{top} has pictures in {_few(tuple(beside))}, and in folders below train: train may be a class, or all of the "
            "training; move the other classes into train, or the pictures of a class called train out of its folders"
        )
    there = (top / name for name in VALIDATION_FOLDERS if (top / name).is_dir())
    filled = (place for place in there if any(_holds_pictures(place / name) for name in _folders(place)))
    return top / "train", next(filled, None)


def _loose(top: Path, train: Path) -> tuple[Path, ...]:
    """The folders of training and validation with pictures beside the folders of classes, or instead of them."""
    beside = [top / name for name in VALIDATION_FOLDERS if (top / name).is_dir()] if train != top else []
    return tuple(
        folder for folder in [train, *beside] if any(_is_image(folder / name) for name in _names(folder, folders=False))
    )


def _holds_pictures(folder: Path) -> bool:
    """Return whether a file in the folder or below counts as a picture."""
    return any(_is_image(file) for file in _files(folder))


def _class_folders(folder: Path) -> list[str]:
    """The folders of classes in a split's folder; a class of which the pictures are missing is one too."""
    apart = _apart(folder)
    return [name for name in _folders(folder) if name not in apart]


def _apart(folder: Path) -> dict[str, str]:
    """The folders in a split's folder that hold runs or an export, and no pictures: each with which of the two."""
    held = {name: _held_instead(folder / name) for name in _folders(folder)}
    return {name: what for name, what in held.items() if what}


def _held_instead(folder: Path) -> str | None:
    """Return what a folder holds instead of pictures, as of `run_files.held_in`. The folder of a class is mostly known by
    the first name in it, and files that runs write are not opened to look for pictures among them."""
    try:
        with os.scandir(folder) as entries:
            if any(_has_suffix(entry.name) for entry in entries):
                return None
    except OSError as error:
        _raise_unreadable(error)
    what = run_files.held_in(folder)
    if what is None:
        return None
    return None if any(_has_suffix(file.name) or _is_foreign_image(file) for file in _files(folder)) else what


def _folders(folder: Path) -> list[str]:
    return _names(folder, folders=True)


def _names(folder: Path, *, folders: bool) -> list[str]:
    """The folders, or the files, in a folder itself."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() == folders and not entry.name.startswith("."))
    except OSError as error:
        _raise_unreadable(error)


def _files(folder: Path) -> Iterator[Path]:
    """The files in a folder and below, through links too. A folder that is reached twice counts once, so every walk ends."""
    entered: set[str] = set()
    _is_new(folder, folder, entered)
    for here, below, names in os.walk(folder, onerror=_raise_unreadable, followlinks=True):
        seen = sorted(name for name in below if not name.startswith("."))
        below[:] = [name for name in seen if _is_new(Path(here, name), folder, entered)]
        yield from (Path(here, name) for name in sorted(names) if not name.startswith("."))


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


def _is_image(file: Path) -> bool:
    """Return whether a file counts as a picture: by its suffix, or else by its first bytes."""
    return _has_suffix(file.name) or image_headers.file_fault(file) is None


def _is_foreign_image(file: Path) -> bool:
    """Return whether a file without the suffix is a picture, and none of a run's files by its name."""
    return not run_files.is_own(file.name) and image_headers.file_fault(file) is None


def _has_suffix(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
