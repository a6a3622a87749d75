"""Image files in a tree with one folder per class: listed, labelled and served as records.

The tree is SOURCE/<class>/*, or SOURCE contains folders of splits that contain class folders (`split_folders`). All files
below a class folder belong to the class, also files behind links. Folders without images are not classes.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from cnn_harness.base import bounds
from cnn_harness.base.errors import DataError
from cnn_harness.base.fields import short
from cnn_harness.base.storage import input_files
from cnn_harness.Datasets.formats import class_names, folder_names, image_headers
from cnn_harness.Datasets.formats.image_headers import MAX_BYTES
from cnn_harness.Datasets.sources import class_set, image_tree, split_folders
from cnn_harness.Datasets.sources.split_folders import Splits, listed

_ANNOTATIONS = "_annotations.txt"  # end of the name of a list of validation images, as in Tiny ImageNet.
_MAX_LIST = 1 << 26  # bytes of such a list; this is enough for a million images.
_TESTED_TOGETHER = 16  # number of files opened at once, because most of the time is spent waiting for the disk


class ImageFile(NamedTuple):
    """A file and its label, which counts from 1."""

    file: Path
    label: int


class BadFile(NamedTuple):
    """A file that is not a usable image, and the reason."""

    file: Path
    reason: str


@dataclass(frozen=True)
class Listing:
    """Images by split; `validation` is None if the source has no validation split. `notes` are lines for the log."""

    classes: tuple[str, ...]
    train: list[ImageFile]
    validation: list[ImageFile] | None
    notes: tuple[str, ...] = ()

    def splits(self) -> dict[str, list[ImageFile]]:
        """Return the splits that have images."""
        return {"train": self.train} | ({"validation": self.validation} if self.validation else {})

    def class_images(self) -> tuple[int, ...]:
        """Return the number of training images of each class."""
        counts = Counter(image.label for image in self.train)
        return tuple(counts[label] for label in range(1, len(self.classes) + 1))


def tree(top: Path, train: Path | None = None, validation: Path | None = None) -> Listing:
    """Return all images below `top`, or in the given folders of the splits.

    Raise DataError if the tree has no classes, or if folders may be either classes or splits.
    """
    splits = split_folders.find(top, train, validation)
    found = _class_folders(splits.train, splits.class_folders)
    per_class = {name: _class_files(folders) for name, folders in found.items()}
    raw = [file for _, others in per_class.values() for file in others if image_tree.is_raw(file)]
    classes = _ordered([name for name, (images, _) in per_class.items() if images], splits.train, raw)
    doubts = class_set.check({name: per_class[name][0] for name in classes}, splits.train, top, bool(train))
    images = [ImageFile(file, label) for label, name in enumerate(classes, 1) for file in per_class[name][0]]
    others = [file for name in classes for file in per_class[name][1]]
    held_out, more = images_by_class(splits.validation, classes) if splits.validation else (None, [])
    notes = [f"images directly in {folder} are ignored: they are not in a class folder" for folder in _loose(top, splits)]
    if empty := [name for name in sorted(per_class) if name not in classes]:
        notes.append(f"warning: folders without images are ignored: {listed(empty)}")
    others = [*others, *more]
    raw += filter(image_tree.is_raw, more)
    if raw:
        notes.append(f"warning: raw camera files are ignored: {len(raw)}, for example {raw[0]}; save them as JPEG or PNG")
    if others := [file for file in others if not image_tree.is_raw(file)]:
        notes.append(f"files that are not images are ignored: {len(others)}, for example {others[0]}")
    return Listing(classes, images, held_out, (*splits.notes, *doubts, *notes))


def classes_of(top: Path, train: Path | None = None, validation: Path | None = None) -> tuple[str, ...]:
    """Return the classes of a tree, in the order of their labels."""
    splits = split_folders.find(top, train, validation)
    found = _class_folders(splits.train, splits.class_folders).items()
    return _ordered([name for name, folders in found if any(map(image_tree.holds_images, folders))], splits.train)


def _class_folders(split: Path, folders: list[str]) -> dict[str, list[Path]]:
    """Return the folders of each class. A class has several folders if its name occurs in several Unicode forms."""
    found: dict[str, list[Path]] = {}
    for name in folders:
        if not name.isprintable() or not name.strip():
            fault = "only spaces" if name.isprintable() else "unprintable characters"
            raise DataError(f"the class folder {name!r} in {split} has {fault} in its name; rename it")
        found.setdefault(class_names.normal(name), []).append(split / name)
    return found


def _ordered(names: list[str], train: Path, raw: Sequence[Path] = ()) -> tuple[str, ...]:
    if raw and not names:
        raise DataError(f"{train} has only raw camera files, for example {raw[0]}; save them as JPEG or PNG")
    if not names:
        raise DataError(
            f"no classes in {train}; put the images into one folder per class there, or in train/ and val/ there; or "
            f"{split_folders.SPLITS_HINT}"
        )
    return class_names.ordered(names)


def images_by_class(folder: Path, classes: tuple[str, ...]) -> tuple[list[ImageFile], list[Path]]:
    """Return the images of a split, sorted by label and name, and the files that are not images."""
    folders = _class_folders(folder, image_tree.names(folder, folders=True))
    lists = [name for name in image_tree.names(folder, folders=False) if name.endswith(_ANNOTATIONS)]
    if lists and folders.keys().isdisjoint(classes):
        return _annotated_images(folder, folder / lists[0], classes)
    found = {name: _class_files(there) for name, there in folders.items()}
    unknown = sorted(name for name, (images, _) in found.items() if images and name not in classes)
    if unknown:
        remedy = "; the validation images need such folders, too" if folder_names.is_part(unknown[0]) else ""
        known = f"the training classes: {listed(classes)}"
        raise DataError(f"class {unknown[0]} in {folder} is not a training class; {known}{remedy}")
    images = [ImageFile(file, label) for label, name in enumerate(classes, 1) if name in found for file in found[name][0]]
    return images, [file for name in sorted(found) for file in found[name][1]]


def _annotated_images(folder: Path, file: Path, classes: tuple[str, ...]) -> tuple[list[ImageFile], list[Path]]:
    """Return the images of a split without class folders, whose list has the name and the class of an image per line."""
    labels = {name: label for label, name in enumerate(classes, 1)}
    label_of: dict[str, int] = {}
    try:
        lines = input_files.text(file, _MAX_LIST).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {bounds.reason(error)}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, tab, rest = line.partition("\t")
        wanted = class_names.normal(rest.partition("\t")[0])
        if not tab:
            raise DataError(f"{file}, line {number}: no tab between the name of an image and its class")
        if wanted not in labels:
            raise DataError(f"{file}, line {number}: class {short(wanted)} is not a training class ({listed(classes)})")
        label_of[name] = labels[wanted]
    images = image_tree.images_below(folder)
    if missing := next((image for image in images if image.name not in label_of), None):
        raise DataError(f"{file} does not list {missing}; add its class, or remove the image")
    return sorted((ImageFile(image, label_of[image.name]) for image in images), key=lambda image: image.label), []


def _class_files(folders: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return the images of a class, and the files that are not images."""
    images: list[Path] = []
    others: list[Path] = []
    for folder in folders:
        for file in image_tree.files(folder):
            (images if image_tree.is_image(file) else others).append(file)
    return images, others


