"""ImageNet as any number of TFRecord shards, such as train-00000-of-01024 and validation-00000-of-00128."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets._spec import DataSpec, OpenRequest
from cnn_harness.Datasets.formats import class_names
from cnn_harness.Datasets.formats.tfrecord import part, shards
from cnn_harness.Datasets.sources import image_tree, locate
from cnn_harness.Datasets.sources.photo_source import PhotoSource, open_shards

_FOLDER = "imagenet-data"
_TRAIN = "train-?????-of-?????"
_VALIDATION = "validation-?????-of-?????"

SPECS = {
    "imagenet": DataSpec(
        name="imagenet", num_classes=1000, image_size=None, train_images=1_281_167, validation_images=50_000
    )
}


def open_imagenet(request: OpenRequest) -> PhotoSource:
    """Open the shards in the folder, in `train/` and `validation/` below it, or in a folder imagenet-data."""
    top = locate.folder_given("imagenet", f"{_TRAIN}, {_VALIDATION}", request)
    for folder in _candidates(top):
        train = _shards_in(folder, "train")
        if train:
            splits = part(train, request.percentage), part(_shards_in(folder, "validation"), request.percentage, least=1)
            return _source(*splits, folder, request)
    if image_tree.named_below(top):
        raise DataError(
            f"data set imagenet: {top} has folders of images, not {_TRAIN} (TFRecord shards); give --dataset imagefolder to "
            f"read them as they are, or write shards with python -m Datasets.convert {top} TARGET"
        )
    raise DataError(
        f"data set imagenet: no {_TRAIN} in {top}, {top / 'train'} or a folder named {_FOLDER} below; set --data-dir to "
        f"the folder with {_TRAIN} and {_VALIDATION} (TFRecord shards)"
    )


def names_of_classes(request: OpenRequest) -> tuple[str, ...]:
    """Return the class names in labels.txt, next to the shards or in the folder above; () if there is no such file."""
    top = locate.folder_given("imagenet", f"{_TRAIN}, {_VALIDATION}", request)
    training_folders = ((train, folder) for folder in _candidates(top) if (train := _shards_in(folder, "train")))
    train, folder = next(training_folders, ([], top))
    return class_names.beside(train, folder)[0]


DATASETS = {"imagenet": open_imagenet}
CLASS_NAMES = {"imagenet": names_of_classes}


def _source(train: list[Path], validation: list[Path], folder: Path, request: OpenRequest) -> PhotoSource:
    """Open the shards, count the records, and read the class names from labels.txt if the file exists."""
    classes, file = class_names.beside(train, folder)
    if classes:
        class_names.agree(classes, request.num_classes, str(file))
    spec = SPECS["imagenet"]
    spec = replace(
        spec, num_classes=len(classes) or request.num_classes or spec.num_classes, class_names=classes,
        first_label=class_names.first_label(file.parent),
    )  # fmt: skip
    index, held_out, tolerance, notes = open_shards("imagenet", train, validation, folder, request, classes, spec.labels)
    counted = replace(
        spec,
        train_images=len(index), validation_images=len(held_out or ()),
        notes=notes,
    )  # fmt: skip
    missing = f"no {_VALIDATION} with records in {folder} or {folder / 'validation'}; put the shards there"
    return PhotoSource(counted, index, held_out, missing, tolerance)


def _candidates(top: Path) -> Iterator[Path]:
    yield top
    yield from locate.folders_called(_FOLDER, top)


def _shards_in(folder: Path, split: str) -> list[Path]:
    """Return the shards of a split, in the folder or in a folder named after the split, below it or next to `train`."""
    tops = [folder, folder.parent] if folder.name == "train" else [folder]
    names = {"train": ("train",), "validation": ("validation", "val")}[split]
    for place in (folder, *(top / name for top in tops for name in names)):
        if place.is_dir() and (files := shards(place, split)):
            return files
    return []
