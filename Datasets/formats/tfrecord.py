"""TFRecord shards: their numbering, the place of each record, and its bytes (tfrecord_recovery.py has the framing).

A walk reads only the twelve bytes before every payload, and the user's cache keeps its result for large sets; a payload's
checksum is verified when the payload is read.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from base.errors import DataError
from base.storage import cache, checksums, input_files, npz
from Datasets._spec import regular_size
from Datasets.formats import file_names, tfrecord_recovery
from Datasets.formats.bad_records import Tolerance
from Datasets.formats.image_headers import MAX_BYTES
from Datasets.formats.tfrecord_recovery import FOOTER_BYTES, HEADER_BYTES

_SHARD = re.compile(r"(?P<split>\w+)-(?P<number>\d{5})-of-(?P<total>\d{5})", re.ASCII)
_WALKERS = 16  # files walked at once: the time goes into waiting for the disc, which a mapped file would do one by one
_NAMED = 5
_HEADERS_TOGETHER = 4096  # whose checksums are looked at in one call
_MIN_CACHED = 1 << 30  # bytes of shards
_LARGEST_INDEX = 1 << 30  # bytes of an index: some 60 million records
_DAMAGED = "the file is damaged there (its checksum does not match)"


def named(folder: Path, split: str) -> list[re.Match[str]]:
    """Return the matches of the file names that are those of a split's shards, in the order of the names."""
    return [match for name in sorted(os.listdir(folder)) if (match := _SHARD.fullmatch(name)) and match["split"] == split]


def shards(folder: Path, split: str) -> list[Path]:
    """All shards of a split, in order; [] when there is none. Incomplete sets are an error."""
    matches = named(folder, split)
    if not matches:
        return []
    totals = sorted({match["total"] for match in matches})
    if len(totals) > 1:
        raise DataError(f"{folder} mixes sets of {split} shards: of {', of '.join(totals)}; keep one set there")
    wanted = [f"{split}-{i:05d}-of-{totals[0]}" for i in range(int(totals[0]))]
    missing = sorted(set(wanted) - {match.string for match in matches})
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise DataError(
            f"{folder} lacks {len(missing)} of {len(wanted)} {split} shards: {', '.join(missing[:_NAMED])}{more}"
        )
    if len(matches) > len(wanted):
        raise DataError(f"{folder} has {split} shards numbered beyond their total of {len(wanted)}: {matches[-1].string}")
    return [folder / name for name in wanted]


