"""Writes TFRecord shards of a listing: the same bytes every time.

A shard has a temporary name until it is whole and on the disk. conversion.json describes the images, the options and the
shards' sizes. A second call compares it, then writes the shards that are missing or have another size.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from base.errors import DataError
from base.fields import short
from base.process.progress import Progress
from base.storage import files, input_files
from Datasets.formats import class_names, conversion_info, tf_example, tfrecord
from Datasets.formats.image_headers import MAX_BYTES
from Datasets.sources.image_folder import Listing, Picture
from Datasets.sources.splits import shuffled

PARTIAL = ".partial"
_SHARD_BYTES = 128 << 20  # a shard by default: few files, and enough of them to work on several at once


@dataclass(frozen=True)
class Shard:
    """A file to be written, the pictures in it in their order, each with its size, and the bytes that it will have."""

    name: str
    pictures: list[tuple[Picture, int]]
    size: int


@dataclass(frozen=True)
class Plan:
    """Everything that decides the content of the shards. `manifest`: the content of conversion.json; `names`: that of the
    other files beside the shards, by name."""

    classes: tuple[str, ...]
    shards: list[Shard]
    manifest: dict[str, Any]
    names: dict[str, str]


def plan(
    listing: Listing, relative_path: Callable[[Path], str], seed: int, shards: int | None, options: dict[str, Any]
) -> Plan:
    """The shard of every picture. `relative_path`: of a file from the source's top, so that the place of the source does not
    count; `shards`: of training, None for _SHARD_BYTES each; `options`: entries of conversion.json besides."""
    split_shards: list[Shard] = []
    counts: dict[str, Any] = {}
    names = {class_names.FILE: class_names.text(listing.classes)}
    listing_hash = hashlib.sha256(names[class_names.FILE].encode())
    wanted_shards = shards
    for split, pictures in listing.splits().items():
        ordered = shuffled(pictures, relative_path, f"{seed} order")
        names[conversion_info.names_file(split)] = conversion_info.names_text(
            relative_path(picture.file) for picture in ordered
        )
        states = [picture.file.stat() for picture in ordered]
        for picture, state in zip(ordered, states):
            entry = (split, picture.label, relative_path(picture.file), state.st_size, state.st_mtime_ns)
            listing_hash.update(json.dumps(entry).encode())
        sized = [(picture, state.st_size) for picture, state in zip(ordered, states)]
        count = _shard_count(split, len(sized), sum(size for _, size in sized), wanted_shards)
        wanted_shards = max(1, round(shards * len(listing.validation or ()) / len(listing.train))) if shards else None
        counts |= {f"{split} pictures": len(sized), f"{split} shards": count}
        for name, cut in conversion_info.cuts(split, len(sized), count).items():
            part = sized[cut.start : cut.stop]
            split_shards.append(Shard(name, part, sum(_record_bytes(*each, listing.classes) for each in part)))
    manifest = {"format": conversion_info.FORMAT, "seed": seed, **options, **counts, "classes": len(listing.classes)}
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in names.items()}
    manifest |= {"listing": listing_hash.hexdigest(), conversion_info.DIGESTS: digests}
    manifest[conversion_info.BYTES] = [shard.size for shard in split_shards]
    return Plan(listing.classes, split_shards, manifest, names)


@contextmanager
def exclusive(target: Path, plan: Plan) -> Iterator[list[Shard]]:
    """Lock the folder for this conversion, write the files beside the shards, and yield the shards that are missing or have
    another size."""
    target.mkdir(parents=True, exist_ok=True)
    folder = os.open(target, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another conversion is writing into {target}; wait for it or stop it") from None
        _check_content(target, plan)
        manifest = json.dumps(plan.manifest, indent=2) + "\n"
        for name, text in ((conversion_info.FILE, manifest), *plan.names.items()):
            with _replacing(target / name) as stream:
                stream.write(text.encode())
        yield [shard for shard in plan.shards if not _has_size(target / shard.name, shard.size)]
    finally:
        os.close(folder)


def _has_size(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


def write(target: Path, plan: Plan, missing: list[Shard], jobs: int) -> None:
    """Write the shards, `jobs` at once; the first failure stops all."""
    stop = threading.Event()
    with Progress("pictures", sum(len(shard.pictures) for shard in missing)) as progress, ThreadPoolExecutor(jobs) as pool:
        try:
            writing = [pool.submit(_write_shard, target, shard, plan.classes, progress, stop) for shard in missing]
            for each in wait(writing, return_when=FIRST_EXCEPTION).done:
                each.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


class _Stopped(Exception):
    """Another shard has failed, or a signal has come."""


def _write_shard(target: Path, shard: Shard, classes: tuple[str, ...], progress: Progress, stop: threading.Event) -> None:
    with _replacing(target / shard.name) as stream:
        for picture, size in shard.pictures:
            if stop.is_set():
                raise _Stopped
            content = input_files.content(picture.file, MAX_BYTES)
            if len(content) != size:
                raise DataError(f"{picture.file} changed while it was converted; begin again with an empty target")
            stream.write(tfrecord.framed(tf_example.serialised(content, picture.label, classes[picture.label - 1])))
            progress.advance()


def _record_bytes(picture: Picture, size: int, classes: tuple[str, ...]) -> int:
    return tfrecord.FRAME_BYTES + tf_example.length(size, picture.label, classes[picture.label - 1])


@contextmanager
def _replacing(file: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that has a temporary name until its bytes are on the disk."""
    partial = file.with_name(file.name + PARTIAL)
    partial.unlink(missing_ok=True)  # a killed conversion may have left it, and a link would be written through
    try:
        with files.naming(partial):
            with partial.open("xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_content(target: Path, plan: Plan) -> None:
    """Refuse a folder that holds anything but this conversion. conversion.json is written first: without it, even files of
    the right names and sizes are of something else."""
    ours = {conversion_info.FILE, *plan.names, *(shard.name for shard in plan.shards)}
    recorded = conversion_info.content(target / conversion_info.FILE)
    there = plan.manifest if recorded is None else recorded
    names = [name for name in {**there, **plan.manifest} if there.get(name) != plan.manifest.get(name)]
    names = [name for name in names if name not in (conversion_info.DIGESTS, conversion_info.BYTES)]  # which follow
    if names:
        found, wanted = (short(described.get(names[0])) for described in (there, plan.manifest))
        changed = f"its {short(names[0])} is {found}, not {wanted}"
        if names == ["listing"]:
            changed = "the source's files have changed since (names, sizes or times)"
        raise DataError(f"{target} holds another conversion: {changed}; give another folder, or remove this one")
    whole = {conversion_info.FILE} if recorded is None else ours
    others = sorted(set(os.listdir(target)) - whole - {f"{name}{PARTIAL}" for name in ours})
    if others:
        raise DataError(
            f"{target} holds other things already: {others[0]}; give a new or empty folder, or one of an interrupted "
            "conversion"
        )


def _shard_count(split: str, pictures: int, size: int, wanted: int | None) -> int:
    if wanted is None:
        return max(1, min(pictures, conversion_info.MAX_SHARDS, -(-size // _SHARD_BYTES)))
    if wanted > pictures:
        raise DataError(f"--shards {wanted} is more than the {pictures} pictures for {split}; give at most that many")
    return wanted
