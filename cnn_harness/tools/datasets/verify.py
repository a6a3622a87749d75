"""Read a whole data set and report every damaged record.

The data set is a converted folder, ImageNet's shards, a tree of image folders, or CIFAR's binary files.

python -m Datasets.verify DIR                 decode every image, as in training
python -m Datasets.verify DIR --no-decode     check only lengths, checksums and labels

The exit code is 0 if nothing is damaged, 1 if something is damaged, and 2 for wrong input.
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("verify")

import argparse
import hashlib
import os
import sys
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cnn_harness.base.errors import DataError
from cnn_harness.base.process import command_line, tf_runtime
from cnn_harness.base.process.progress import Progress
from cnn_harness.base.storage import input_files
from cnn_harness.base.storage.input_files import Slices
from cnn_harness.Datasets.formats import class_names, conversion_info, image_headers, record_texts, tf_example, tfrecord
from cnn_harness.Datasets.formats.binary_records import RecordFile, RecordLayout
from cnn_harness.Datasets.sources import image_folder, locate, registry

if TYPE_CHECKING:
    from cnn_harness.Datasets.pipeline import decoding

_stop = threading.Event()  # set by a signal, because checking a file may take long


class Checked(NamedTuple):
    """The number of records of a file, including damaged records, and a message for each damage.

    `digests` has a digest of each image, uint64, and `texts` the pairs of label and class name in the records. `hidden` is
    the number of images with transparent pixels.
    """

    records: int
    findings: list[str]
    digests: np.ndarray = np.zeros(0, np.uint64)
    texts: frozenset[tuple[int, str]] = frozenset()
    hidden: int = 0


class Work(NamedTuple):
    """The files of a data set, the check of a file, damage of the data set as a whole, and notes.

    `names` are the classes in labels.txt, if any, and `first_label` is the label of the first one.
    """

    kind: str
    files: list[Path]
    check: Callable[[Path], Checked]
    findings: list[str]
    notes: tuple[str, ...] = ()
    folder: Path | None = None  # folder with conversion.json
    held_out: frozenset[Path] = frozenset()  # files of the validation set
    names: tuple[str, ...] = ()
    first_label: int = 1


def main(argv: list[str]) -> int:
    """Parse the options, find the files, check each file, and count the damage."""
    arguments = _parse(argv)
    work = find(Path(arguments.folder), arguments.num_classes, arguments.decode)
    for line in (*work.notes, *work.findings):
        print(line)
    counts, damaged, checked = {}, len(work.findings), []
    _stop.clear()
    with Progress("files", len(work.files)) as progress, ThreadPoolExecutor(arguments.jobs) as pool:
        try:
            for file, result in zip(work.files, pool.map(work.check, work.files)):
                for finding in result.findings:
                    print(finding)
                counts[file.name] = result.records + counts.get(file.name, 0)
                damaged += len(result.findings)
                checked.append(result)
                progress.advance()
        finally:
            _stop.set()
            pool.shutdown(cancel_futures=True)
    for line in _contradictions(work, checked):
        print(f"warning: {line}")
    if work.folder:
        lost = conversion_info.differences(work.folder, counts)
        print("".join(f"{line}\n" for line in lost), end="")
        damaged += len(lost)
    records = sum(counts.values())
    files = f"{len(work.files)} file{'s' * (len(work.files) != 1)}"
    found = f"{records} record{'s' * (records != 1)}"
    print(f"{work.kind}: {files}, {found}, {damaged or 'nothing'} damaged or missing")
    return 1 if damaged else 0


def _contradictions(work: Work, checked: list[Checked]) -> list[str]:
    """Return a line for each contradiction between labels, class names and splits, and for images with hidden colours."""
    splits: dict[str, list[tuple[Path, Checked]]] = {"train": [], "validation": []}
    for file, result in zip(work.files, checked):
        splits["validation" if file in work.held_out else "train"].append((file, result))
    texts = {split: [pair for _, result in files for pair in result.texts] for split, files in splits.items()}
    lines = record_texts.contradictions(texts, work.names, work.first_label)
    train, held_out = (
        np.concatenate([np.zeros(0, np.uint64), *(result.digests for _, result in files)]) for files in splits.values()
    )
    copies = np.isin(held_out, train)
    if copies.any():
        first = next(file for file, result in splits["validation"] if np.isin(result.digests, train).any())
        lines.append(
            f"{copies.sum()} of {len(held_out)} validation images are training images, too, the first in {first}; the "
            "accuracy looks better than it is"
        )
    if hidden := sum(result.hidden for result in checked):
        first = next(file for file, result in zip(work.files, checked) if result.hidden)
        lines.append(image_headers.hidden_colours(hidden, first))
    return lines


def find(folder: Path, num_classes: int | None, decode: bool) -> Work:
    """Return the files and checks of the data set in a folder; raise DataError if the folder has no data set.

    `num_classes` is the number of classes, if there is no labels.txt.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    work = _shards(folder, num_classes, decode) or _binaries(folder) or _tree(folder, decode)
    if work is None:
        raise DataError(
            f"no data set in {folder}; give a folder with TFRecord shards train-?????-of-????? (or with train/ and "
            "validation/), CIFAR's binary files (data_batch_1.bin, train.bin), or one folder per class"
        )
    return work


