"""Rebuild the included Fashion-MNIST selection from the IDX files of the Debian package dataset-fashion-mnist.

    python -m cnn_harness.tools.datasets.rebuild_fashion_mnist [--idx-dir DIR] [--check]

--check writes nothing, and exits with code 1 if the included images differ.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from pathlib import Path

import numpy as np

from cnn_harness.base.storage import files
from cnn_harness.Datasets.formats import idx

# With these filters, and with images of the same class next to each other, the file has 4.46 MB instead of 4.64 MB.
# Storing differences between neighbouring pixels would make the file larger.
_FILTERS = ({"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0, "dict_size": 1 << 24},)


def main(arguments: list[str] | None = None) -> int:
    """Rebuild the included selection, or compare the content with --check; return the exit code."""
    parser = argparse.ArgumentParser(description="rebuild the included Fashion-MNIST selection")
    parser.add_argument("--idx-dir", type=Path, default=idx.DEBIAN_FOLDER, help="folder with the four IDX files")
    parser.add_argument("--check", action="store_true", help="only compare; exit with code 1 if the content differs")
    options = parser.parse_args(arguments)
    if not idx.holds_idx(options.idx_dir):
        parser.error(f"{options.idx_dir} lacks {', '.join(idx.IDX_FILES)}; install dataset-fashion-mnist, or give --idx-dir")
    content = _selected(idx.read_idx(options.idx_dir))
    if not options.check:
        packed = lzma.compress(content, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, filters=_FILTERS)
        files.write_atomically(idx.EMBEDDED, packed)
    same = content == lzma.decompress(idx.EMBEDDED.read_bytes())
    print(f"{idx.EMBEDDED}: {'the same images and labels' if same else 'the content differs'}")
    return 0 if same else 1


def _selected(whole: dict[str, idx.Split]) -> bytes:
    """Return, for each split, the labels of the selected images in published order, then the images sorted by class."""
    parts = []
    for split, count in idx.SELECTED:
        images, labels = whole[split]
        keep = np.sort(np.concatenate([np.flatnonzero(labels == k)[: count // idx.CLASSES] for k in range(idx.CLASSES)]))
        parts += [labels[keep].tobytes(), images[keep][np.argsort(labels[keep], kind="stable")].tobytes()]
    return b"".join(parts)


if __name__ == "__main__":
    sys.exit(main())
