"""Fixed-length binary records (CIFAR's format): checked and counted at once, gathered by record number.

Nothing here imports TensorFlow until a stream is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from base.errors import DataError
from Datasets._spec import DataSpec, ReadRequest, Stage, digest, regular_size, whole_stream

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

SIDE = 32
PIXEL_BYTES = 3 * SIDE * SIDE  # planes: red, green, blue


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A record: `label_bytes` of labels, the one that counts at `label_at`, then the pixels."""

    label_bytes: int
    label_at: int

    @property
    def record_bytes(self) -> int:
        return self.label_bytes + PIXEL_BYTES


class BinarySource:
    """Data of fixed-length records; the sizes of its `spec` are counted from the files."""

    def __init__(self, spec: DataSpec, train: Sequence[Path], validation: Sequence[Path], layout: Layout) -> None:
        self._layout = layout
        self._train = [_checked(file, layout, spec.num_classes) for file in train]
        self._validation = [_checked(file, layout, spec.num_classes) for file in validation]
        self.spec = replace(spec, train_images=sum(map(len, self._train)), validation_images=sum(map(len, self._validation)))

    def train(self, request: ReadRequest) -> tf.data.Dataset:
        from Datasets import _images

        return _images.train_stream(self._gatherer(self._train, request.cache), self.spec.train_images, request)

    def validation(self, request: ReadRequest) -> tf.data.Dataset:
        from Datasets import _images

        gather = self._gatherer(self._validation, request.cache)
        return _images.validation_stream(gather, self.spec.validation_images, request)

    def stages(self, request: ReadRequest, training: bool) -> list[Stage]:
        """One: it reads, augments and batches at once."""
        return whole_stream(self, request, training)

    def digest(self) -> str:
        """Of some records, to compare with another host's."""
        return digest((sum(map(len, files)), partial(_record, files)) for files in (self._train, self._validation))

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """Standardises bytes, whole images where nothing says how they were cropped. Otherwise that was done on the host,
        before the images were padded and cropped."""
        from Datasets import _augment

        return _augment.standardised_on_device(image, request, moments)

    def _gatherer(self, files: list[np.ndarray], cache: bool) -> Gatherer:
        return Gatherer([np.concatenate(files)] if cache else files, self._layout)


class Gatherer:
    """Records by number: from RAM when it is given one array, else from memory-mapped files."""

    def __init__(self, files: list[np.ndarray], layout: Layout) -> None:
        self._files = files
        self._ends = np.cumsum([len(file) for file in files])
        self._layout = layout

    def __call__(self, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pixels uint8 [n, 32, 32, 3], labels int32 [n]; a number beyond the last record gives zeros and -1."""
        rows = np.zeros((len(records), self._layout.record_bytes), np.uint8)
        owners = np.searchsorted(self._ends, records, side="right")
        for k, file in enumerate(self._files):
            mine = np.flatnonzero(owners == k)
            rows[mine] = file[records[mine] - (self._ends[k] - len(file))]
        labels = rows[:, self._layout.label_at].astype(np.int32)
        labels[records >= self._ends[-1]] = -1
        planes = rows[:, self._layout.label_bytes :].reshape(-1, 3, SIDE, SIDE)
        return np.stack([planes[:, 0], planes[:, 1], planes[:, 2]], axis=-1), labels  # twice as fast as a transpose


def _record(files: Sequence[np.ndarray], i: int) -> bytes:
    for file in files:
        if i < len(file):
            return file[i].tobytes()
        i -= len(file)
    raise IndexError(i)


def _checked(file: Path, layout: Layout, num_classes: int) -> np.ndarray:
    """The file's records [n, record_bytes], memory-mapped, or a DataError that names what is wrong."""
    size, each = regular_size(file), layout.record_bytes
    if size == 0 or size % each:
        raise DataError(
            f"{file} is {size} bytes, not a positive multiple of the record length {each}; is it empty or cut short? "
            "Copy it again"
        )
    records = np.memmap(file, np.uint8, mode="r").reshape(-1, each)
    labels = records[:, layout.label_at]
    wrong = np.flatnonzero(labels >= num_classes)
    if wrong.size:
        raise DataError(
            f"{file} ({size} bytes, record length {each}): record {wrong[0]} has label {labels[wrong[0]]}, "
            f"outside 0 to {num_classes - 1}; is it another data set's file, or damaged?"
        )
    return records
