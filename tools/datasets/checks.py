"""Reads data sets of every kind whole and says what is damaged: file, record and reason.

Nothing here stops at the first damage. Only parsing and decoding records imports TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from base.errors import DataError
from base.storage import input_files
from Datasets import _catalogue, _described, _labels, _locate, _pictures, _salvage
from Datasets._binary import Layout
from Datasets._class_names import IMAGENET_CLASSES
from Datasets._described import Described
from Datasets._headers import MOST_BYTES
from Datasets._salvage import Damage
from Datasets._spec import regular_size
from Datasets._tfrecords import shards

if TYPE_CHECKING:
    from tools.datasets.example_checks import Decoder


class Finding(NamedTuple):
    """Something damaged. `record` is None where a whole file or folder is meant."""

    file: Path
    record: int | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}: record {self.record}" if self.record is not None else f"{self.file}"
        return f"{where}: {self.reason}"


class Checked(NamedTuple):
    """What one file held."""

    records: int  # whole and damaged ones
    findings: list[Finding]


Check = Callable[[Path], Checked]


@dataclass(frozen=True)
class Work:
    """The files of a data set, how each of them is checked, and what is wrong with the set as a whole."""

    kind: str
    files: list[tuple[Path, Check]]
    findings: list[Finding] = field(default_factory=list)
    notes: tuple[str, ...] = ()


def work(folder: Path, classes: int | None, decoder: Callable[[], Decoder]) -> Work:
    """What there is to check in a folder; a DataError if it holds no data set."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    found = _shards(folder, classes, decoder) or _binaries(folder) or _tree(folder, decoder)
    if found is None:
        raise DataError(
            f"no data set in {folder}: looked for TFRecord shards train-?????-of-????? (also in train/ and validation/), "
            "for CIFAR's binary files (data_batch_1.bin, train.bin), and for a tree with one folder for each class"
        )
    return found


def _shards(folder: Path, asked: int | None, decoder: Callable[[], Decoder]) -> Work | None:
    places = [(place, split) for split in _described.SPLITS for place in (folder, folder / split) if place.is_dir()]
    files = [(file, place) for place, split in places for file in sorted(place.glob(f"{split}-?????-of-?????"))]
    if not files:
        return None
    findings = []
    for place, split in places:
        try:
            shards(place, split)
        except DataError as error:
            findings.append(Finding(place, None, str(error).removeprefix(f"{place} ")))
    described = _described_in(files[0][1], [file.name for file, _ in files], findings)
    names = _labels.read(files[0][1])
    if names:
        _labels.agree(names, asked, str(files[0][1] / _labels.FILE))
    classes = len(names) or asked or IMAGENET_CLASSES
    judge = decoder()

    def check(file: Path) -> Checked:
        return _checked_shard(file, classes, judge, described)

    return Work("TFRecord shards", [(file, check) for file, _ in files], findings)


def _described_in(folder: Path, there: list[str], findings: list[Finding]) -> Described | None:
    """What conversion.json says that there must be; what is wrong with it and what is lost goes to `findings`."""
    try:
        described = _described.read(folder)
    except DataError as error:
        findings.append(Finding(folder / _described.FILE, None, str(error).removeprefix(f"{folder / _described.FILE} ")))
        return None
    if described:
        findings += [Finding(folder, None, lost) for lost in described.lost(there)]
        labels = described.differing_labels()
        findings += [Finding(folder / _labels.FILE, None, labels)] if labels else []
    return described


def _checked_shard(file: Path, classes: int, decoder: Decoder, described: Described | None) -> Checked:
    try:
        walked = _salvage.walk(file, payloads=True)
    except DataError as error:
        return Checked(0, [Finding(file, None, str(error).removeprefix(f"{file} "))])
    findings = [Finding(file, None, "is empty")] if not walked else []
    with file.open("rb") as stream:
        for number, stretch in enumerate(walked):
            if isinstance(stretch, Damage):
                findings.append(Finding(file, number, f"{stretch.reason}; byte {stretch.offset} of the file"))
                continue
            stream.seek(stretch.offset)
            reason = decoder.example(stream.read(stretch.length), classes)
            if reason:
                findings.append(Finding(file, number, reason))
    damaged = any(isinstance(stretch, Damage) for stretch in walked)  # which may hide how many records there were
    lost = described.difference(file.name, len(walked)) if described and walked and not damaged else None
    return Checked(len(walked), [*findings, *[Finding(file, None, lost)] * bool(lost)])


def _binaries(folder: Path) -> Work | None:
    for name, known in _catalogue.table("BINARY_FILES").items():
        wanted = (*known.train, *known.validation)
        for place in (folder, *_locate.folders_called(known.folder, folder)):
            there = [place / file for file in wanted if (place / file).is_file()]
            if not there:
                continue
            missing = [Finding(place / file, None, "is missing") for file in wanted if place / file not in there]
            check = _binary_check(known.layout, _catalogue.published_spec(name).num_classes)
            return Work(f"{name} binary files", [(file, check) for file in there], missing)
    return None


def _binary_check(layout: Layout, classes: int) -> Check:
    """Such files have no checksums: only their length and their labels can be held against anything."""

    def check(file: Path) -> Checked:
        size, each = regular_size(file), layout.record_bytes
        if not size:
            return Checked(0, [Finding(file, None, "is empty")])
        whole = size // each
        labels = np.memmap(file, np.uint8, mode="r")[: whole * each].reshape(-1, each)[:, layout.label_at]
        findings = [
            Finding(file, int(k), f"its label is {labels[k]}, outside 0 to {classes - 1}")
            for k in np.flatnonzero(labels >= classes)
        ]
        if size % each:
            findings.append(Finding(file, whole, _salvage.CUT.format(size=size)))
        return Checked(whole + bool(size % each), findings)

    return check


def _tree(folder: Path, decoder: Callable[[], Decoder]) -> Work | None:
    if not _pictures.is_tree(folder):
        return None
    found = _pictures.tree(folder)
    judge = decoder()

    def check(file: Path) -> Checked:
        reason = _pictures.wrong(file)
        if reason is None:
            try:
                said = judge.picture(input_files.content(file, MOST_BYTES))
            except OSError as error:
                said = f"cannot be read: {error.strerror}"
            reason = said and f"it {said}"
        return Checked(1, [Finding(file, None, reason)] if reason else [])

    pictures = [*found.train, *(found.validation or ())]
    return Work("tree of pictures", [(picture.file, check) for picture in pictures], notes=found.notes)
