"""Fashion-MNIST: an included selection with equally many images per class, and the full set from its IDX files.

The images are expanded once to CIFAR-10's binary records (32 x 32, three equal channels), so that CIFAR's reader can
read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from cnn_harness.base.errors import DataError
from cnn_harness.base.storage import cache, input_files
from cnn_harness.Datasets._spec import DataSpec, OpenRequest
from cnn_harness.Datasets.formats import idx
from cnn_harness.Datasets.formats.binary_records import RecordLayout
from cnn_harness.Datasets.sources.small_image_source import BinarySource

_EMBEDDED = DataSpec(
    name="fashion-mnist",
    num_classes=10,
    image_size=32,
    train_images=10_000,
    validation_images=2_000,
    class_names=(
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    frame=idx.FRAME,
    standardised=True,
    precision="32.32",
)  # fmt: skip
_FULL = replace(_EMBEDDED, name="fashion-mnist-full", train_images=60_000, validation_images=10_000)

SPECS = {spec.name: spec for spec in (_EMBEDDED, _FULL)}


def open_embedded(request: OpenRequest) -> BinarySource:
    """Open the included selection, or the full set in --data-dir. DATA_DIR is ignored."""
    if request.data_dir:
        if not idx.holds_idx(Path(request.data_dir)):
            raise DataError(
                f"data set fashion-mnist: --data-dir {request.data_dir} lacks the IDX files ({_idx_names()}); leave out "
                "--data-dir to use the included images"
            )
        return _full(_EMBEDDED, Path(request.data_dir), request.environ)
    build = idx.writer(partial(idx.unpacked, idx.EMBEDDED))
    return _source(_EMBEDDED, cache.expanded("fashion-mnist-v1", build, request.environ))


def open_full(request: OpenRequest) -> BinarySource:
    """Open the 60,000 + 10,000 images in --data-dir, or else in DATA_DIR or Debian's package."""
    places = [request.data_dir] if request.data_dir else [request.environ.get("DATA_DIR"), str(idx.DEBIAN_FOLDER)]
    folders = [Path(place) for place in places if place]
    for folder in folders:
        if idx.holds_idx(folder):
            return _full(_FULL, folder, request.environ)
    raise DataError(
        f"data set fashion-mnist-full: no IDX files ({_idx_names()}) in {' or '.join(map(str, folders))}; "
        "run apt install dataset-fashion-mnist, or give the folder with the files by --data-dir"
    )


DATASETS = {"fashion-mnist": open_embedded, "fashion-mnist-full": open_full}


def _full(spec: DataSpec, folder: Path, environ: Mapping[str, str]) -> BinarySource:
    sources = "".join(input_files.sha256(file) for file in idx.idx_paths(folder))
    name = f"fashion-mnist-full-{hashlib.sha256(sources.encode()).hexdigest()[:12]}"  # one cache folder per set of files
    return _source(spec, cache.expanded(name, idx.writer(partial(idx.read_idx, folder)), environ))


def _source(spec: DataSpec, folder: Path) -> BinarySource:
    return BinarySource(spec, [folder / "train.bin"], [folder / "test.bin"], RecordLayout(label_bytes=1, label_at=0))


def _idx_names() -> str:
    return ", ".join(f"{name}[.gz]" for name in idx.IDX_FILES)
