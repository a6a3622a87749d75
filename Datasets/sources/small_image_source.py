"""A data set of small images in fixed-length binary records (CIFAR's format)."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets._spec import DataSpec, InputStage, ReadRequest, whole_stream
from cnn_harness.Datasets.formats.binary_records import Gatherer, RecordLayout, checked, records_digest

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf


class BinarySource:
    """A data set of fixed-length records, which are counted in the files.

    `missing` is the error message if there are no validation images.
    """

    def __init__(
        self, spec: DataSpec, train: Sequence[Path], validation: Sequence[Path], layout: RecordLayout, missing: str = ""
    ) -> None:
        self.missing = missing
        self._layout = layout
        self._train = [checked(file, layout, spec.num_classes) for file in train]
        self._validation = [checked(file, layout, spec.num_classes) for file in validation]
        self.spec = replace(spec, train_images=sum(map(len, self._train)), validation_images=sum(map(len, self._validation)))

    def train(self, request: ReadRequest) -> tf.data.Dataset:
        from cnn_harness.Datasets.pipeline import small_images

        gather = Gatherer(self._train, self._layout, request.dataset_cache)
        return small_images.train_stream(gather, self.spec.train_images, request)

    def validation(self, request: ReadRequest) -> tf.data.Dataset:
        from cnn_harness.Datasets.pipeline import small_images

        if not self._validation:
            raise DataError(f"data set {self.spec.name}: {self.missing}, or train with --no-validation")
        gather = Gatherer(self._validation, self._layout, request.dataset_cache)
        return small_images.validation_stream(gather, self.spec.validation_images, request)

    def training_in_order(self) -> BinarySource:
        source = copy.copy(self)
        source._validation = self._train
        source.spec = replace(self.spec, validation_images=self.spec.train_images)
        return source

    def stages(self, request: ReadRequest, training: bool) -> list[InputStage]:
        return whole_stream(self, request, training)

    def digest(self) -> str:
        """Return a digest of all records, to compare the data with those of another host or of a resumed run.

        The files have no checksums, so only this digest detects a change.
        """
        return hashlib.blake2b("".join(self._digests).encode(), digest_size=16).hexdigest()

    def validation_digest(self) -> str:
        return self._digests[1]

    @cached_property
    def _digests(self) -> tuple[str, str]:
        """Return the digests of training and validation records. Resuming needs them several times."""
        return records_digest(self._train), records_digest(self._validation)

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """Return float32 [n, side, side, 3]. Standardise uint8 images; without `moments`, they were not cropped.

        Float images were standardised on the host, before padding and cropping.
        """
        from cnn_harness.Datasets.pipeline import normalisation

        return normalisation.standardised_on_device(image, request, moments)
