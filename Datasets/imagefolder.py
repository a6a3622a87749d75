"""Your own photos: a tree with one folder per class, or shards written by Datasets.convert."""

from __future__ import annotations

import os
from pathlib import Path

from cnn_harness.base.errors import DataError, parts
from cnn_harness.Datasets._spec import DataSpec, OpenRequest
from cnn_harness.Datasets.formats import class_names
from cnn_harness.Datasets.formats.bad_records import Tolerance
from cnn_harness.Datasets.formats.tfrecord import RecordIndex, part, shards
from cnn_harness.Datasets.sources import image_folder, locate
from cnn_harness.Datasets.sources.photo_source import PhotoSource, open_shards

_LOOKED_AT = 20_000  # number of image headers checked before a run; this takes a few seconds
_WANTED = f"train/<class>/<images>, or TFRecord shards train-?????-of-????? and {class_names.FILE}"

SPECS = {
    "imagefolder": DataSpec(
        name="imagefolder",
        num_classes=1000,
        image_size=None,
        train_images=1_281_167,
        validation_images=50_000,
        precision="32.32",
    )
}


def open_imagefolder(request: OpenRequest) -> PhotoSource:
    """Open the shards in the data folder, or the image files in class folders if there are no shards."""
    top, *given = _places(request)
    train = part(shards(top, "train"), request.percentage)
    if train and any(given):
        raise DataError(
            f"data set imagefolder: --train-dir and --validation-dir need folders of images, but {top} has shards; "
            "leave them out, or set --data-dir to a folder of images"
        )
    if not train:
        if request.percentage < 100:
            raise DataError(
                f"data set imagefolder: --dataset-percentage-to-use {request.percentage} needs shards, but {top} has none; "
                "leave it out, or convert the images first: cnn convert FOLDER SHARDS"
            )
        return _open_tree(top, *given, request)
    classes = class_names.read(top)
    if not classes:
        raise DataError(
            f"data set imagefolder: no {class_names.FILE} in {top}; add one that names the classes of the shards"
        )
    class_names.agree(classes, request.num_classes, str(top / class_names.FILE))
    if request.validation_split:
        raise DataError(
            f"data set imagefolder: --validation-split {request.validation_split:g} needs folders of images, but {top} "
            "has shards; leave it out, or convert the original folders again: cnn convert FOLDER SHARDS --validation 0.1"
        )
    validation = part(shards(top, "validation"), request.percentage, least=1)
    first = class_names.first_label(top)
    labels = range(first, first + len(classes))
    index, held_out, tolerance, notes = open_shards("imagefolder", train, validation, top, request, classes, labels)
    return _source(
        classes, index, held_out,
        f"no validation-?????-of-????? with records in {top}; convert the original folders again: cnn convert FOLDER SHARDS "
        "--validation 0.1",
        tolerance,
        notes, first,
    )  # fmt: skip


def names_of_classes(request: OpenRequest) -> tuple[str, ...]:
    """Return the class names, without counting images."""
    top, *given = _places(request)
    return class_names.read(top) or image_folder.classes_of(top, *given)


DATASETS = {"imagefolder": open_imagefolder}
CLASS_NAMES = {"imagefolder": names_of_classes}


def _places(request: OpenRequest) -> tuple[Path, Path | None, Path | None]:
    """Return the data folder, and the folders given by --train-dir and --validation-dir."""
    data_dir = request.data_dir or request.environ.get("DATA_DIR")
    train, validation = (
        locate.split_folder(given, data_dir, f"data set imagefolder: {option}") if given else None
        for option, given in (("--train-dir", request.train_dir), ("--validation-dir", request.validation_dir))
    )
    top = train if train and not request.data_dir else locate.folder_given("imagefolder", _WANTED, request)
    return top, train, validation


def _open_tree(top: Path, train: Path | None, validation: Path | None, request: OpenRequest) -> PhotoSource:
    try:
        tree = _split(image_folder.tree(top, train, validation), top, request.validation_split)
    except DataError as error:
        raise DataError(*parts(error, "data set imagefolder: ")) from None
    class_names.agree(tree.classes, request.num_classes, f"the tree {train or top}")
    if not request.skip_bad:
        _check_images([*tree.train, *(tree.validation or ())][:_LOOKED_AT])
    return _source(
        tree.classes, image_folder.FileIndex(tree.train, tree.classes),
        None if tree.validation is None else image_folder.FileIndex(tree.validation, tree.classes),
        f"no validation images in class folders of {top}; move some to val/ and the rest to train/, or give "
        "--validation-dir or --validation-split 0.2",
        Tolerance(request.skip_bad), tree.notes, class_images=tree.class_images(),
    )  # fmt: skip


def _split(tree: image_folder.Listing, top: Path, fraction: float) -> image_folder.Listing:
    """Move a fraction of the training images to validation. Datasets.convert would move the same images."""
    if not fraction:
        return tree
    if tree.validation:
        raise DataError(f"{top} already has validation images; leave out --validation-split")
    return image_folder.split_off(tree, fraction, lambda file: os.path.relpath(file, top), 0, "--validation-split")


def _check_images(images: list[image_folder.ImageFile]) -> None:
    """Raise DataError if a file with the name of an image is not a readable image."""
    bad = image_folder.damaged(images)
    if bad:
        more = f" (and {len(bad) - 1} more file{'s' * (len(bad) > 2)})" if len(bad) > 1 else ""
        raise DataError(
            f"data set imagefolder: {bad[0].file} {bad[0].reason}{more}; remove or replace it, or give --skip-bad-records "
            f"{len(bad)} or more"
        )


def _source(
    classes: tuple[str, ...],
    train: RecordIndex | image_folder.FileIndex,
    validation: RecordIndex | image_folder.FileIndex | None,
    missing: str,
    tolerance: Tolerance,
    notes: tuple[str, ...] = (),
    first_label: int = 1,
    class_images: tuple[int, ...] = (),
) -> PhotoSource:
    spec = DataSpec(
        name="imagefolder", num_classes=len(classes), image_size=None, train_images=len(train),
        validation_images=len(validation or ()), class_names=classes, notes=notes,
        first_label=first_label, class_images=class_images,
    )  # fmt: skip
    return PhotoSource(spec, train, validation, missing, tolerance)
