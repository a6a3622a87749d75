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

from Datasets import _fashion_files as files


def main(arguments: list[str] | None = None) -> int:
    """Rebuilds, or with --check compares."""
    parser = argparse.ArgumentParser(description="rebuild the embedded Fashion-MNIST selection")
    parser.add_argument("--idx-dir", type=Path, default=files.DEBIAN_FOLDER, help="folder of the four IDX files")
    parser.add_argument("--check", action="store_true", help="compare only; exit code 1 if the content differs")
    given = parser.parse_args(arguments)
    if not files.holds_idx(given.idx_dir):
        print(
            f"{given.idx_dir} lacks the IDX files ({', '.join(files.IDX_FILES)}, .gz or not); "
            "apt install dataset-fashion-mnist, or give --idx-dir",
            file=sys.stderr,
        )
        return 2
    made = files.packed(files.selected(files.read_idx(given.idx_dir)))
    return _check(made) if given.check else _write(made)


def _check(made: bytes) -> int:
    embedded = files.EMBEDDED.read_bytes()
    if embedded == made:
        print(f"{files.EMBEDDED.name}: {len(made)} bytes, equal byte for byte")
        return 0
    same = lzma.decompress(embedded) == lzma.decompress(made)
    print(f"{files.EMBEDDED.name}: {'same images and labels, packed differently' if same else 'the content differs'}")
    return 0 if same else 1


def _write(made: bytes) -> int:
    files.EMBEDDED.parent.mkdir(exist_ok=True)
    temporary = files.EMBEDDED.with_suffix(".new")
    temporary.write_bytes(made)
    os.replace(temporary, files.EMBEDDED)
    print(f"{files.EMBEDDED}: {len(made)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
