"""Reads data sets of every kind whole and lists all damage: file, record and reason.

Only parsing and decoding records imports TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from base.errors import DataError
from base.storage import input_files
from base.storage.input_files import Slices
from Datasets.formats import class_names, conversion_info, tfrecord
from Datasets.formats.binary import RecordFile, RecordLayout
from Datasets.formats.conversion_info import ConversionInfo
from Datasets.sources import catalogue, image_folder, locate

if TYPE_CHECKING:
    from tools.datasets.example_checks import ExampleChecker


class Finding(NamedTuple):
    """A damaged or missing thing. `record`: its number in the file; None for a whole file or folder."""

    file: Path
    record: int | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}: record {self.record}" if self.record is not None else f"{self.file}"
        return f"{where}: {self.reason}"


class Checked(NamedTuple):
    """The content of one file."""

    records: int  # whole and damaged ones
    findings: list[Finding]


Check = Callable[[Path], Checked]


class Stopped(Exception):
    """A check was told to end within its file."""


@dataclass(frozen=True)
class Work:
    """The files of a data set, each with its check, and the findings about the set as a whole."""

    kind: str
    files: list[tuple[Path, Check]]
    findings: list[Finding] = field(default_factory=list)
    notes: tuple[str, ...] = ()


def work(folder: Path, classes: int | None, new_checker: Callable[[], ExampleChecker], stop: Event) -> Work:
    """The checks of a folder's data set; DataError if there is none. `new_checker`: called once, only for records that are
    parsed; `classes`: the number of labels, where labels.txt does not name them. Once `stop` is set, a check that is under
    way ends at its next read by Stopped."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")

    def before_read() -> None:
        if stop.is_set():
            raise Stopped

    shards = _shards(folder, classes, new_checker, before_read)
    contents = shards or _binaries(folder, before_read) or _tree(folder, new_checker)
    if contents is None:
        raise DataError(
            f"no data set in {folder}: looked for TFRecord shards train-?????-of-????? (also in train/ and validation/), "
            "for CIFAR's binary files (data_batch_1.bin, train.bin), and for a tree with one folder for each class"
        )
    return contents


def _shards(
    folder: Path, num_classes: int | None, new_checker: Callable[[], ExampleChecker], before_read: Callable[[], None]
) -> Work | None:
    places = [(place, split) for split in conversion_info.SPLITS for place in (folder, folder / split) if place.is_dir()]
    files = [(place / match.string, place) for place, split in places for match in tfrecord.named(place, split)]
    if not files:
        return None
    findings = []
    for place, split in places:
        try:
            tfrecord.shards(place, split)
        except DataError as error:
            findings.append(Finding(place, None, str(error).removeprefix(f"{place} ")))
    described = _described_in(files[0][1], [file.name for file, _ in files], findings)
    names, named_in = class_names.beside([files[0][0]], folder)
    if names:
        class_names.agree(names, num_classes, str(named_in))
    first = class_names.first_label(named_in.parent)
    labels = range(first, first + (len(names) or num_classes or class_names.IMAGENET_CLASSES))
    checker = new_checker()

    def check(file: Path) -> Checked:
        return _checked_shard(file, labels, checker, described, before_read)

    return Work("TFRecord shards", [(file, check) for file, _ in files], findings)


def _described_in(folder: Path, there: list[str], findings: list[Finding]) -> ConversionInfo | None:
    """The counts of conversion.json; its faults and lost splits go to `findings`."""
    try:
        described = conversion_info.read(folder)
    except DataError as error:
        file = folder / conversion_info.FILE
        findings.append(Finding(file, None, str(error).removeprefix(f"{file} ")))
        return None
    if described:
        findings += [Finding(file, None, why) for file, why in [*described.faults(there), *described.changes()]]
    return described


def _checked_shard(
    file: Path, labels: range, checker: ExampleChecker, described: ConversionInfo | None, before_read: Callable[[], None]
) -> Checked:
    findings: list[Finding] = []
    count = 0
    try:
        with input_files.open_regular_file(file) as stream:
            content = Slices(stream, before_read)
            for offset, length in tfrecord.places(file, content):
                payload, damage = tfrecord.payload(content, offset, length)
                if reason := damage or checker.example(payload, labels):
                    findings.append(Finding(file, count, reason))
                count += 1
    except tfrecord.LostRecords as lost:  # so conversion.json's number of records cannot be compared
        return Checked(count + (lost.record is not None), [*findings, Finding(file, lost.record, lost.reason)])
    except OSError as error:
        return Checked(count, [*findings, Finding(file, None, f"cannot be read: {error.strerror}")])
    except DataError as error:
        return Checked(0, [Finding(file, None, str(error).removeprefix(f"{file} "))])
    difference = described.difference(file, count) if described else None
    return Checked(count, [*findings, *[Finding(file, None, difference)] * bool(difference)])


def _binaries(folder: Path, before_read: Callable[[], None]) -> Work | None:
    for name, known in catalogue.table("BINARY_FILES").items():
        wanted = (*known.train, *known.validation)
        for place in (folder, *locate.folders_called(known.folder, folder)):
            there = [place / file for file in wanted if (place / file).is_file()]
            if not there:
                continue
            missing = [Finding(place / file, None, "is missing") for file in wanted if place / file not in there]
            check = _binary_check(known.layout, catalogue.published_spec(name).num_classes, before_read)
            return Work(f"{name} binary files", [(file, check) for file in there], missing)
    return None


def _binary_check(layout: RecordLayout, classes: int, before_read: Callable[[], None]) -> Check:
    """Return a check of lengths and labels, as there are no checksums."""

    def check(file: Path) -> Checked:
        try:
            records = RecordFile(file, layout, before_read)
            labels = records.labels()
        except DataError as error:
            return Checked(0, [Finding(file, None, str(error).removeprefix(f"{file} "))])
        size, each, whole = records.size, layout.record_bytes, len(records)
        if not size:
            return Checked(0, [Finding(file, None, "is empty")])
        findings = [
            Finding(file, int(k), f"its label is {labels[k]}, outside 0 to {classes - 1}")
            for k in np.flatnonzero(labels >= classes)
        ]
        if size % each:
            findings.append(Finding(file, whole, tfrecord.CUT.format(size=size)))
        return Checked(whole + bool(size % each), findings)

    return check


def _tree(folder: Path, new_checker: Callable[[], ExampleChecker]) -> Work | None:
    if not image_folder.is_tree(folder):
        return None
    tree = image_folder.tree(folder)
    checker = new_checker()

    def check(file: Path) -> Checked:
        reason = checker.file(file)
        return Checked(1, [Finding(file, None, reason)] if reason else [])

    pictures = [*tree.train, *(tree.validation or ())]
    return Work("tree of pictures", [(picture.file, check) for picture in pictures], notes=tree.notes)
