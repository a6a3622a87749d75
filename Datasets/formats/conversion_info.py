"""The files beside converted shards.

conversion.json has the number of records and bytes of each shard, and digests of the other files. <split>-files.txt names
the images' files in the order of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import bounds
from base.errors import DataError
from base.fields import escaped
from base.storage import input_files
from Datasets.formats import class_names

if TYPE_CHECKING:
    from Datasets.formats.tfrecord import RecordIndex

FILE = "conversion.json"
CHANGED = f"has other names than were converted, by {FILE}; copy it again, or convert into this folder once more"
FORMAT = 1
SPLITS = ("train", "validation")
DIGESTS = "sha256"  # the entry of the texts beside the shards: SHA-256 by file name
BYTES = "bytes"  # the entry of the shards' sizes, in their order, those of training first
MAX_SHARDS = 99_999  # five digits
_MAX_PICTURES = 1 << 40
_MAX_JSON = 4 << 20  # bytes, which 2 * MAX_SHARDS sizes need
_MAX_NAMES = 1 << 30  # bytes: some ten million images


@dataclass(frozen=True)
class ConversionInfo:
    """The account of a conversion. `records`, `sizes`: of each shard, by file name; `digests`: of the texts beside them.
    `sizes` is empty if they are unknown."""

    folder: Path
    classes: int
    records: Mapping[str, int]
    sizes: Mapping[str, int]
    digests: Mapping[str, str]

    def difference(self, file: Path, records: int) -> str | None:
        """Return how a shard with this number of records differs from the one that was written, by records and bytes."""
        wanted, size = self.records.get(file.name), self.sizes.get(file.name)
        if wanted != records:
            recorded = f"tells of {wanted}" if wanted is not None else "does not tell of it"
            return f"holds {records} record{'s' * (records != 1)}, and {FILE} beside it {recorded}; copy or convert it again"
        with suppress(OSError):
            found = file.stat().st_size
            if size not in (None, found):
                return f"has {found} bytes, and {FILE} beside it tells of {size}; copy or convert it again"
        return None

    def faults(self, there: Iterable[str]) -> list[tuple[Path, str]]:
        """Return lost splits, by the names of the shards that are there, and a wrong number of class names; other gaps show
        in the shards' own numbering."""
        lost = {name.partition("-")[0] for name in self.records} - {name.partition("-")[0] for name in there}
        found = [
            (self.folder, f"lacks every {split} shard, of which {FILE} tells; copy or convert them again")
            for split in sorted(lost)
        ]
        if (named := len(class_names.read(self.folder))) != self.classes:
            reason = f"names {named} classes, and {FILE} tells of {self.classes}; copy it again" if named else "is missing"
            found.append((self.folder / class_names.FILE, reason))
        return found

    def changes(self) -> list[tuple[Path, str]]:
        """Return the files of names whose content has changed since the conversion."""
        changed = []
        for name, digest in self.digests.items():
            with suppress(OSError):
                changed += [(self.folder / name, CHANGED)] * (input_files.sha256(self.folder / name) != digest)
        return changed


def names_file(split: str) -> str:
    """The name of the file that names the pictures' files of a split."""
    return f"{split}-files.txt"


def cuts(split: str, pictures: int, shards: int) -> dict[str, range]:
    """The pictures of each shard of a split, by the shard's name."""
    return {
        f"{split}-{k:05d}-of-{shards:05d}": range(k * pictures // shards, (k + 1) * pictures // shards)
        for k in range(shards)
    }


def names_text(names: Iterable[str]) -> str:
    """Return the content of a file of names: Python escapes characters that do not fit into a line."""
    return "".join(f"{escaped(name)}\n" for name in names)


def read_names(folder: Path, split: str, counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names in the order of the records of some shards; () if no file has them, or the shards have other `counts`
    of records."""
    try:
        names = input_files.content(folder / names_file(split), _MAX_NAMES).decode("utf-8").splitlines()
    except (OSError, ValueError):  # they are for people alone
        return ()
    shards = {int(name[-5:]) for name in counts}
    parts = cuts(split, len(names), shards.pop()) if len(shards) == 1 else {}
    if any(len(parts.get(name, ())) != count for name, count in counts.items()):
        return ()
    return tuple(names[k] for name in counts for k in parts[name])


def content(file: Path) -> dict[str, Any] | None:
    """The JSON object of a conversion.json; None if there is no such file."""
    try:
        entries = bounds.json_value(input_files.content(file, _MAX_JSON))
        if not isinstance(entries, dict):
            raise ValueError("it holds no JSON object")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is damaged: {bounds.reason(error)}; remove the folder and convert again") from None
    return entries


def read(folder: Path) -> ConversionInfo | None:
    """The counts in a folder's conversion.json; None without that file, DataError for a damaged one."""
    entries = content(folder / FILE)
    if entries is None:
        return None
    records: dict[str, int] = {}
    for split in SPLITS:
        keys = f"{split} pictures", f"{split} shards"
        if split == SPLITS[0] or not entries.keys().isdisjoint(keys):
            pictures = _number(folder, entries, keys[0], _MAX_PICTURES)
            shards = _number(folder, entries, keys[1], min(pictures, MAX_SHARDS))
            records |= {name: len(cut) for name, cut in cuts(split, pictures, shards).items()}
    digests = entries.get(DIGESTS, {})
    if not isinstance(digests, dict) or not all(isinstance(each, str) for each in digests.values()):
        raise DataError(f"{folder / FILE} is damaged: '{DIGESTS}' must be digests by file name; convert again")
    own = {name: digest for name, digest in digests.items() if name in (class_names.FILE, *map(names_file, SPLITS))}
    sizes = entries.get(BYTES)
    known = isinstance(sizes, list) and [type(size) for size in sizes] == [int] * len(records)
    classes = _number(folder, entries, "classes", _MAX_PICTURES)
    return ConversionInfo(folder, classes, records, dict(zip(records, sizes)) if known else {}, own)


def _number(folder: Path, entries: Mapping[str, Any], key: str, most: int) -> int:
    value = entries.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise DataError(f"{folder / FILE} is damaged: '{key}' must be from 1 to {most}; remove the folder and convert again")
    return value


def warnings(folder: Path, train: RecordIndex, validation: RecordIndex | None, tolerated: bool) -> tuple[str, ...]:
    """The log's lines about shards that differ from the conversion.json in `folder`; DataError for lost records, unless
    `tolerated`."""
    try:
        described = read(folder)
    except DataError as error:
        return (f"warning: {error}; nothing else tells how many records there must be",)
    if described is None:
        return ()
    counts = train.counts() | (validation.counts() if validation else {})
    shards = [(file := folder / name, described.difference(file, count)) for name, count in counts.items()]
    differences = [f"{file} {reason}" for file, reason in [*shards, *described.faults(counts)] if reason]
    if differences and not tolerated:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise DataError(f"{differences[0]}{more}, or remove {folder / FILE} if that is meant")
    differences += [f"{file} {reason}" for file, reason in described.changes()]
    return tuple(f"warning: {difference}" for difference in differences)
