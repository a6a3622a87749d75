"""conversion.json beside converted shards: how many records and bytes each of them has, its digest, and those of the names
beside them, so that what is lost or changed is noticed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from base import bounds
from base.errors import DataError
from base.storage import input_files
from Datasets.formats import class_names

if TYPE_CHECKING:
    from Datasets.formats.tfrecord import RecordIndex

FILE = "conversion.json"
CHANGED = f"has other names than were converted, by {FILE}; copy it again, or convert into this folder once more"
FORMAT = 1
SPLITS = ("train", "validation")
DIGESTS = "sha256"  # the entry of the texts beside the shards: SHA-256 by file name
SHARDS = "shards"  # the entry of the shards that are written: bytes and SHA-256 by file name; none where they are too many
MAX_SHARDS = 99_999  # five digits
_MAX_PICTURES = 1 << 40


class WrittenShard(NamedTuple):
    """The bytes of a shard: how many, and their SHA-256."""

    size: int
    digest: str

    @classmethod
    def of(cls, file: Path) -> WrittenShard:
        """Return those of a file, which is read whole."""
        with input_files.open_regular_file(file) as stream:
            digest = input_files.sha256(stream)
            return cls(stream.tell(), digest)


@dataclass(frozen=True)
class ConversionInfo:
    """The account of a conversion. `records`: of each shard, by file name. `digests`: of the texts beside them, by name.
    `shards`: those whose bytes are known, by name."""

    folder: Path
    classes: int
    records: Mapping[str, int]
    digests: Mapping[str, str]
    shards: Mapping[str, WrittenShard]

    def difference(self, file: Path, records: int, whole: bool = False) -> str | None:
        """The fault of a shard with this number of records; None if the conversion wrote as many, and as many bytes.
        `whole`: the bytes themselves are compared, too."""
        wanted, written = self.records.get(file.name), self.shards.get(file.name)
        if wanted != records:
            recorded = f"tells of {wanted}" if wanted is not None else "does not tell of it"
            return f"holds {records} record{'s' * (records != 1)}, and {FILE} beside it {recorded}; copy or convert it again"
        with suppress(OSError):
            size = file.stat().st_size
            if written and size != written.size:
                return f"has {size} bytes, and {FILE} beside it tells of {written.size}; copy or convert it again"
            if written and whole and WrittenShard.of(file) != written:
                return f"has other bytes than were converted, by {FILE} beside it; copy or convert it again"
        return None

    def lost(self, there: Iterable[str]) -> list[str]:
        """The splits without any shard; other gaps show in the shards' own numbering."""
        present = {name.partition("-")[0] for name in there}
        return [
            f"lacks every {split} shard, of which {FILE} tells; copy or convert them again"
            for split in SPLITS
            if split not in present and any(name.startswith(f"{split}-") for name in self.records)
        ]

    def differing_labels(self) -> str | None:
        """The fault of labels.txt beside the shards."""
        named = len(class_names.read(self.folder))
        if named == self.classes:
            return None
        return f"names {named} classes, and {FILE} tells of {self.classes}" if named else "is missing"

    def changed_texts(self) -> list[str]:
        """The texts beside the shards that are there with other bytes than were written, by name."""
        changed = []
        for name, digest in self.digests.items():
            with suppress(OSError), input_files.open_regular_file(self.folder / name) as file:
                changed += [name] * (input_files.sha256(file) != digest)
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


def content(file: Path) -> dict[str, Any] | None:
    """The JSON object of a conversion.json; None if there is no such file."""
    try:
        entries = bounds.json_value(input_files.content(file, bounds.TEXT))
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
    return ConversionInfo(folder, _number(folder, entries, "classes", _MAX_PICTURES), records, own, written_shards(entries))


def written_shards(entries: Mapping[str, Any]) -> dict[str, WrittenShard]:
    """Return the shards whose bytes a conversion.json tells of, by name; one of an earlier version tells of none. Entries of
    another form tell nothing."""
    told = entries.get(SHARDS)
    pairs = told.items() if isinstance(told, dict) else ()
    return {
        name: WrittenShard(*each)
        for name, each in pairs
        if isinstance(each, list) and [type(part) for part in each] == [int, str]
    }


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
    differences = [
        f"{file} {difference}"
        for name, count in counts.items()
        if (difference := described.difference(file := folder / name, count))
    ]
    differences += [f"{folder} {difference}" for difference in described.lost(counts)]
    named = class_names.read(folder)
    if named and len(named) != described.classes:
        differences.append(f"{folder / class_names.FILE} {described.differing_labels()}; copy it again")
    if differences and not tolerated:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise DataError(f"{differences[0]}{more}, or remove {folder / FILE} if that is meant")
    differences += [f"{folder / name} {CHANGED}" for name in described.changed_texts()]
    return tuple(f"warning: {difference}" for difference in differences)
