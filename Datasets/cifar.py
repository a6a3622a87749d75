"""CIFAR-10 and CIFAR-100 in the binary versions. The images are counted in the files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cnn_harness.Datasets._spec import DataSpec, OpenRequest
from cnn_harness.Datasets.formats.binary_records import BinaryFiles, RecordLayout
from cnn_harness.Datasets.sources import locate
from cnn_harness.Datasets.sources.small_image_source import BinarySource

BINARY_FILES = {
    "cifar-10": BinaryFiles(
        folder="cifar-10-batches-bin",
        train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        validation=("test_batch.bin",),
        layout=RecordLayout(label_bytes=1, label_at=0),
    ),
    "cifar-100": BinaryFiles(
        folder="cifar-100-binary",
        train=("train.bin",),
        validation=("test.bin",),
        layout=RecordLayout(label_bytes=2, label_at=1),  # byte 0 is the coarse label
    ),
}
_TEN_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _spec(name: str, num_classes: int, class_names: tuple[str, ...] = ()) -> DataSpec:
    return DataSpec(
        name=name, num_classes=num_classes, image_size=32, train_images=50_000, validation_images=10_000,
        class_names=class_names, standardised=True,
    )  # fmt: skip


SPECS = {"cifar-10": _spec("cifar-10", 10, _TEN_NAMES), "cifar-100": _spec("cifar-100", 100)}


def _open(name: str, request: OpenRequest) -> BinarySource:
    files = BINARY_FILES[name]
    top = locate.folder_given(name, ", ".join((*files.train, *files.validation)), request)
    folder = locate.holding_folder(name, top, files.folder, files.train)
    train, validation = ([folder / file for file in split] for split in (files.train, files.validation))
    there = [file for file in validation if file.exists()]
    missing = "" if there else f"{folder} lacks {', '.join(files.validation)}"
    return _with_note(BinarySource(SPECS[name], train, there, files.layout, missing))


def _with_note(source: BinarySource) -> BinarySource:
    """Add a note to the source if its number of images differs from the published data set."""
    spec, published = source.spec, SPECS[source.spec.name]
    if (spec.train_images, spec.validation_images) != (published.train_images, published.validation_images):
        note = (
            f"note: the files contain {spec.train_images:,} training and {spec.validation_images:,} validation images; "
            f"the published {spec.name} has {published.train_images:,} and {published.validation_images:,}"
        )
        source.spec = replace(spec, notes=(*spec.notes, note))
    return source


DATASETS = {name: partial(_open, name) for name in BINARY_FILES}
