"""A data set of photos, stored as TFRecord shards or as image files."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets._spec import DataSpec, InputStage, OpenRequest, Part, ReadRequest, Records, digest, whole_stream
from cnn_harness.Datasets.formats import conversion_info
from cnn_harness.Datasets.formats.bad_records import Tolerance
from cnn_harness.Datasets.formats.tfrecord import RecordIndex
from cnn_harness.Datasets.sources import record_sample

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf


def open_shards(
    name: str,
    train: Sequence[Path],
    validation: Sequence[Path],
    folder: Path,
    request: OpenRequest,
    classes: Sequence[str],
    labels: range,
) -> tuple[RecordIndex, RecordIndex | None, Tolerance, tuple[str, ...]]:
    """Return the training index, the validation index, the limit on bad records, and warnings about the records.

    `classes` are the names in labels.txt, if any. The validation index is None if there are no validation shards. Raise
    DataError if there are no training records, or if a sampled record cannot be used.
    """
    tolerance = Tolerance(request.skip_bad)
    index = RecordIndex(train, tolerance, request.environ)
    if not len(index):
        shards = f"{len(train)} training shard{'s' * (len(train) > 1)}"
        raise DataError(f"data set {name}: no records in the {shards} in {folder}; convert or copy the data again")
    # The validation index is needed even with --no-validation. A run records the size and digest of both splits, and
    # compares them between instances, when the run is resumed, and in later validations.
    held_out = RecordIndex(validation, tolerance, request.environ) if validation else None
    counts = index.counts() | (held_out.counts() if held_out else {})
    lost = conversion_info.check(train[0].parent, counts, bool(request.skip_bad))
    splits = {"train": index} | ({"validation": held_out} if held_out else {})
    return index, held_out, tolerance, (*lost, *record_sample.check(splits, classes, labels, bool(request.skip_bad)))


class PhotoSource:
    """A data set of photos.

    `missing` is the error message if there are no validation images. `tolerance` limits the number of bad records in both
    splits together.
    """

    def __init__(
        self, spec: DataSpec, train: Records, validation: Records | None, missing: str, tolerance: Tolerance
    ) -> None:
        self.spec = spec
        self._train = train
        self._validation = validation
        self.missing = missing
        self.tolerance = tolerance

    def train(self, request: ReadRequest) -> tf.data.Dataset:
        from cnn_harness.Datasets.pipeline import photo_stream

        return photo_stream.train_stream(self._train, request, self.spec.labels, self.tolerance)

    def validation(self, request: ReadRequest) -> tf.data.Dataset:
        from cnn_harness.Datasets.pipeline import photo_stream

        if not self._validation:
            raise DataError(f"data set {self.spec.name}: {self.missing}, or train with --no-validation")
        return photo_stream.validation_stream(self._validation, request, self.spec.labels, self.tolerance)

    def training_in_order(self) -> PhotoSource:
        source = copy.copy(self)
        source._validation = self._train
        source.spec = replace(self.spec, validation_images=self.spec.train_images)
        return source

    def with_held_out(self, records: Sequence[int]) -> PhotoSource:
        source, held_out = copy.copy(self), set(records)
        source._train = Part(self._train, [record for record in range(len(self._train)) if record not in held_out])
        source._validation = Part(self._train, records)
        source.spec = replace(self.spec, train_images=len(source._train), validation_images=len(records))
        return source

    def stages(self, request: ReadRequest, training: bool) -> list[InputStage]:
        """Return the training stages read, decode, augment and batch, or validation as a single stage."""
        from cnn_harness.Datasets.pipeline import photo_stream

        if not training:
            return whole_stream(self, request, training)
        return photo_stream.stages(self._train, request, self.spec.labels, self.tolerance)

    def validation_name(self, record: int) -> str:
        """Return the image file of a validation record, or the record's shard and number if the file is unknown."""
        return self._validation.image_file(record)

    def digest(self) -> str:
        """Return a digest of some records, to compare the data with the data on another host."""
        return digest((len(split), split.payload) for split in (self._train, self._validation) if split is not None)

    def validation_digest(self) -> str | None:
        """Return a digest of some validation records; None if there are no validation records."""
        return digest([(len(self._validation), self._validation.payload)]) if self._validation else None

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """Normalise the images, unless the stream has already done so."""
        from cnn_harness.Datasets.pipeline import normalisation

        return normalisation.normalised_on_device(image, request)
