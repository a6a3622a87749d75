"""ImageNet as TFRecord shards (train-00000-of-01024, validation-00000-of-00128; any number of shards)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from Datasets import _locate
from Datasets._spec import DataError, DataSpec, OpenRequest, ReadRequest
from Datasets._tfrecords import RecordIndex, shards

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

_FOLDER = "imagenet-data"
_TRAIN = "train-?????-of-?????"
_VALIDATION = "validation-?????-of-?????"

SPECS = {
    "imagenet": DataSpec(
        name="imagenet", num_classes=1000, image_size=None, train_images=1_281_167, validation_images=50_000
    )
}


def open_imagenet(request: OpenRequest) -> ImageNetSource:
    """Shards in the folder itself, in `train/` and `validation/` below it, or in a folder imagenet-data."""
    top = _locate.folder_given("imagenet", f"{_TRAIN}, {_VALIDATION}", request)
    for folder in _candidates(top):
        train = _shards_in(folder, "train")
        if train:
            kept = [_part(split, request.percentage) for split in (train, _shards_in(folder, "validation"))]
            return ImageNetSource(*kept, folder)
    raise DataError(
        f"data set imagenet: no {_TRAIN} in {top} or {top / 'train'}, nor in a folder named {_FOLDER} below it; give "
        f"--data-dir the folder that holds {_TRAIN} and {_VALIDATION} (TFRecord shards)"
    )


DATASETS = {"imagenet": open_imagenet}


class ImageNetSource:
    """Photographs in TFRecord shards; sizes are counted from the records."""

    def __init__(self, train: list[Path], validation: list[Path], folder: Path) -> None:
        self._folder = folder
        self._train = RecordIndex(train)
        self._validation = RecordIndex(validation) if validation else None
        if not len(self._train):
            raise DataError(f"data set imagenet: the {len(train)} training shards in {folder} hold no records")
        self.spec = replace(SPECS["imagenet"], train_images=len(self._train), validation_images=len(self._validation or ()))

    def train(self, request: ReadRequest) -> tf.data.Dataset:
        from Datasets import _photographs

        return _photographs.train_stream(self._train, request, self.spec.num_classes)

    def validation(self, request: ReadRequest) -> tf.data.Dataset:
        from Datasets import _photographs

        if not self._validation:
            raise DataError(
                f"data set imagenet: no {_VALIDATION} with records in {self._folder} or in validation/ below it; put "
                "the shards there, or train with --no-validation"
            )
        return _photographs.validation_stream(self._validation, request, self.spec.num_classes)

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """Normalisation, unless the stream has done it."""
        from Datasets import _augment

        done = request.host_normalise and not request.eight_bit
        return image if done else _augment.normalise(image, request)


def _part(files: list[Path], percentage: int) -> list[Path]:
    """The first so many of a hundred shards."""
    count = len(files) * percentage // 100
    if files and not count:
        raise DataError(
            f"data set imagenet: --dataset-percentage-to-use {percentage} of {len(files)} shards "
            f"({files[0].name} ...) leaves none; give at least {-(-100 // len(files))}"
        )
    return files[:count]


def _candidates(top: Path) -> Iterator[Path]:
    yield top
    yield from _locate.folders_called(_FOLDER, top)


def _shards_in(folder: Path, split: str) -> list[Path]:
    """The shards of a split from the folder, else from the folder of the split's name beside or below it."""
    for place in (folder, folder / split, folder.parent / split if folder.name == "train" else folder / split):
        if place.is_dir() and (found := shards(place, split)):
            return found
    return []
