"""Fixed-length binary records, as CIFAR has them: label bytes, then 3 x 32 x 32 pixels; checked and gathered by number."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from base.errors import DataError
from base.storage import input_files
from base.storage.input_files import Slices

SIDE = 32
PIXEL_BYTES = 3 * SIDE * SIDE  # planes: red, green, blue
_TOGETHER = 1024  # records of one read


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """A record: `label_bytes` of labels, the one that counts at `label_at`, then the pixels."""

    label_bytes: int
    label_at: int

    @property
    def record_bytes(self) -> int:
        return self.label_bytes + PIXEL_BYTES


@dataclass(frozen=True, kw_only=True)
class BinaryFiles:
    """The file names of both splits of a data set, the folder that its archive unpacks to, and the layout of a record."""

    folder: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    layout: RecordLayout


class RecordFile:
    """The whole records of a file, read when they are asked for; DataError for those that are gone by then."""

    def __init__(self, file: Path, layout: RecordLayout) -> None:
        self._file, self._layout = file, layout
        try:
            self._content = Slices(input_files.open_regular_file(file))
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._content)

    def __len__(self) -> int:
        return self.size // self._layout.record_bytes

    def rows(self, first: int, count: int = 1) -> np.ndarray:
        """Return neighbouring records, as bytes [count, record_bytes]."""
        each = self._layout.record_bytes
        try:
            data = self._content[first * each : (first + count) * each]
        except OSError as error:
            raise DataError(f"{self._file} cannot be read: {error.strerror}") from None
        return np.frombuffer(data, np.uint8).reshape(-1, each)

    def blocks(self) -> Iterator[np.ndarray]:
        """Return all records in their order, some at a time."""
        return (self.rows(first, min(_TOGETHER, len(self) - first)) for first in range(0, len(self), _TOGETHER))

    def labels(self) -> np.ndarray:
        """Return the labels of all records."""
        return np.concatenate([np.zeros(0, np.uint8), *(block[:, self._layout.label_at].copy() for block in self.blocks())])


class Gatherer:
    """Records by number: from RAM with `cache`, else from the files."""

    def __init__(self, files: Sequence[RecordFile], layout: RecordLayout, cache: bool) -> None:
        self._files = files
        self._ends = np.cumsum([len(file) for file in files])
        self._layout = layout
        self._cached = np.concatenate([block for file in files for block in file.blocks()]) if cache else None

    def __call__(self, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pixels uint8 [n, 32, 32, 3], labels int32 [n]; a number beyond the last record gives zeros and -1."""
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
        return np.stack([planes[:, 0], planes[:, 1], planes[:, 2]], axis=-1), labels  # twice as fast as a transpose


def records_digest(files: Sequence[RecordFile]) -> str:
    """32 hex digits over all records, however they lie in the files."""
    hasher = hashlib.blake2b(digest_size=16)
    for file in files:
        for block in file.blocks():
            hasher.update(block)
    return hasher.hexdigest()


def checked(file: Path, layout: RecordLayout, num_classes: int) -> RecordFile:
    """The file's records, or a DataError that names the fault."""
    records, each = RecordFile(file, layout), layout.record_bytes
    if records.size == 0 or records.size % each:
        raise DataError(
            f"{file} is {records.size} bytes, not a positive multiple of the record length {each}; is it empty or cut "
            "short? Copy it again"
        )
    labels = records.labels()
    wrong = np.flatnonzero(labels >= num_classes)
    if wrong.size:
        raise DataError(
            f"{file} ({records.size} bytes, record length {each}): record {wrong[0]} has label {labels[wrong[0]]}, "
            f"outside 0 to {num_classes - 1}; is it another data set's file, or damaged?"
        )
    return records