def part(files: list[Path], percentage: int, least: int = 0) -> list[Path]:
    """The first `percentage` of the shards, `least` of them anyway; DataError if none is left."""
    count = max(len(files) * percentage // 100, least)
    if files and not count:
        raise DataError(
            f"--dataset-percentage-to-use {percentage} of {len(files)} shards "
            f"({files[0].name} ...) leaves none; give at least {-(-100 // len(files))}"
        )
    return files[:count]


def count(file: Path) -> int:
    """The records of a shard; DataError if their lengths do not lead through it."""
    return len(_walk_whole(file)[0])


class RecordIndex:
    """The place of every record of a list of shards; records are numbered through all shards, in order.

    `tolerance`: the limit on places with damaged lengths that are passed over. `environ`: has the place of the user's cache;
    None caches nothing.
    """

    def __init__(
        self, files: Sequence[Path], tolerance: Tolerance | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._files = list(files)
        cache_file = _index_path(self._files, environ) if environ is not None else None
        index = _load_index(cache_file, len(self._files)) if cache_file else None
        if index is None:
            with ThreadPoolExecutor(_WALKERS) as pool:
                walks = list(pool.map(partial(_walk, tolerance=tolerance or Tolerance(0)), self._files))
            index = tuple(np.concatenate([part[k] for part in walks]) for k in range(2))
            index = (np.array([len(part[0]) for part in walks], np.int64), *index)
            if cache_file and not any(part[2] for part in walks):
                _save_index(cache_file, index)
        self._ends, self._offsets, self._lengths = np.cumsum(index[0]), index[1], index[2]

    def __len__(self) -> int:
        return len(self._offsets)

    def counts(self) -> dict[str, int]:
        """The records of each shard, by the file's name."""
        return {file.name: int(number) for file, number in zip(self._files, np.diff(self._ends, prepend=0))}

    def name(self, record: int) -> str:
        """File and the record's number in it, for messages."""
        file, number = self._place(record)
        return f"{file}: record {number}"

    def picture(self, record: int) -> str:
        """The file that the record's picture was converted from, if that is known; otherwise the record's place."""
        return self._pictures[record] if self._pictures else self.name(record)

    @cached_property
    def _pictures(self) -> tuple[str, ...]:
        first = self._files[0]
        return file_names.read(first.parent, first.name.partition("-")[0], self.counts())

    def payload(self, record: int) -> bytes:
        """Return a record's bytes; DataError if it is damaged. The file is opened anew: a thousand shards would use up the
        descriptors."""
        payload, whole = self._stored(record)
        if not whole:
            raise DataError(f"{self.name(record)} cannot be used: {_DAMAGED}")
        return payload

    def damage(self, record: int) -> str | None:
        """The fault by the stored checksum of one payload."""
        return None if self._stored(record)[1] else _DAMAGED

    def _stored(self, record: int) -> tuple[bytes, bool]:
        """A payload, and whether its checksum matches."""
        length = int(self._lengths[record])
        if length > MAX_BYTES:
            reason = tfrecord_recovery.TOO_LONG.format(length=length, most=MAX_BYTES)
            raise DataError(f"{self.name(record)} cannot be used: {reason}")
        both = self._read(record, length + FOOTER_BYTES)
        payload, stored = both[:-FOOTER_BYTES], int.from_bytes(both[-FOOTER_BYTES:], "little")
        return payload, checksums.masked(payload) == stored

    def _read(self, record: int, size: int) -> bytes:
        file, _ = self._place(record)
        try:
            with input_files.open_regular_file(file) as stream:
                data = os.pread(stream.fileno(), size, int(self._offsets[record]))
        except OSError as error:
            raise DataError(f"{self.name(record)} cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise DataError(f"{self.name(record)} cannot be read: {input_files.SHORTER}")
        return data

    def _place(self, record: int) -> tuple[Path, int]:
        k = int(np.searchsorted(self._ends, record, side="right"))
        return self._files[k], record - (int(self._ends[k - 1]) if k else 0)


def _index_path(files: Sequence[Path], environ: Mapping[str, str]) -> Path | None:
    """The cache's file for the index of these very files; None for small sets, which are walked as fast."""
    if sum(map(regular_size, files)) < _MIN_CACHED:
        return None
    stats = [file.stat() for file in files]
    identity = repr([(str(file.resolve()), stat.st_size, stat.st_mtime_ns) for file, stat in zip(files, stats)])
    return cache.folder(environ) / f"records-{hashlib.sha256(identity.encode()).hexdigest()[:20]}.npz"


def _save_index(path: Path, index: tuple[np.ndarray, ...]) -> None:
    """Best effort: without it the files are walked again."""
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(beside, counts=index[0], offsets=index[1], lengths=index[2])
        os.replace(beside, path)
    except OSError:
        with suppress(OSError):  # the folder may not be entered
            beside.unlink()


def _load_index(path: Path, files: int) -> tuple[np.ndarray, ...] | None:
    """Counts, offsets and lengths from the cache, int64; None without an intact file."""
    try:
        arrays = npz.read(path, _LARGEST_INDEX)
        counts, offsets, lengths = (arrays[name] for name in ("counts", "offsets", "lengths"))
    except (OSError, ValueError, KeyError):
        return None
    if any(each.dtype != np.int64 or each.ndim != 1 or (each < 0).any() for each in (counts, offsets, lengths)):
        return None
    return (counts, offsets, lengths) if len(counts) == files and counts.sum() == len(offsets) == len(lengths) else None


def _walk(file: Path, tolerance: Tolerance) -> tuple[np.ndarray, np.ndarray, bool]:
    """Offsets and lengths of the payloads of one shard, int64, and whether damage was passed over."""
    try:
        return (*_walk_whole(file), False)
    except DataError:
        if not tolerance.most:
            raise
    stretches = tfrecord_recovery.walk(file)
    for stretch in stretches:
        if isinstance(stretch, tfrecord_recovery.Damage):
            tolerance.add(f"{file}: byte {stretch.offset}", stretch.reason)
    if not stretches:
        tolerance.add(str(file), "it is empty")
    records = tfrecord_recovery.records(stretches)
    return np.array([r.offset for r in records], np.int64), np.array([r.length for r in records], np.int64), True


def _walk_whole(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and lengths of the payloads of one shard, every length checked.

    A wrong length leads astray (a stretch of zeros through millions of records), so the walk looks back now and then.
    """
    size, at, counted = regular_size(file), 0, 0
    if not size:
        raise DataError(f"{file} is empty; copy it again")
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    with input_files.open_regular_file(file) as stream:
        tfrecord_recovery.check_compression(file, os.pread(stream.fileno(), HEADER_BYTES, 0))
        while at < size:
            offsets: list[int] = []
            headers: list[bytes] = []
            whole = True
            while whole and at < size and len(headers) < _HEADERS_TOGETHER:
                header = os.pread(stream.fileno(), HEADER_BYTES, at)
                end = at + HEADER_BYTES + int.from_bytes(header[:8], "little") + FOOTER_BYTES
                offsets.append(at + HEADER_BYTES)
                headers.append(header)
                whole = len(header) == HEADER_BYTES and end <= size
                at = end
            _check_lengths(file, counted, headers, whole, size)
            parts.append((np.array(offsets, np.int64), np.frombuffer(b"".join(h[:8] for h in headers), "<i8")))
            counted += len(headers)
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _check_lengths(file: Path, first: int, headers: list[bytes], ended: bool, size: int) -> None:
    """The first record whose length's checksum fails is the one to name. `first`: the number of the first header's."""
    whole = [header for header in headers if len(header) == HEADER_BYTES]
    fields = np.frombuffer(b"".join(whole), np.uint8).reshape(-1, HEADER_BYTES)
    stored = np.ascontiguousarray(fields[:, 8:]).view("<u4")[:, 0]
    wrong = np.flatnonzero(checksums.masked_rows(fields[:, :8]) != stored)
    if wrong.size:
        raise DataError(
            f"{file}: record {first + wrong[0]} has an impossible length (its checksum does not match); is the file "
            "damaged, or no TFRecord file? Copy it again"
        )
    if not ended:
        number = first + len(headers) - 1
        raise DataError(f"{file}: record {number} is cut short, the file ends at byte {size}; copy it again")
