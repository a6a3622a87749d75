"""TFRecord shards: which there must be, where each record lies, and its bytes.

A record is its length (8 bytes, little-endian), the length's checksum (4), the payload, the payload's checksum
(4). Walking reads the twelve bytes before every payload only. Payloads' checksums are not verified as they are
read (the decoder judges them), but `damage` does so for one record that failed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from Datasets._spec import DataError

_SHARD = re.compile(r"(?P<split>\w+)-(?P<number>\d{5})-of-(?P<total>\d{5})")
_HEADER_BYTES = 12
_FOOTER_BYTES = 4
_CASTAGNOLI = 0x82F63B78  # the reflected polynomial of CRC-32C
_WALKERS = 16  # files walked at once: the time goes into waiting for the disc
_NAMED = 5


def shards(folder: Path, split: str) -> list[Path]:
    """All shards of a split, in order; [] when there is none. Incomplete sets are an error."""
    found = [match for name in sorted(os.listdir(folder)) if (match := _SHARD.fullmatch(name)) and match["split"] == split]
    if not found:
        return []
    totals = sorted({match["total"] for match in found})
    if len(totals) > 1:
        raise DataError(f"{folder} mixes sets of {split} shards: of {', of '.join(totals)}; keep one set there")
    wanted = [f"{split}-{i:05d}-of-{totals[0]}" for i in range(int(totals[0]))]
    missing = sorted(set(wanted) - {match.string for match in found})
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise DataError(
            f"{folder} lacks {len(missing)} of {len(wanted)} {split} shards: {', '.join(missing[:_NAMED])}{more}"
        )
    if len(found) > len(wanted):
        raise DataError(f"{folder} has {split} shards numbered beyond their total of {len(wanted)}: {found[-1].string}")
    return [folder / name for name in wanted]


class RecordIndex:
    """Where every record of a list of shards lies; records are numbered through all shards, in order."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = list(files)
        with ThreadPoolExecutor(_WALKERS) as pool:
            walked = list(pool.map(_walk, self._files))
        self._ends = np.cumsum([len(offsets) for offsets, _ in walked], dtype=np.int64)
        self._offsets = np.concatenate([offsets for offsets, _ in walked])
        self._lengths = np.concatenate([lengths for _, lengths in walked])

    def __len__(self) -> int:
        return len(self._offsets)

    def name(self, record: int) -> str:
        """File and the record's number in it, for messages."""
        file, number = self._place(record)
        return f"{file}: record {number}"

    def payload(self, record: int) -> bytes:
        """One record's bytes. The file is opened anew: a thousand shards would use up the descriptors."""
        return self._read(record, int(self._lengths[record]))

    def damage(self, record: int) -> str | None:
        """What the stored checksum says of one payload."""
        whole = self._read(record, int(self._lengths[record]) + _FOOTER_BYTES)
        payload, stored = whole[:-_FOOTER_BYTES], int.from_bytes(whole[-_FOOTER_BYTES:], "little")
        wrong = int(_masked_crc(np.frombuffer(payload, np.uint8)[None])[0]) != stored
        return "the file is damaged there (its checksum does not match)" if wrong else None

    def _read(self, record: int, size: int) -> bytes:
        file, _ = self._place(record)
        try:
            descriptor = os.open(file, os.O_RDONLY)
            try:
                data = os.pread(descriptor, size, int(self._offsets[record]))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DataError(f"{self.name(record)} cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise DataError(f"{self.name(record)} cannot be read: the file has become shorter since it was opened")
        return data

    def _place(self, record: int) -> tuple[Path, int]:
        k = int(np.searchsorted(self._ends, record, side="right"))
        return self._files[k], record - (int(self._ends[k - 1]) if k else 0)


def _walk(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and lengths of the payloads of one shard, every length checked."""
    offsets: list[int] = []
    headers: list[bytes] = []
    with file.open("rb", buffering=0) as stream:
        size, at = os.fstat(stream.fileno()).st_size, 0
        while at < size:
            header = os.pread(stream.fileno(), _HEADER_BYTES, at)
            end = at + _HEADER_BYTES + int.from_bytes(header[:8], "little") + _FOOTER_BYTES
            offsets.append(at + _HEADER_BYTES)
            headers.append(header)
            if len(header) < _HEADER_BYTES or end > size:
                break
            at = end
    _check_lengths(file, headers, at == size, size)
    return np.array(offsets, np.int64), np.frombuffer(b"".join(h[:8] for h in headers), "<i8")


def _check_lengths(file: Path, headers: list[bytes], ended: bool, size: int) -> None:
    """A wrong length leads astray, so the first one whose checksum fails is the record to name."""
    whole = [header for header in headers if len(header) == _HEADER_BYTES]
    fields = np.frombuffer(b"".join(whole), np.uint8).reshape(-1, _HEADER_BYTES)
    stored = np.ascontiguousarray(fields[:, 8:]).view("<u4")[:, 0]
    wrong = np.flatnonzero(_masked_crc(fields[:, :8]) != stored)
    if wrong.size:
        raise DataError(
            f"{file}: record {wrong[0]} has an impossible length (its checksum does not match); is the file damaged, "
            "or no TFRecord file? Copy it again"
        )
    if not ended:
        raise DataError(f"{file}: record {len(headers) - 1} is cut short, the file ends at byte {size}; copy it again")


def _masked_crc(rows: np.ndarray) -> np.ndarray:
    """TFRecord's masked CRC-32C of every row of bytes [n, length]."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_CASTAGNOLI), table >> 1).astype(np.uint32)
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)
