"""Fixed-length binary records, as CIFAR has them: label bytes, then 3 x 32 x 32 pixels; checked and gathered by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from base.errors import DataError
from Datasets._spec import regular_size

SIDE = 32
PIXEL_BYTES = 3 * SIDE * SIDE  # planes: red, green, blue


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


class Gatherer:
    """Records by number: from RAM when it is given one array, else from memory-mapped files."""

    def __init__(self, files: list[np.ndarray], layout: RecordLayout) -> None:
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


def record(files: Sequence[np.ndarray], i: int) -> bytes:
    """The bytes of record i, counted through all files; IndexError beyond the last."""
    for file in files:
        if i < len(file):
            return file[i].tobytes()
        i -= len(file)
    raise IndexError(i)


def checked(file: Path, layout: RecordLayout, num_classes: int) -> np.ndarray:
    """The file's records [n, record_bytes], memory-mapped, or a DataError that names the fault."""
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
