"""TFRecord shards: their numbering, and the position and bytes of each record.

A record consists of a length (8 bytes, little-endian), the length's checksum (4 bytes), the payload, and the payload's
checksum (4 bytes). To build an index, only the twelve bytes before each payload are read. For large data sets, the index
is saved in the user's cache. A payload's checksum is verified when the payload is read. After a damaged length, the rest
of the shard is lost, because nothing shows where the next record begins.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

import google_crc32c
import numpy as np

from cnn_harness.base.errors import DataError
from cnn_harness.base.storage import cache, files, input_files
from cnn_harness.base.storage.input_files import Slices
from cnn_harness.Datasets.formats import conversion_info
from cnn_harness.Datasets.formats.bad_records import Tolerance
from cnn_harness.Datasets.formats.folder_names import split_of
from cnn_harness.Datasets.formats.image_headers import MAX_BYTES

_SHARD = re.compile(  # train-00000-of-00004, val-00000-of-00008.tfrecord, name-train.tfrecord-00000-of-00064, train.tfrecord
    r"(?P<name>.+?)(?:\.tfrecords?)?-(?P<number>\d+)-of-(?P<total>\d+)(?:\.tfrecords?)?|(?P<single>.+)\.tfrecords?", re.ASCII
)
_WALKERS = 16  # number of files indexed at once, because most of the time is spent waiting for the disk
_NAMED = 5
_MIN_CACHED = 1 << 30  # the index is saved if the shards have at least this number of bytes
_LENGTH_BYTES, _HEADER_BYTES, _FOOTER_BYTES = 8, 12, 4
MAX_SHARDS = 99_999  # shard numbers have five digits
CUT = "it is truncated: the file ends at byte {size}"
_COMPRESSIONS = {"gzip": re.compile(rb"\x1f\x8b"), "zlib": re.compile(rb"\x78[\x01\x5e\x9c\xda]")}  # first bytes


class LostRecords(DataError):
    """The records of a file cannot be found, from number `record` to the end. `record` is None if the file is empty."""

    def __init__(self, file: Path, record: int | None, reason: str) -> None:
        self.place = str(file) if record is None else _place_name(file, record)
        super().__init__(f"{self.place} cannot be used: {reason}")
        self.record, self.reason = record, reason


def shard_names(folder: Path, split: str) -> list[re.Match[str]]:
    """Return the names of a split's shards in a folder, sorted, as matches of _SHARD."""
    matches = map(_SHARD.fullmatch, sorted(os.listdir(folder)))
    return [match for match in matches if match and split_of(match["name"] or match["single"]) == split]


def shards(folder: Path, split: str) -> list[Path]:
    """Return all shards of a split, in order; [] if there is none. Raise DataError for an incomplete set."""
    matches = shard_names(folder, split)
    sets = sorted({_numbered(match, "?" * len(match["number"] or "")) for match in matches})
    if len(sets) > 1:
        raise DataError(f"{folder} has several sets of {split} shards: {', '.join(sets)}; keep one set there")
    if matches and matches[0]["number"]:
        total, digits = int(matches[0]["total"]), len(matches[0]["number"])
        wanted = [_numbered(matches[0], f"{i:0{digits}d}") for i in range(min(total, MAX_SHARDS))]
        there = {match[0] for match in matches}
        if missing := [name for name in wanted if name not in there]:
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            raise DataError(f"{folder} lacks {len(missing)} of {total} {split} shards: {', '.join(missing[:_NAMED])}{more}")
        if len(there) > len(wanted):
            raise DataError(f"{folder} has {split} shards numbered beyond their total of {total}: {matches[-1][0]}")
    return [folder / match[0] for match in matches]


def _numbered(match: re.Match[str], number: str) -> str:
    """Return a shard's name with another number, or "*.tfrecord" if the name has no number."""
    if match["number"] is None:
        return "*.tfrecord"
    return match[0][: match.start("number")] + number + match[0][match.end("number") :]


