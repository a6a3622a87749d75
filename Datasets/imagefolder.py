"""Pictures of one's own: a tree with one folder for each class, or the shards that Datasets.convert writes."""

from __future__ import annotations

import os
from pathlib import Path

from base.errors import DataError, parts
from Datasets._spec import DataSpec, OpenRequest
from Datasets.formats import class_names
from Datasets.formats.bad_records import Tolerance
from Datasets.formats.tfrecord import RecordIndex, part, shards
from Datasets.sources import image_folder, locate
from Datasets.sources.photo_source import PhotographSource, open_shards

_LOOKED_AT = 20_000  # pictures whose first bytes are read before a run: a few seconds
_WANTED = f"train/<class>/<pictures>, or TFRecord shards train-?????-of-????? and {class_names.FILE}"

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


def open_imagefolder(request: OpenRequest) -> PhotographSource:
    """Shards in the folder itself if there are any, else the pictures of the tree."""
    top, *given = _places(request)
    train = part(shards(top, "train"), request.percentage)
    if train and any(given):
        raise DataError(
            f"data set imagefolder: --train-dir and --validation-dir are for folders of pictures, and {top} has shards; "
            "leave them out, or give --data-dir the folder of pictures"
        )
    if not train:
        if request.percentage < 100:
            raise DataError(
                f"data set imagefolder: --dataset-percentage-to-use {request.percentage} takes a part of the shards, and "
                f"{top} has none; leave it out, or convert the pictures first"
            )
        return _open_tree(top, *given, request)
    classes = class_names.read(top)
    if not classes:
        raise DataError(f"data set imagefolder: no {class_names.FILE} in {top}, which must name the classes of its shards")
    class_names.agree(classes, request.num_classes, str(top / class_names.FILE))
    if request.validation_split:
        raise DataError(
            f"data set imagefolder: --validation-split {request.validation_split:g} is for folders of pictures, and {top} "
            "has shards; leave it out, and convert with --validation"
        )
    validation = part(shards(top, "validation"), request.percentage, least=1)
    index, held_out, tolerance, notes = open_shards("imagefolder", train, validation, top, request)
    return _source(
        classes, index, held_out,
        f"no validation-?????-of-????? with records in {top}; convert with --validation FRACTION", tolerance,
        notes, class_names.first_label(top),
    )  # fmt: skip


def names_of_classes(request: OpenRequest) -> tuple[str, ...]:
    """The names of the classes, without counting a picture."""
    top, *given = _places(request)
    return class_names.read(top) or image_folder.classes_of(top, *given)


DATASETS = {"imagefolder": open_imagefolder}
CLASS_NAMES = {"imagefolder": names_of_classes}


def _places(request: OpenRequest) -> tuple[Path, Path | None, Path | None]:
    """The folder of the data, and those of its splits that are given."""
    data_dir = request.data_dir or request.environ.get("DATA_DIR")
    train, validation = (
        locate.split_folder(given, data_dir, f"data set imagefolder: {option}") if given else None
        for option, given in (("--train-dir", request.train_dir), ("--validation-dir", request.validation_dir))
    )
    top = train if train and not request.data_dir else locate.folder_given("imagefolder", _WANTED, request)
    return top, train, validation


def _open_tree(top: Path, train: Path | None, validation: Path | None, request: OpenRequest) -> PhotographSource:
    try:
        tree = _split(image_folder.tree(top, train, validation), top, request.validation_split)
    except DataError as error:
        raise DataError(*parts(error, "data set imagefolder: ")) from None
    class_names.agree(tree.classes, request.num_classes, f"the tree {train or top}")
    if not request.skip_bad:
        _check_pictures([*tree.train, *(tree.validation or ())][:_LOOKED_AT])
    return _source(
        tree.classes, image_folder.FileIndex(tree.train, tree.classes),
        None if tree.validation is None else image_folder.FileIndex(tree.validation, tree.classes),
        f"no pictures for validation in class folders of {top}; put them in folders of val/ and the others in train/, give "
        "--validation-dir, or --validation-split, as in 0.2",
        Tolerance(request.skip_bad), tree.notes, class_images=tree.class_images(),
    )  # fmt: skip


def _split(tree: image_folder.Listing, top: Path, fraction: float) -> image_folder.Listing:
    """The tree, with a part of its training pictures for validation if so asked: those that Datasets.convert takes, too."""
    if not fraction:
        return tree
    if tree.validation:
        raise DataError(f"{top} has pictures for validation of its own; leave --validation-split out")
    return image_folder.split_off(tree, fraction, lambda file: os.path.relpath(file, top), 0, "--validation-split")


def _check_pictures(pictures: list[image_folder.Picture]) -> None:
    """DataError for a file that is named like a picture and cannot be taken for one."""
    bad = image_folder.damaged(pictures)
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
) -> PhotographSource:
    spec = DataSpec(
        name="imagefolder", num_classes=len(classes), image_size=None, train_images=len(train),
        validation_images=len(validation or ()), class_names=classes, notes=notes,
        first_label=first_label, class_images=class_images,
    )  # fmt: skip
    return PhotographSource(spec, train, validation, missing, tolerance)
