"""Writes TFRecord shards of a listing: the same bytes every time, and only shards that are missing or cut short.

A shard has a temporary name until it is whole and on the disc. conversion.json describes the pictures and options, which a
second call compares before it goes on, and, when all shards are there, their bytes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from base import bounds
from base.errors import DataError
from base.fields import brief
from base.process import tf_runtime
from base.process.progress import Progress
from base.storage import files, input_files
from Datasets.formats import class_names, conversion_info, file_names, tfrecord
from Datasets.formats.conversion_info import WrittenShard
from Datasets.formats.image_headers import MAX_BYTES
from Datasets.sources.image_folder import Listing, Picture
from Datasets.sources.splits import shuffled

PARTIAL = ".partial"
_WALKERS = 8  # shards counted at once: the time goes into waiting for the disc
_SHARD_BYTES = 128 << 20  # a shard by default: few files, and enough of them to work on several at once


@dataclass(frozen=True)
class Shard:
    """A file to be written, and the pictures in it in their order, each with its size."""

    name: str
    pictures: list[tuple[Picture, int]]


@dataclass(frozen=True)
class Plan:
    """Everything that decides the content of the shards. `manifest`: the content of conversion.json; `names`: that of the
    other files beside the shards, by name."""

    classes: tuple[str, ...]
    shards: list[Shard]
    manifest: dict[str, Any]
    names: dict[str, str]

    def account(self, written: Mapping[str, WrittenShard]) -> str:
        """The content of conversion.json, with the bytes of these of the shards as long as it can be read."""
        own = {shard.name: written[shard.name] for shard in self.shards if shard.name in written}
        texts = [json.dumps({**self.manifest, **more}, indent=2) + "\n" for more in ({conversion_info.SHARDS: own}, {})]
        return texts[0] if own and len(texts[0]) <= bounds.TEXT else texts[1]


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
        names[file_names.file(split)] = file_names.text(relative_path(picture.file) for picture in ordered)
        states = [picture.file.stat() for picture in ordered]
        for picture, state in zip(ordered, states):
            entry = (split, picture.label, relative_path(picture.file), state.st_size, state.st_mtime_ns)
            listing_hash.update(json.dumps(entry).encode())
        sized = [(picture, state.st_size) for picture, state in zip(ordered, states)]
        count = _shard_count(split, len(sized), sum(size for _, size in sized), wanted_shards)
        wanted_shards = max(1, round(shards * len(listing.validation or ()) / len(listing.train))) if shards else None
        counts |= {f"{split} pictures": len(sized), f"{split} shards": count}
        split_shards += [
            Shard(name, sized[cut.start : cut.stop]) for name, cut in conversion_info.cuts(split, len(sized), count).items()
        ]
    manifest = {"format": conversion_info.FORMAT, "seed": seed, **options, **counts, "classes": len(listing.classes)}
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in names.items()}
    manifest |= {"listing": listing_hash.hexdigest(), conversion_info.DIGESTS: digests}
    return Plan(listing.classes, split_shards, manifest, names)


@contextmanager
def exclusive(target: Path, plan: Plan) -> Iterator[list[Shard]]:
    """Lock the folder for this conversion; yield the shards that it lacks, or has cut short. When they are written, their
    bytes are told of."""
    target.mkdir(parents=True, exist_ok=True)
    folder = os.open(target, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another conversion is writing into {target}; wait for it or stop it") from None
        written = _check_content(target, plan)
        for name, text in ((conversion_info.FILE, plan.account(written)), *plan.names.items()):
            _put(target / name, text)
        with ThreadPoolExecutor(_WALKERS) as pool:
            whole = list(pool.map(lambda shard: _is_whole(target, shard, written.get(shard.name)), plan.shards))
            untold = [shard.name for shard, there in zip(plan.shards, whole) if there and shard.name not in written]
            written |= zip(untold, pool.map(lambda name: WrittenShard.of(target / name), untold))
            times = Counter(written.values())
            copies = {name for name in untold if times[written[name]] > 1}  # one in the place of another
            missing = [shard for shard, there in zip(plan.shards, whole) if not there or shard.name in copies]
            yield missing
            written |= {shard.name: WrittenShard.of(target / shard.name) for shard in missing}
        _put(target / conversion_info.FILE, plan.account(written))
    finally:
        os.close(folder)


def _holds(file: Path, text: str) -> bool:
    """Return whether a file is there and has this content; other class names would be those of other labels."""
    expected = text.encode()
    try:
        return input_files.content(file, len(expected)) == expected
    except OSError:
        return False


def _put(file: Path, text: str) -> None:
    if not _holds(file, text):
        with files.naming(file):
            _new(file.with_name(file.name + PARTIAL)).write_text(text, encoding="utf-8")
            _finish(file)


def _is_whole(target: Path, shard: Shard, written: WrittenShard | None) -> bool:
    """Return whether a shard is there as it was written, or, where that is not known, with a record for each of its
    pictures."""
    file = target / shard.name
    if not file.exists():
        return False
    try:
        return WrittenShard.of(file) == written if written else tfrecord.count(file) == len(shard.pictures)
    except (DataError, OSError):  # it is cut within a record, or no file
        return False


def write(target: Path, plan: Plan, missing: list[Shard], jobs: int) -> None:
    """Write the shards, `jobs` at once; the first failure stops all."""
    tf_runtime.import_tensorflow()
    stop = threading.Event()
    with Progress("pictures", sum(len(shard.pictures) for shard in missing)) as progress, ThreadPoolExecutor(jobs) as pool:
        try:
            writing = [pool.submit(_write_shard, target, shard, plan.classes, progress, stop) for shard in missing]
            for each in writing:
                each.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _write_shard(target: Path, shard: Shard, classes: tuple[str, ...], progress: Progress, stop: threading.Event) -> None:
    import tensorflow.compat.v1 as tf

    from Datasets.formats import tf_example

    partial = _new(target / (shard.name + PARTIAL))
    try:
        with tf.io.TFRecordWriter(os.fsencode(partial)) as writer:
            for picture, size in shard.pictures:
                if stop.is_set():
                    break
                writer.write(tf_example.serialised(_content(picture.file, size), picture.label, classes[picture.label - 1]))
                progress.advance()
        if not stop.is_set():
            _finish(target / shard.name)
    except BaseException as error:
        stop.set()
        if isinstance(error, tf.errors.OpError):
            raise OSError(f"{partial} cannot be written: {error.message.rpartition('; ')[2]}") from None
        raise
    finally:
        partial.unlink(missing_ok=True)


def _new(file: Path) -> Path:
    """A temporary name that nothing has: a killed conversion may have left it, and a link would be written through."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{file} cannot be replaced: {error.strerror}; remove it") from None
    return file


