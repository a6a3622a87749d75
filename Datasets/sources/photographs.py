"""A data set of photographs, from any kind of record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from base.errors import DataError
from Datasets._spec import DataSpec, ReadRequest, Records, Stage, digest, whole_stream
from Datasets.formats.bad_records import Tolerance

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf


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
        self._tolerance = tolerance

    def train(self, request: ReadRequest) -> tf.data.Dataset:
        from Datasets.pipeline import photographs

        return photographs.train_stream(self._train, request, self.spec.num_classes, self._tolerance)

    def validation(self, request: ReadRequest) -> tf.data.Dataset:
        from Datasets.pipeline import photographs

        if not self._validation:
            raise DataError(f"data set {self.spec.name}: {self.missing}, or train with --no-validation")
        return photographs.validation_stream(self._validation, request, self.spec.num_classes, self._tolerance)

    def stages(self, request: ReadRequest, training: bool) -> list[Stage]:
        """Reading, decoding, augmenting and batching of training; validation is one stage."""
        from Datasets.pipeline import photographs

        if not training:
            return whole_stream(self, request, training)
        return photographs.stages(self._train, request, self.spec.num_classes, self._tolerance)

    def digest(self) -> str:
        """Of some records, to compare with another host's."""
        return digest((len(split), split.payload) for split in (self._train, self._validation) if split is not None)

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """Normalisation, unless the stream has done it."""
        from Datasets.pipeline import augmentation

        done = request.host_normalise and not request.eight_bit
        return image if done else augmentation.normalise(image, request)
