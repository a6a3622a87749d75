"""Read Fashion-MNIST's published IDX files or the included selection, and write them as CIFAR-10 records."""

from __future__ import annotations

import lzma
import math
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cnn_harness.base import bounds
from cnn_harness.base.errors import DataError
from cnn_harness.base.storage import input_files

IDX_FILES = tuple(f"{split}-{kind}-ubyte" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
EMBEDDED = Path(__file__).resolve().parent.parent / "_embedded" / "fashion_mnist.xz"
SELECTED = (("train", 10_000), ("t10k", 2_000))  # the included images: equally many of each class, the first ones
CLASSES = 10
SIDE = 28
FRAME = 2  # zero pixels on each side, to reach CIFAR's 32 x 32
_MAX_BYTES = 1 << 28  # limit for an unpacked file; the largest published file has 47 MB

Split = tuple[np.ndarray, np.ndarray]  # images uint8 [n, 28, 28], labels uint8 [n]


def holds_idx(folder: Path) -> bool:
    """Return whether a folder has all four IDX files, compressed or not."""
    return all(any(file.is_file() for file in _spellings(folder, name)) for name in IDX_FILES)


def idx_paths(folder: Path) -> list[Path]:
    """Return the four IDX files of a folder for which `holds_idx` is true."""
    return [next(file for file in _spellings(folder, name) if file.is_file()) for name in IDX_FILES]


def read_idx(folder: Path) -> dict[str, Split]:
    """Return both splits as published; raise DataError if the files are not Fashion-MNIST."""
    files = dict(zip(IDX_FILES, idx_paths(folder), strict=True))
    return {split: _split(files[f"{split}-images-idx3-ubyte"], files[f"{split}-labels-idx1-ubyte"]) for split, _ in SELECTED}


def _split(images_file: Path, labels_file: Path) -> Split:
    images, labels = read_array(images_file, 3), read_array(labels_file, 1)
    if not len(images):
        raise DataError(f"{images_file} has no images; give another file")
    if images.shape[1:] != (SIDE, SIDE):
        height, width = images.shape[1:]
        raise DataError(f"{images_file} has images of {height} x {width} pixels, but they must be {SIDE} x {SIDE}")
    if len(labels) != len(images):
        raise DataError(
            f"{labels_file} has {len(labels)} labels, but {images_file} has {len(images)} images; give matching files"
        )
    if labels.max() >= CLASSES:
        raise DataError(f"{labels_file} has the label {labels.max()}, but labels must be 0 to {CLASSES - 1}")
    return images, labels


def unpacked(file: Path) -> dict[str, Split]:
    """Return the included selection, in the published order."""
    try:
        rest = np.frombuffer(lzma.decompress(file.read_bytes()), np.uint8)
    except (OSError, lzma.LZMAError) as error:
        raise DataError(f"included data set {file} cannot be read ({error}); install the project again") from error
    expected = sum(count * (1 + SIDE * SIDE) for _, count in SELECTED)
    if rest.size != expected:
        raise DataError(f"included data set {file} has {rest.size} bytes, not {expected}; install the project again")
    splits = {}
    for split, count in SELECTED:
        labels, by_class, rest = np.split(rest, [count, count * (1 + SIDE * SIDE)])
        images = np.empty((count, SIDE, SIDE), np.uint8)
        images[np.argsort(labels, kind="stable")] = by_class.reshape(images.shape)
        splits[split] = images, labels
    return splits


def writer(read: Callable[[], dict[str, Split]]) -> Callable[[Path], None]:
    """Return a function that writes train.bin and test.bin into a cache folder, in CIFAR-10's binary format."""

    def build(folder: Path) -> None:
        splits = read()
        for split, name in (("train", "train.bin"), ("t10k", "test.bin")):
            (folder / name).write_bytes(_records(*splits[split]).data)

    return build


def _records(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return records of 1 + 3072 bytes: the label, then three equal channels of the image padded to 32 x 32."""
    framed = np.pad(images, ((0, 0), (FRAME, FRAME), (FRAME, FRAME))).reshape(len(images), -1)
    return np.ascontiguousarray(np.concatenate([labels[:, None], framed, framed, framed], axis=1))


def read_array(file: Path, dimensions: int) -> np.ndarray:
    """Return the array in an IDX file.

    The file consists of two zero bytes, the type 8 (uint8), the number of dimensions, big-endian sizes, and the data.
    """
    try:
        data = input_files.content(file, _MAX_BYTES)
        if file.suffix == ".gz":
            unpacking = zlib.decompressobj(wbits=31)  # of gzip
            data = unpacking.decompress(data, _MAX_BYTES)
            if not unpacking.eof:
                raise ValueError(f"it is truncated, or larger than the limit of {_MAX_BYTES:,} bytes")
    except (OSError, ValueError, zlib.error) as error:
        raise DataError(f"{file} cannot be unpacked: {bounds.reason(error)}") from error
    header = 4 + 4 * dimensions
    if data[:4] != bytes((0, 0, 8, dimensions)) or len(data) < header:
        raise DataError(f"{file} is not an IDX file of uint8 with {dimensions} dimension{'s' * (dimensions > 1)}")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", dimensions, 4))
    if len(data) != header + math.prod(shape):
        raise DataError(
            f"{file} has {len(data)} bytes, but its header says {header + math.prod(shape)}; it may be truncated"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _spellings(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.gz", folder / name