def _shards(folder: Path, num_classes: int | None, decode: bool) -> Work | None:
    by_split: dict[str, list[Path]] = {"train": [], "validation": []}
    findings = []
    for split, below in (("train", ("train",)), ("validation", ("validation", "val"))):
        for place in filter(Path.is_dir, (folder, *(folder / name for name in below))):
            by_split[split] += [place / match[0] for match in tfrecord.shard_names(place, split)]
            findings += _error_of(partial(tfrecord.shards, place, split))
    files = [*by_split["train"], *by_split["validation"]]
    if not files:
        return None
    damaged = _error_of(partial(conversion_info.read, files[0].parent))
    names, named_in = class_names.beside(files[:1], folder)
    if names:
        class_names.agree(names, num_classes, str(named_in))
    first = class_names.first_label(named_in.parent)
    labels = range(first, first + (len(names) or num_classes or class_names.IMAGENET_CLASSES))
    decoder = _decoder()
    check = partial(check_shard, labels=labels, image_fault=decoder.fault if decode else lambda _: None, decode=decode)
    notes = tuple(f"warning: {line}" for line in class_names.alike(names))
    return Work(
        "TFRecord shards", files, check, findings + damaged, notes, None if damaged else files[0].parent,
        frozenset(by_split["validation"]), names, first,
    )  # fmt: skip


def _error_of(read: Callable[[], object]) -> list[str]:
    try:
        read()
    except DataError as error:
        return [str(error)]
    return []


def check_shard(file: Path, labels: range, image_fault: Callable[[bytes], str | None], decode: bool = True) -> Checked:
    """Return the damage in a shard, and facts about its records. The check ends at the first damaged length.

    Transparent pixels are searched if `decode` is true.
    """
    findings: list[str] = []
    digests, texts = array("Q"), set()
    count = hidden = 0
    try:
        with input_files.open_regular_file(file) as stream:
            content = Slices(stream)
            for offset, length in tfrecord.payload_places(file, content):
                if _stop.is_set():
                    break
                payload, damage = tfrecord.payload(content, offset, length)
                example = None if damage else tf_example.parse(payload)
                if reason := damage or tf_example.fault(example, labels, image_fault):
                    findings.append(f"{file}: record {count}: {reason}")
                else:
                    digests.append(_digest(example.encoded[0]))
                    texts.update((example.labels[0], text) for text in example.texts[:1])
                    hidden += decode and image_headers.has_transparent_pixels(example.encoded[0])
                count += 1
    except tfrecord.LostRecords as lost:
        findings.append(f"{lost.place}: {lost.reason}")
        count += lost.record is not None
    except OSError as error:
        findings.append(f"{file} cannot be read: {error.strerror}")
    except DataError as error:
        findings.append(str(error))
    return Checked(count, findings, np.array(digests, np.uint64), frozenset(texts), hidden)


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _binaries(folder: Path) -> Work | None:
    for name, known in registry.table("BINARY_FILES").items():
        wanted = (*known.train, *known.validation)
        for place in (folder, *locate.folders_called(known.folder, folder)):
            there = [place / file for file in wanted if (place / file).is_file()]
            if there:
                missing = [f"{place / file}: is missing" for file in wanted if place / file not in there]
                check = partial(check_binary, layout=known.layout, classes=registry.published_spec(name).num_classes)
                return Work(f"{name} binary files", there, check, missing)
    return None


def check_binary(file: Path, layout: RecordLayout, classes: int) -> Checked:
    """Return the wrong lengths and labels in a file. Damaged pixels cannot be found, because there are no checksums."""
    try:
        records = RecordFile(file, layout)
        labels = records.labels()
    except DataError as error:
        return Checked(0, [str(error)])
    if not records.size:
        return Checked(0, [f"{file}: is empty"])
    findings = [
        f"{file}: record {k}: its label {labels[k]} is outside 0 to {classes - 1}" for k in np.flatnonzero(labels >= classes)
    ]
    cut = bool(records.size % layout.record_bytes)
    if cut:
        findings.append(f"{file}: record {len(records)}: {tfrecord.CUT.format(size=records.size)}")
    return Checked(len(records) + cut, findings)


def _tree(folder: Path, decode: bool) -> Work | None:
    if not image_folder.is_tree(folder):
        return None
    tree = image_folder.tree(folder)
    image_fault = _decoder().fault if decode else image_headers.fault

    def check(file: Path) -> Checked:
        reason = image_headers.file_fault(file)
        try:
            content = b"" if reason else input_files.content(file, image_headers.MAX_BYTES)
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
        if reason := reason or image_fault(content):
            return Checked(1, [f"{file}: {reason}"])
        digests = np.array([_digest(content)], np.uint64)
        return Checked(1, [], digests, hidden=int(decode and image_headers.has_transparent_pixels(content)))

    held_out = [image.file for image in tree.validation or ()]
    files = [*(image.file for image in tree.train), *held_out]
    return Work("tree of images", files, check, [], tree.notes, held_out=frozenset(held_out))


def _decoder() -> decoding.Decoder:
    tf_runtime.import_tensorflow()
    from cnn_harness.Datasets.pipeline import decoding

    return decoding.Decoder()


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = command_line.Parser(
        prog="python -m Datasets.verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, whole = parser.add_argument, command_line.int_between
    add("folder", metavar="DIR", help="the data set")
    add("--decode", action=argparse.BooleanOptionalAction, default=True, help="decode every image (default)")
    labels = "number of classes, with labels from 1 to N (default: by labels.txt, else 1000)"
    add("--num-classes", type=whole(1, 2**31 - 1), metavar="N", help=labels)
    add("--jobs", type=whole(1, 256), metavar="N", default=os.cpu_count() or 1, help="number of files checked at once")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(command_line.run("verify", main, None, (DataError,), unprintable="backslashreplace"))
