"""Judge the class folders of a tree as a set, because splits, masks and annotations may look like classes.

Many public data sets have their labels in a list, or in folders of annotations next to the images.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets.formats import class_names, folder_names
from cnn_harness.Datasets.formats.folder_names import split_of
from cnn_harness.Datasets.sources import image_tree
from cnn_harness.Datasets.sources.split_folders import CLASSES_HINT, listed

_LISTS = (".csv", ".tsv", ".json", ".jsonl", ".xlsx", ".parquet")
_FEW = 10  # pairs are searched in at most this number of folders, because images have few folders of masks
_LEAST_PAIRS = 3  # fewer equal names are a coincidence

Images = Mapping[str, Sequence[Path]]  # name of a class -> its files


def check(classes: Images, train: Path, top: Path, chosen: bool) -> list[str]:
    """Return warnings about class folders in `train` that may be no classes. `top` is the folder of the data set.

    Raise DataError if no folder can be a class, unless the user chose `train` with an option.
    """
    splits = [name for name in classes if split_of(name) and image_tree.has_loose(train / name)]
    several = len({*map(split_of, splits)}) > 1  # steam_train and diesel_train are classes of one kind
    only_splits = len(splits) == len(classes) and (several or len(classes) == 1)
    if not chosen and (only_splits or [*map(folder_names.is_part, classes)] == [True]):
        raise DataError(
            f"{train} has images in {listed([*classes])}, but no class folders. Put each class into its own folder, or give "
            f"cnn convert a CSV file with the path and label of each image; {CLASSES_HINT}"
        )
    found = [*class_names.alike([*classes])]
    if not chosen and several:
        found.append(f"{listed(splits)} in {train} are classes, because they have images directly; move other images away")
    if parts := _parts(classes):
        found.append(f"{listed(parts)} in {train}: a folder of images or annotations may have become a class; move it away")
    if pairs := [*_pairs(classes)]:
        more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
        one, other = pairs[0]
        found.append(
            f"every image in {one} has a namesake in {other}{more}; if one folder has masks, move it out of {train}"
        )
    if annotations := [file for files in classes.values() for file in _annotations(files, train)]:
        more = f" and {len(annotations) - 1} more" if len(annotations) > 1 else ""
        found.append(f"{annotations[0]}{more} may be masks or annotations of other images; move them away")
    if lists := [*_lists(train, top)]:
        found.append(
            f"not read: {listed(lists)}. Each class folder is a class; for the labels of a list, use cnn convert LIST.csv"
        )
    return [f"warning: {line}" for line in found]


def _parts(classes: Collection[str]) -> list[str]:
    """Return the classes named like images or annotations, unless another class has that word too (mask, no_mask)."""
    parts = [name for name in classes if folder_names.mentions_part(name) and folder_names.is_part(name)]
    shared = frozenset().union(*(folder_names.words(name) for name in classes if name not in parts))
    return [name for name in parts if not folder_names.words(name) & shared]


def _pairs(classes: Images) -> Iterator[tuple[str, str]]:
    """Yield pairs of classes whose files have the same names, as images and masks have.

    Classes whose files are only numbered have the same names, too. They are a pair if the types of the files differ, or if
    one name continues the other, as in 1.png and 1_mask.png. In crack_1.png and no_crack_1.png, it does not.
    """
    alike: dict[frozenset[str], list[str]] = defaultdict(list)
    stems = {name: {file.stem for file in files} for name, files in classes.items() if len(classes) <= _FEW}
    for name, found in stems.items():
        if len(found) >= _LEAST_PAIRS:
            alike[_differing(found)].append(name)
    for differing, names in alike.items():
        for one, other in itertools.combinations(names, 2):
            types = [{image_tree.file_type(file.name) for file in classes[name]} for name in (one, other)]
            shorter, longer = sorted((min(stems[one]), min(stems[other])), key=len)
            extended = re.match(rf"{re.escape(shorter)}[ _.-]", longer)
            if types[0].isdisjoint(types[1]) or extended or (len(names) == len(classes) and not _numbered(differing)):
                yield one, other


def _differing(stems: set[str]) -> frozenset[str]:
    """Return the names without their common beginning and end."""
    start = _shared(stems)
    rest = [stem[start:] for stem in stems]
    end = _shared([each[::-1] for each in rest])
    return frozenset(each[: len(each) - end] for each in rest)


def _shared(names: Collection[str]) -> int:
    """Return the number of characters with which all names begin."""
    first, last = min(names), max(names)
    return next((k for k, (one, other) in enumerate(zip(first, last)) if one != other), min(len(first), len(last)))


def _numbered(names: Collection[str]) -> bool:
    """Return whether the first numbers in the names have equal distances, as have numbered files and frames of a film."""
    matches = [re.search(r"\d+", name) for name in names]
    if None in matches:
        return False
    numbers = sorted({int(match[0]) for match in matches})
    return len({b - a for a, b in itertools.pairwise(numbers)}) <= 1


def _annotations(files: Sequence[Path], train: Path) -> Iterator[Path]:
    """Yield the images of a class in folders for annotations, and those named like masks of images in the same folder."""
    there = {(file.parent, file.stem) for file in files}
    for file in files:
        in_folder = file.parent.parent != train and folder_names.is_annotation(file.parent.name)
        if in_folder or (file.parent, folder_names.masked(file.stem)) in there:
            yield file


def _lists(train: Path, top: Path) -> Iterator[str]:
    """Yield the files with lists that are next to the classes, or above them in the data set's folder."""
    folders = [train, *(folder for folder in train.parents if folder.is_relative_to(top))]
    for folder in folders:
        for name in image_tree.names(folder, folders=False):
            stem, suffix = os.path.splitext(name)
            listing = suffix.lower() == ".txt" and (split_of(stem) or folder_names.mentions_part(stem))
            if suffix.lower() in _LISTS or listing:
                yield str(folder / name)
