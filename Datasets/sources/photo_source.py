"""A data set of photos, from any kind of record."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from base.errors import DataError
from Datasets._spec import DataSpec, InputStage, OpenRequest, ReadRequest, Records, digest, whole_stream
from Datasets.formats import conversion_info
from Datasets.formats.bad_records import Tolerance
from Datasets.formats.tfrecord import RecordIndex

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf


def open_shards(
    name: str, train: Sequence[Path], validation: Sequence[Path], folder: Path, request: OpenRequest
) -> tuple[RecordIndex, RecordIndex | None, Tolerance, tuple[str, ...]]:
    """Return the indexes of both splits, the limit on bad records, and warnings about shards that have lost records.

    The second index is None if there are no validation shards. Raise DataError if there are no training records.
    """
    tolerance = Tolerance(request.skip_bad)
    index = RecordIndex(train, tolerance, request.environ)
    if not len(index):
        shards = f"{len(train)} training shard{'s' * (len(train) > 1)}"
        raise DataError(f"data set {name}: no records in the {shards} in {folder}; convert or copy the data again")
    # Needed even with --no-validation: a run records size and digest of both splits, and compares them with other
    # instances, when it is resumed, and in later validations.
    held_out = RecordIndex(validation, tolerance, request.environ) if validation else None
    counts = index.counts() | (held_out.counts() if held_out else {})
    return index, held_out, tolerance, conversion_info.check(train[0].parent, counts, bool(request.skip_bad))


class PhotoSource:
    """A data set of photos. `missing`: the error if there are no validation images. `tolerance`: the limit on bad
    records, for both splits together."""

    def __init__(
        self, spec: DataSpec, train: Records, validation: Records | None, missing: str, tolerance: Tolerance
    ) -> None:
        self.spec = spec
        self._train = train
        self._validation = validation
        self.missing = missing
        self.tolerance = tolerance

    def train(self, request: ReadRequest) -> tf.data.Dataset:
        from Datasets.pipeline import photo_stream

        return photo_stream.train_stream(self._train, request, self.spec.labels, self.tolerance)

    def validation(self, request: ReadRequest) -> tf.data.Dataset:
        from Datasets.pipeline import photo_stream

        if not self._validation:
            raise DataError(f"data set {self.spec.name}: {self.missing}, or train with --no-validation")
        return photo_stream.validation_stream(self._validation, request, self.spec.labels, self.tolerance)

    def training_in_order(self) -> PhotoSource:
        source = copy.copy(self)
        source._validation = self._train
        source.spec = replace(self.spec, validation_images=self.spec.train_images)
        return source

    def stages(self, request: ReadRequest, training: bool) -> list[InputStage]:
        """Return the stages of training: read, decode, augment, batch; or validation as a single stage."""
        from Datasets.pipeline import photo_stream

        if not training:
            return whole_stream(self, request, training)
        return photo_stream.stages(self._train, request, self.spec.labels, self.tolerance)

    def validation_name(self, record: int) -> str:
        """Return the image file of a validation record, or its shard and number."""
        return self._validation.image_file(record)

    def digest(self) -> str:
        """Return a digest of some records, to compare the data with another host's."""
        return digest((len(split), split.payload) for split in (self._train, self._validation) if split is not None)

    def validation_digest(self) -> str | None:
        """Return a digest of some validation records; None if there are none."""
        return digest([(len(self._validation), self._validation.payload)]) if self._validation else None

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """Normalise, unless the stream has done it."""
        from Datasets.pipeline import normalisation

        return normalisation.normalised_on_device(image, request)
