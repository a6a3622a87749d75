"""Find the training and validation folders in a tree of images, by structure and by name.

A split is a folder that contains class folders and whose name contains a word for a split, such as Training, test_set or
images-val. If a folder contains only one folder of folders, the search continues in that folder.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets.formats import folder_names
from cnn_harness.Datasets.formats.class_names import normal
from cnn_harness.Datasets.formats.folder_names import TEST, TRAIN, VALIDATION, split_of
from cnn_harness.Datasets.sources import image_tree

SPLITS_HINT = "set --train-dir and --validation-dir to the folders of the splits"
CLASSES_HINT = "if these are classes, set --train-dir to the folder around them"


@dataclass(frozen=True)
class Splits:
    """The folders of the splits. Each contains one folder per class.

    `apart` is a folder that is not a training class, even if it is next to the class folders. `notes` are log lines about
    other folders.
    """

    train: Path
    validation: Path | None
    apart: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def class_folders(self) -> list[str]:
        """Return the class folders of training, including those without images."""
        return _besides(image_tree.names(self.train, folders=True), self.train, self.apart)


def find(top: Path, train: Path | None = None, validation: Path | None = None) -> Splits:
    """Return the splits of a tree. `train` and `validation` are the folders given by the user, if any.

    Raise DataError if it is unclear whether a folder is a class or a split.
    """
    if train and validation and train.resolve() == validation.resolve():
        raise DataError(
            f"--train-dir and --validation-dir are both {train}, but validation needs other images; leave out one option"
        )
    if train:
        return Splits(train, validation, validation)
    here, filled = _entered(top, validation)
    notes = (f"the classes are the folders in {here}",) * (here != top)
    inner = {name: [normal(below) for below in image_tree.filled(here / name)] for name in filled}
    by_split: dict[str | None, list[str]] = defaultdict(list)
    for name in filled:
        by_split[split_of(name) if inner[name] else None].append(name)
    if not by_split[TRAIN]:
        _check_classes(here, inner, by_split)
        return Splits(here, validation, validation, notes)
    if not validation:
        chosen = by_split[VALIDATION] or by_split[TEST]
        validation = here / _only(chosen, here, "validation") if chosen else None
        if chosen and chosen == by_split[TEST]:
            notes += (f"validation uses {validation}, because no folder is named like a validation set",)
    train = here / _only(by_split[TRAIN], here, "training")
    others = [name for name in by_split[None] if not split_of(name)]
    unused = [name for name in (*by_split[VALIDATION], *by_split[TEST], *others) if here / name != validation]
    train, validation = _same_inside(train), validation and _same_inside(validation)
    if others and not (validation and _classes_in(train) & _classes_in(validation)):
        raise DataError(
            f"{here} has images in {listed(others)} and in folders of {train.name}, so {train.name} may be a class or the "
            f"training set; {SPLITS_HINT}, or move the other classes into {train.name}"
        )
    if unused:
        are = "are" if len(unused) > 1 else "is"
        notes += (f"{listed(unused)} {are} ignored: training uses {train}, validation uses {validation}",)
    return Splits(train, validation, validation, notes)


def _classes_in(split: Path) -> set[str]:
    return {normal(name) for name in image_tree.filled(split)}


def _entered(top: Path, apart: Path | None) -> tuple[Path, list[str]]:
    """Return the first folder, from `top` down, that has several folders of folders, and the subfolders with images."""
    here = top
    while True:
        filled = _besides(image_tree.filled(here), here, apart)
        if len(filled) != 1 or image_tree.has_loose(here) or not image_tree.filled(here / filled[0]):
            return here, filled
        if split_of(filled[0]) in (VALIDATION, TEST):
            raise DataError(f"{here} has images only in {filled[0]}, so there are none for training; {SPLITS_HINT}")
        here /= filled[0]


def _same_inside(split: Path) -> Path:
    """Return a split's folder, or the inner one of nested folders such as train/train."""
    filled = image_tree.filled(split)
    if len(filled) == 1 and split_of(filled[0]) == split_of(split.name) and image_tree.filled(split / filled[0]):
        return _same_inside(split / filled[0])
    return split


def _besides(folders: list[str], here: Path, apart: Path | None) -> list[str]:
    """Return the folders in `here` except `apart`, and except the parents of `apart` if other folders remain."""
    if apart is None:
        return folders
    real = apart.resolve()
    without = [name for name in folders if not real.is_relative_to((here / name).resolve())]
    return without or [name for name in folders if (here / name).resolve() != real]


def _only(names: list[str], here: Path, purpose: str) -> str:
    if len(names) > 1:
        raise DataError(f"{here} has several folders for {purpose}: {listed(names)}; {SPLITS_HINT}")
    return names[0]


def _check_classes(here: Path, inner: dict[str, list[str]], by_split: dict[str | None, list[str]]) -> None:
    """Raise DataError if folders that would be classes contain splits or look like splits.

    `inner` maps each folder to its subfolders with images.
    """
    for name, below in inner.items():
        splits = {split_of(each) for each in below} - {None}
        if TRAIN in splits and len(splits) > 1:
            raise DataError(
                f"{here / name} has splits ({listed(below)}), but they must be above the classes, as in train/{name}; move "
                f"them, or {CLASSES_HINT}"
            )
    named = [*by_split[VALIDATION], *by_split[TEST]]
    others = [name for name in inner if name not in named]
    known = {*map(normal, others), *(below for name in others for below in inner[name])}
    for name in named:
        if len(named) > 1 or known & {*inner[name]}:
            raise DataError(
                f"{here} has class folders in {listed(named)}, but none for training; {SPLITS_HINT}; {CLASSES_HINT}"
            )
    widest = max(map(set, inner.values()), key=len, default=set())
    alike = len(inner) > 1 and len(widest) > 1 and all(len(widest & {*each}) > 1 for each in inner.values())
    alike = alike and not all(map(folder_names.is_part, widest))  # images and masks of each class
    if alike and not any(image_tree.has_loose(here / name) for name in inner):
        raise DataError(
            f"{listed([*inner])} in {here} have folders of the same names ({listed(sorted(widest))}); if these are splits, "
            f"{SPLITS_HINT}; {CLASSES_HINT}"
        )


def listed(names: list[str] | tuple[str, ...]) -> str:
    """Return the first five names, and the number of further names, as text."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