def part(files: list[Path], percentage: int, least: int = 0) -> list[Path]:
    """Return the first `percentage` of the shards, but at least `least` shards; raise DataError if no shard is left."""
    count = max(len(files) * percentage // 100, least)
    if files and not count:
        raise DataError(
            f"--dataset-percentage-to-use {percentage} of {len(files)} shards "
            f"({files[0].name} ...) leaves no shard; give a percentage of at least {-(-100 // len(files))}"
        )
    return files[:count]


def framed(payload: bytes) -> bytes:
    """Return a record with this payload: lengths and checksums are added."""
    length = len(payload).to_bytes(_LENGTH_BYTES, "little")
    return b"".join((length, masked_checksum(length), payload, masked_checksum(payload)))


def payload_places(file: Path, content: Slices) -> Iterator[tuple[int, int]]:
    """Yield the offset and length of every payload in `content`, the bytes of the shard `file`.

    Raise LostRecords at a damaged length, and DataError for a compressed file.
    """
    at, number, size = 0, 0, len(content)
    if not size:
        raise LostRecords(file, None, "it is empty")
    while at < size:
        header = content[at : at + _HEADER_BYTES]
        length = header[:_LENGTH_BYTES]
        if len(header) == _HEADER_BYTES and masked_checksum(length) != header[_LENGTH_BYTES:]:
            if not number:
                _check_compression(file, header)
            rest = f"remaining {size - at:,} bytes of the file are lost"
            raise LostRecords(file, number, f"its length is damaged (its checksum does not match), so the {rest}")
        offset, payload_bytes = at + _HEADER_BYTES, int.from_bytes(length, "little")
        at = offset + payload_bytes + _FOOTER_BYTES
        if len(header) < _HEADER_BYTES or at > size:
            raise LostRecords(file, number, CUT.format(size=size))
        yield offset, payload_bytes
        number += 1


def payload(content: Slices, offset: int, length: int) -> tuple[bytes, str | None]:
    """Return a record's payload, and the reason why it cannot be used, or None."""
    if length > MAX_BYTES:
        return b"", f"it has {length} bytes, more than the limit of {MAX_BYTES}"
    found = content[offset : offset + length]
    whole = len(found) == length and masked_checksum(found) == content[offset + length : offset + length + _FOOTER_BYTES]
    return found, None if whole else "its content is damaged (its checksum does not match)"


def masked_checksum(part: bytes) -> bytes:
    """Return the masked CRC-32C of a length or a payload, as TFRecord files store it."""
    crc = google_crc32c.value(part)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return masked.to_bytes(_FOOTER_BYTES, "little")


def _check_compression(file: Path, header: bytes) -> None:
    """Raise DataError for a compressed file, because records are read at their offsets."""
    for name, beginning in _COMPRESSIONS.items():
        if beginning.match(header):
            raise DataError(f"{file} is compressed ({name}), which is not supported; decompress all shards")


def _place_name(file: Path, record: int) -> str:
    return f"{file}: record {record}"


class RecordIndex:
    """The position of every record in a list of shards. Records are numbered consecutively through all shards.

    `tolerance` limits the number of damaged lengths to skip. `environ` has the environment variables that locate the
    user's cache; None disables the cache.
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
            if cache_file and all(part[2] for part in walks):
                _save_index(cache_file, index)
        self._ends, self._offsets, self._lengths = np.cumsum(index[0]), index[1], index[2]

    def __len__(self) -> int:
        return len(self._offsets)

    def counts(self) -> dict[str, int]:
        """Return the number of records of each shard, by file name."""
        return {file.name: int(number) for file, number in zip(self._files, np.diff(self._ends, prepend=0))}

    def name(self, record: int) -> str:
        """Return the shard and the record's number in it, for messages."""
        return _place_name(*self._place(record))

    def image_file(self, record: int) -> str:
        """Return the image file that the record was converted from, or `name` if it is unknown."""
        return self._image_files[record] if self._image_files else self.name(record)

    @cached_property
    def _image_files(self) -> tuple[str, ...]:
        first = self._files[0]
        return conversion_info.read_names(first.parent, first.name.partition("-")[0], self.counts())

    def payload(self, record: int) -> bytes:
        """Return a record's bytes; raise DataError if it is damaged.

        The file is opened for each read, because a thousand open shards would exhaust the file descriptors.
        """
        file, _ = self._place(record)
        try:
            with input_files.open_regular_file(file) as stream:
                content, damage = payload(Slices(stream), int(self._offsets[record]), int(self._lengths[record]))
        except OSError as error:
            raise DataError(f"{self.name(record)} cannot be read: {error.strerror}") from error
        if damage:
            raise DataError(f"{self.name(record)} cannot be used: {damage}")
        return content

    def copy_of(self, payload: bytes, near: int, most: int) -> int | None:
        """Return a record with this payload, or None. Read at most `most` stored checksums, nearest to number `near`."""
        alike = np.flatnonzero(self._lengths == len(payload))
        wanted = masked_checksum(payload)
        for record in alike[np.argsort(np.abs(alike - near), kind="stable")][:most].tolist():
            end = int(self._offsets[record]) + len(payload)
            try:
                with input_files.open_regular_file(self._place(record)[0]) as stream:
                    if Slices(stream)[end : end + _FOOTER_BYTES] == wanted:
                        return record
            except OSError:  # a later read of the record reports the error
                continue
        return None

    def _place(self, record: int) -> tuple[Path, int]:
        k = int(np.searchsorted(self._ends, record, side="right"))
        return self._files[k], record - (int(self._ends[k - 1]) if k else 0)


def _index_path(files: Sequence[Path], environ: Mapping[str, str]) -> Path | None:
    """Return the cache file for the index of exactly these files; None for small data sets, whose index is not saved."""
    try:
        stats = [file.stat() for file in files]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from None
    if sum(stat.st_size for stat in stats) < _MIN_CACHED:
        return None
    identity = repr([(str(file.resolve()), stat.st_size, stat.st_mtime_ns) for file, stat in zip(files, stats)])
    return cache.folder(environ) / f"records-{hashlib.sha256(identity.encode()).hexdigest()[:20]}.npz"


def _save_index(path: Path, index: tuple[np.ndarray, ...]) -> None:
    content = io.BytesIO()
    np.savez(content, counts=index[0], offsets=index[1], lengths=index[2])
    with suppress(OSError):  # without a cache file, the shards are indexed again
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, content.getbuffer())


def _load_index(path: Path, files: int) -> tuple[np.ndarray, ...] | None:
    """Return the index from the cache: counts, offsets and lengths, int64. Return None if no intact file exists."""
    try:
        with np.load(path) as arrays:
            counts, offsets, lengths = (arrays[name] for name in ("counts", "offsets", "lengths"))
    except Exception:  # zipfile and NumPy raise many types of errors for damaged files
        return None
    return (counts, offsets, lengths) if len(counts) == files and counts.sum() == len(offsets) == len(lengths) else None


def _walk(file: Path, tolerance: Tolerance) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the offsets and lengths of a shard's payloads, int64, and whether all records were found."""
    offsets, lengths, whole = array("q"), array("q"), True
    try:
        with input_files.open_regular_file(file) as stream:
            for offset, length in payload_places(file, Slices(stream)):
                offsets.append(offset)
                lengths.append(length)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    except LostRecords as lost:
        tolerance.add(lost.place, lost.reason)
        whole = False
    return np.array(offsets, np.int64), np.array(lengths, np.int64), whole
