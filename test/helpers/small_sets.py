"""Small data sets of real images, for tests whose runs cross epochs in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cnn_harness.Datasets.cifar import BINARY_FILES
from cnn_harness.Datasets.formats import idx


def cifar10(folder: Path, train: int, validation: int) -> Path:
    """Write CIFAR-10's files from the embedded images of 28 x 28, padded and repeated in three channels."""
    parts = idx.unpacked(idx.EMBEDDED)
    files = BINARY_FILES["cifar-10"]
    for name, count, into in (("train", train, files.train), ("t10k", validation, files.validation)):
        images, labels = parts[name]
        framed = np.pad(images[:count], ((0, 0), (2, 2), (2, 2))).reshape(count, -1)
        records = np.concatenate([labels[:count, None], np.tile(framed, 3)], 1).astype(np.uint8)
        for file, rows in zip(into, np.array_split(records, len(into))):
            (folder / file).write_bytes(rows.tobytes())
    return folder