def _content(file: Path, size: int) -> bytes:
    content = input_files.content(file, MAX_BYTES)
    if len(content) != size:
        raise DataError(f"{file} changed while it was converted; begin again with an empty target")
    return content


def _finish(file: Path) -> None:
    """Rename a whole file from its temporary name, once its bytes are on the disc."""
    partial = file.with_name(file.name + PARTIAL)
    for path in (partial, file.parent):
        if path == file.parent:
            os.replace(partial, file)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _check_content(target: Path, plan: Plan) -> dict[str, WrittenShard]:
    """Return the bytes of shards that conversion.json tells of. DataError for a folder that holds anything but this
    conversion, as far as it has come. conversion.json is written first: without it even files of the right names and sizes
    are of something else."""
    ours = {conversion_info.FILE, *plan.names, *(shard.name for shard in plan.shards)}
    recorded = conversion_info.content(target / conversion_info.FILE)
    there = plan.manifest if recorded is None else recorded
    names = [name for name in {**there, **plan.manifest} if there.get(name) != plan.manifest.get(name)]
    names = [name for name in names if name not in (conversion_info.DIGESTS, conversion_info.SHARDS)]  # which follow
    if names:
        found, wanted = (brief(described.get(names[0])) for described in (there, plan.manifest))
        changed = f"its {brief(names[0])} is {found}, not {wanted}"
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
    return conversion_info.written_shards(recorded or {})


def _shard_count(split: str, pictures: int, size: int, wanted: int | None) -> int:
    if wanted is None:
        return max(1, min(pictures, conversion_info.MAX_SHARDS, -(-size // _SHARD_BYTES)))
    if wanted > pictures:
        raise DataError(f"--shards {wanted} is more than the {pictures} pictures for {split}; give at most that many")
    return wanted
