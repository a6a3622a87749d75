"""A data set of photographs, from any kind of record."""

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
    """Return the indexes of both splits of the data set `name`, None without validation shards, their limit on bad records,
    and warnings about shards that have lost records. DataError without a single training record."""
    tolerance = Tolerance(request.skip_bad)
    index = RecordIndex(train, tolerance, request.environ)
    if not len(index):
        raise DataError(f"data set {name}: the {len(train)} training shards in {folder} hold no records")
    # also with --no-validation: a run records the number of pictures of both splits and a digest of them, which other
    # instances, a resumed run and later validations are compared with
    held_out = RecordIndex(validation, tolerance, request.environ) if validation else None
    counts = index.counts() | (held_out.counts() if held_out else {})
    return index, held_out, tolerance, conversion_info.check(train[0].parent, counts, bool(request.skip_bad))


class PhotographSource:
    """Records of photographs. `missing`: the error of a validation without pictures. `tolerance`: the limit on bad
    records, of both splits together."""

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

    def training_in_order(self) -> PhotographSource:
        source = copy.copy(self)
        source._validation = self._train
        source.spec = replace(self.spec, validation_images=self.spec.train_images)
        return source

    def stages(self, request: ReadRequest, training: bool) -> list[InputStage]:
        """Reading, decoding, augmenting and batching of training; validation is one stage."""
        from Datasets.pipeline import photo_stream

        if not training:
            return whole_stream(self, request, training)
        return photo_stream.stages(self._train, request, self.spec.labels, self.tolerance)

    def validation_name(self, record: int) -> str:
        """The file of a validation record: of the picture, or its shard with the record's number in it."""
        return self._validation.picture(record)

    def digest(self) -> str:
        """The digest of some records, to compare with another host's."""
        return digest((len(split), split.payload) for split in (self._train, self._validation) if split is not None)

    def validation_digest(self) -> str | None:
        """The digest of some validation records; None without any."""
        return digest([(len(self._validation), self._validation.payload)]) if self._validation else None

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """Normalisation, unless the stream has done it."""
        from Datasets.pipeline import normalisation

        return normalisation.normalised_on_device(image, request)