def damaged(images: list[ImageFile]) -> list[BadFile]:
    """Return the files that are not readable images, by their headers."""
    with ThreadPoolExecutor(_TESTED_TOGETHER) as pool:
        reasons = list(pool.map(image_headers.file_fault, [image.file for image in images]))
    return [BadFile(image.file, reason) for image, reason in zip(images, reasons) if reason]


def is_tree(folder: Path) -> bool:
    """Return whether a folder inside `folder` has an image."""
    return any(image_tree.holds_images(folder / name) for name in image_tree.names(folder, folders=True))


def split_off(listing: Listing, fraction: float, place: Callable[[Path], str], seed: int, option: str) -> Listing:
    """Return the listing with a fraction of every class moved to validation. At least one image stays in training.

    The choice depends only on the seed and on the file names. Raise DataError, which names the option `option`, if no
    image can be moved.
    """
    by_class: dict[int, list[ImageFile]] = defaultdict(list)
    for image in listing.train:
        by_class[image.label].append(image)
    chosen: set[ImageFile] = set()
    for images in by_class.values():
        count = min(round(fraction * len(images)), len(images) - 1)
        chosen |= set(shuffled(images, place, f"{seed} validation")[:count])
    if not chosen:
        largest = max(map(len, by_class.values()))
        remedy = f"give {1 / largest:.2g} or more" if largest > 1 else "add images, because one stays in training"
        raise DataError(f"{option} {fraction:g} takes no image of any class: the largest has {largest}; {remedy}")
    train = [image for image in listing.train if image not in chosen]
    return replace(listing, train=train, validation=[image for image in listing.train if image in chosen])


def shuffled(images: list[ImageFile], place: Callable[[Path], str], key: str) -> list[ImageFile]:
    """Return the images in a random order, which depends only on `key` and on the names that `place` returns."""

    def drawn(image: ImageFile) -> tuple[bytes, str]:
        name = place(image.file)
        return hashlib.blake2b(f"{key}\0{name}".encode("utf-8", "surrogateescape"), digest_size=16).digest(), name

    return sorted(images, key=drawn)


class FileIndex:
    """Image files as numbered records, each a serialised tf.train.Example. The class has the interface of RecordIndex."""

    def __init__(self, images: list[ImageFile], classes: tuple[str, ...]) -> None:
        self._images = images
        self._classes = classes

    def __len__(self) -> int:
        return len(self._images)

    def name(self, record: int) -> str:
        return str(self._images[record].file)

    def image_file(self, record: int) -> str:
        return self.name(record)

    def payload(self, record: int) -> bytes:
        """Return a record with the file's bytes and label."""
        from cnn_harness.Datasets.formats import tf_example

        file, label = self._images[record]
        try:
            return tf_example.serialised(input_files.content(file, MAX_BYTES), label, self._classes[label - 1])
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from error


def _loose(top: Path, splits: Splits) -> list[Path]:
    """Return the folders that have images outside class folders: splits, and folders next to them named like splits."""
    places, beside = [splits.train, *[splits.validation] * bool(splits.validation)], splits.train.parent
    if splits.train != top:
        places += [beside / name for name in image_tree.names(beside, folders=True) if folder_names.split_of(name)]
    return [place for place in dict.fromkeys(places) if image_tree.has_loose(place)]
