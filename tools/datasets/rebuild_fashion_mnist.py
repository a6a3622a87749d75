"""Rebuild the embedded Fashion-MNIST selection from the IDX files of the Debian package dataset-fashion-mnist.

    python -m tools.datasets.rebuild_fashion_mnist [--idx-dir DIR] [--check]

--check writes nothing and exits with 1 when the embedded images differ. The packed bytes are equal wherever
liblzma's encoder is (the file was made with 5.4); the images and labels are compared in any case.
"""

from __future__ import annotations

import argparse
import lzma
import os
import sys
from pathlib import Path

import numpy as np

from Datasets.formats import idx

# Images of one class next to each other, and bytes that do not depend on their place in a word: 4.46 MB against
# 4.64 MB with the usual settings. Differences between neighbouring pixels make the file larger, not smaller.
_FILTERS = ({"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0, "dict_size": 1 << 24},)


def main(arguments: list[str] | None = None) -> int:
    """Rebuild, or with --check compare."""
    parser = argparse.ArgumentParser(description="rebuild the embedded Fashion-MNIST selection")
    parser.add_argument("--idx-dir", type=Path, default=idx.DEBIAN_FOLDER, help="folder of the four IDX files")
    parser.add_argument("--check", action="store_true", help="compare only; exit code 1 if the content differs")
    options = parser.parse_args(arguments)
    if not idx.holds_idx(options.idx_dir):
        print(
            f"{options.idx_dir} lacks the IDX files ({', '.join(idx.IDX_FILES)}, .gz or not); "
            "apt install dataset-fashion-mnist, or give --idx-dir",
            file=sys.stderr,
        )
        return 2
    rebuilt = packed(selected(idx.read_idx(options.idx_dir)))
    return _check(rebuilt) if options.check else _write(rebuilt)


def selected(whole: dict[str, idx.Split]) -> dict[str, idx.Split]:
    """The first images of each class, in their published order."""
    chosen = {}
    for split, count in idx.SELECTED:
        images, labels = whole[split]
        keep = np.sort(np.concatenate([np.flatnonzero(labels == k)[: count // idx.CLASSES] for k in range(idx.CLASSES)]))
        chosen[split] = images[keep], labels[keep]
    return chosen


def packed(splits: dict[str, idx.Split]) -> bytes:
    """The embedded file: for each split its labels in order, then its images class by class."""
    parts = []
    for split, _ in idx.SELECTED:
        images, labels = splits[split]
        parts += [labels.tobytes(), images[np.argsort(labels, kind="stable")].tobytes()]
    return lzma.compress(b"".join(parts), format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, filters=_FILTERS)


def _check(rebuilt: bytes) -> int:
    embedded = idx.EMBEDDED.read_bytes()
    if embedded == rebuilt:
        print(f"{idx.EMBEDDED.name}: {len(rebuilt)} bytes, equal byte for byte")
        return 0
    same = lzma.decompress(embedded) == lzma.decompress(rebuilt)
    print(f"{idx.EMBEDDED.name}: {'same images and labels, packed differently' if same else 'the content differs'}")
    return 0 if same else 1


def _write(rebuilt: bytes) -> int:
    idx.EMBEDDED.parent.mkdir(exist_ok=True)
    temporary = idx.EMBEDDED.with_suffix(".new")
    temporary.write_bytes(rebuilt)
    os.replace(temporary, idx.EMBEDDED)
    print(f"{idx.EMBEDDED}: {len(rebuilt)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
