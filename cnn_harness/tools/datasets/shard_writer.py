"""Write the images of a listing as TFRecord shards. Equal images and options give equal files.

A marker file exists in the folder until every other file is on disk, so that an interrupted conversion is recognised.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cnn_harness.base.errors import DataError
from cnn_harness.base.process.progress import Progress
from cnn_harness.base.storage import files, input_files
from cnn_harness.Datasets.formats import class_names, conversion_info, tf_example, tfrecord
from cnn_harness.Datasets.formats.image_headers import MAX_BYTES
from cnn_harness.Datasets.sources.image_folder import ImageFile, Listing, shuffled

_SHARD = re.compile(r"(train|validation)-\d{5}-of-\d{5}", re.ASCII)
_SHARD_BYTES = 128 << 20  # default size of a shard: this gives few files, but enough for parallel work

Shards = dict[str, list[ImageFile]]  # name of a shard -> images in order


def plan(listing: Listing, relative_path: Callable[[Path], str], seed: int, shards: int | None) -> Shards:
    """Return the images of each shard.

    `relative_path` returns a file's path inside the source, so that the order does not depend on the source's location.
    `shards` is the number of training shards; None makes shards of about _SHARD_BYTES.
    """
    planned: Shards = {}
    for split, images in listing.splits().items():
        count = shards if split == "train" else shards and max(1, round(shards * len(images) / len(listing.train)))
        if count is None:
            size = sum(image.file.stat().st_size for image in images)
            count = max(1, min(len(images), tfrecord.MAX_SHARDS, -(-size // _SHARD_BYTES)))
        if count > len(images):
            raise DataError(
                f"--shards {shards} makes {count} shards of the {len(images)} images for {split}; give a smaller number"
            )
        ordered = shuffled(images, relative_path, f"{seed} order")
        ends = [k * len(images) // count for k in range(count + 1)]
        planned |= {f"{split}-{k:05d}-of-{count:05d}": ordered[ends[k] : ends[k + 1]] for k in range(count)}
    return planned


def write(target: Path, planned: Shards, classes: tuple[str, ...], relative_path: Callable[[Path], str], jobs: int) -> None:
    """Write the shards, `jobs` at once, and the files with class names and file names. The first failure stops all work.

    Raise DataError if the folder contains anything except an interrupted conversion.
    """
    stop = threading.Event()
    count = sum(map(len, planned.values()))
    with _marked(target), Progress("images", count) as progress, ThreadPoolExecutor(jobs) as pool:
        try:
            writing = [
                pool.submit(_write_shard, target / name, images, classes, progress, stop) for name, images in planned.items()
            ]
            for each in wait(writing, return_when=FIRST_EXCEPTION).done:
                each.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
        _write_text(target / class_names.FILE, class_names.text(classes))
        for split in ("train", "validation"):
            images = [each for name, part in planned.items() if name.startswith(split) for each in part]
            if images:
                names = conversion_info.names_text(relative_path(image.file) for image in images)
                _write_text(target / conversion_info.names_file(split), names)
        records = {name: len(images) for name, images in planned.items()}
        _write_text(target / conversion_info.FILE, json.dumps({"records": records}, indent=1) + "\n")


@contextmanager
def _marked(target: Path) -> Iterator[None]:
    """Lock and mark a new or empty folder. Delete the files of an interrupted conversion first."""
    target.mkdir(parents=True, exist_ok=True)
    mark, there = target / conversion_info.UNFINISHED, os.listdir(target)
    ours = {mark.name, class_names.FILE, conversion_info.FILE, *map(conversion_info.names_file, ("train", "validation"))}
    others = [name for name in sorted(there) if name not in ours and not _SHARD.fullmatch(name)]
    if others or (there and mark.name not in there):
        raise DataError(
            f"{target} is not empty: it has {(others or sorted(there))[0]}; give a new or empty folder, or the "
            "folder of an interrupted conversion"
        )
    with mark.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another conversion is writing into {target}; wait for it or stop it") from None
        for name in {*there} - {mark.name}:
            (target / name).unlink()
        yield
        mark.unlink()


def _write_shard(
    file: Path, images: list[ImageFile], classes: tuple[str, ...], progress: Progress, stop: threading.Event
) -> None:
    with _written(file) as stream:
        for image in images:
            if stop.is_set():  # another shard failed, or a signal came
                return
            content = input_files.content(image.file, MAX_BYTES)
            stream.write(tfrecord.framed(tf_example.serialised(content, image.label, classes[image.label - 1])))
            progress.advance()


def _write_text(file: Path, text: str) -> None:
    with _written(file) as stream:
        stream.write(text.encode())


@contextmanager
def _written(file: Path) -> Iterator[BinaryIO]:
    """Open a new file, and sync it to disk at the exit."""
    with files.naming(file), file.open("xb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
