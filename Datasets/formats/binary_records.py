"""Fixed-length binary records as in CIFAR: label bytes, then 3 x 32 x 32 pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cnn_harness.base.errors import DataError
from cnn_harness.base.storage import input_files
from cnn_harness.base.storage.input_files import Slices

SIDE = 32
PIXEL_BYTES = 3 * SIDE * SIDE  # the red values come first, then the green and the blue values
_TOGETHER = 1024  # number of records per read


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """The layout of a record: `label_bytes` bytes with labels, then the pixels. The label at byte `label_at` is used."""

    label_bytes: int
    label_at: int

    @property
    def record_bytes(self) -> int:
        return self.label_bytes + PIXEL_BYTES


@dataclass(frozen=True, kw_only=True)
class BinaryFiles:
    """The files of a data set: names for both splits, the folder name in the published archive, and the record layout."""

    folder: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    layout: RecordLayout


class RecordFile:
    """The complete records of a file, read on demand. Reading raises DataError if the file has become shorter."""

    def __init__(self, file: Path, layout: RecordLayout) -> None:
        self._file, self._layout = file, layout
        try:
            self._content = Slices(input_files.open_regular_file(file))
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from None

    @property
    def size(self) -> int:
        """Return the size of the file in bytes."""
        return len(self._content)

    def __len__(self) -> int:
        return self.size // self._layout.record_bytes

    def rows(self, first: int, count: int = 1) -> np.ndarray:
        """Return consecutive records, uint8 [count, record_bytes]."""
        each = self._layout.record_bytes
        try:
            data = self._content[first * each : (first + count) * each]
        except OSError as error:
            raise DataError(f"{self._file} cannot be read: {error.strerror}") from None
        return np.frombuffer(data, np.uint8).reshape(-1, each)

    def blocks(self) -> Iterator[np.ndarray]:
        """Return all records in order, in blocks of at most _TOGETHER."""
        return (self.rows(first, min(_TOGETHER, len(self) - first)) for first in range(0, len(self), _TOGETHER))

    def labels(self) -> np.ndarray:
        """Return the labels of all records."""
        return np.concatenate([np.zeros(0, np.uint8), *(block[:, self._layout.label_at].copy() for block in self.blocks())])


class Gatherer:
    """Reads records by number: from memory if `cache` is true, else from the files."""

    def __init__(self, files: Sequence[RecordFile], layout: RecordLayout, cache: bool) -> None:
        self._files = files
        self._ends = np.cumsum([len(file) for file in files])
        self._layout = layout
        self._cached = np.concatenate([block for file in files for block in file.blocks()]) if cache else None

    def __call__(self, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pixels, uint8 [n, 32, 32, 3], and labels, int32 [n]. Beyond the last record, return zeros and label -1."""
        there = records < self._ends[-1]
        rows = np.zeros((len(records), self._layout.record_bytes), np.uint8)
        if self._cached is not None:
            rows[there] = self._cached[records[there]]
        else:
            for place in np.flatnonzero(there):
                k = int(np.searchsorted(self._ends, records[place], side="right"))
                file = self._files[k]
                rows[place] = file.rows(int(records[place]) - int(self._ends[k]) + len(file))[0]
        labels = rows[:, self._layout.label_at].astype(np.int32)
        labels[~there] = -1
        planes = rows[:, self._layout.label_bytes :].reshape(-1, 3, SIDE, SIDE)
        return np.stack([planes[:, 0], planes[:, 1], planes[:, 2]], axis=-1), labels  # this is twice as fast as a transpose


def records_digest(files: Sequence[RecordFile]) -> str:
    """Return a digest (32 hex digits) of all records, independent of their division into files."""
    hasher = hashlib.blake2b(digest_size=16)
    for file in files:
        for block in file.blocks():
            hasher.update(block)
    return hasher.hexdigest()


def checked(file: Path, layout: RecordLayout, num_classes: int) -> RecordFile:
    """Return the records of a file; raise DataError if its length or a label is wrong."""
    records, each = RecordFile(file, layout), layout.record_bytes
    if records.size == 0 or records.size % each:
        raise DataError(
            f"{file} has {records.size} bytes, not a positive multiple of the record length {each}; it may be empty or "
            "truncated, so copy it again"
        )
    labels = records.labels()
    wrong = np.flatnonzero(labels >= num_classes)
    if wrong.size:
        raise DataError(
            f"{file} ({records.size} bytes, record length {each}): record {wrong[0]} has label {labels[wrong[0]]}, "
            f"outside 0 to {num_classes - 1}; it may be damaged or belong to another data set"
        )
    return records
