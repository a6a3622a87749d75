"""conversion.json beside converted shards: how many records each of them has, so that a lost one is noticed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import bounds
from base.errors import DataError
from base.storage import input_files
from Datasets.formats import class_names

if TYPE_CHECKING:
    from Datasets.formats.tfrecord import RecordIndex

FILE = "conversion.json"
FORMAT = 1
SPLITS = ("train", "validation")
MOST_SHARDS = 99_999  # five digits
_MOST_PICTURES = 1 << 40


@dataclass(frozen=True)
class Described:
    """What a conversion says that it has made. `records`: of each shard by its name."""

    folder: Path
    classes: int
    records: Mapping[str, int]

    def difference(self, name: str, records: int) -> str | None:
        """What is wrong with a shard that holds so many records."""
        wanted = self.records.get(name)
        if wanted == records:
            return None
        told = f"tells of {wanted}" if wanted is not None else "does not tell of it"
        return f"holds {records} record{'s' * (records != 1)}, and {FILE} beside it {told}; copy or convert it again"

    def lost(self, there: Iterable[str]) -> list[str]:
        """What is missing as a whole of a split none of whose shards are there; other gaps show in the shards' own names."""
        present = {name.partition("-")[0] for name in there}
        return [
            f"lacks every {split} shard, of which {FILE} tells; copy or convert them again"
            for split in SPLITS
            if split not in present and any(name.startswith(f"{split}-") for name in self.records)
        ]

    def differing_labels(self) -> str | None:
        """What is wrong with labels.txt beside the shards."""
        named = len(class_names.read(self.folder))
        if named == self.classes:
            return None
        return f"names {named} classes, and {FILE} tells of {self.classes}" if named else "is missing"


def cuts(split: str, pictures: int, shards: int) -> dict[str, range]:
    """Which pictures of a split each of its shards holds, by the shard's name."""
    return {
        f"{split}-{k:05d}-of-{shards:05d}": range(k * pictures // shards, (k + 1) * pictures // shards)
        for k in range(shards)
    }


def content(file: Path) -> dict[str, Any] | None:
    """The JSON object of a conversion.json; None if there is no such file."""
    try:
        found = bounds.json_value(input_files.content(file, bounds.TEXT))
        if not isinstance(found, dict):
            raise ValueError("it holds no JSON object")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is damaged: {bounds.reason(error)}; remove the folder and convert again") from None
    return found


def read(folder: Path) -> Described | None:
    """What a folder's conversion.json says, if there is one; DataError if it does not say it."""
    found = content(folder / FILE)
    if found is None:
        return None
    records: dict[str, int] = {}
    for split in SPLITS:
        keys = f"{split} pictures", f"{split} shards"
        if split == SPLITS[0] or not found.keys().isdisjoint(keys):
            pictures = _number(folder, found, keys[0], _MOST_PICTURES)
            shards = _number(folder, found, keys[1], min(pictures, MOST_SHARDS))
            records |= {name: len(cut) for name, cut in cuts(split, pictures, shards).items()}
    return Described(folder, _number(folder, found, "classes", _MOST_PICTURES), records)


def _number(folder: Path, found: Mapping[str, Any], key: str, most: int) -> int:
    value = found.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise DataError(f"{folder / FILE} is damaged: '{key}' must be from 1 to {most}; remove the folder and convert again")
    return value


def warnings(folder: Path, train: RecordIndex, validation: RecordIndex | None, tolerated: bool) -> tuple[str, ...]:
    """What a log says of shards that are not those of the conversion.json in `folder`; DataError for records that are lost,
    unless that is `tolerated`."""
    try:
        described = read(folder)
    except DataError as error:
        return (f"warning: {error}; nothing else tells how many records there must be",)
    if described is None:
        return ()
    counts = train.counts() | (validation.counts() if validation else {})
    found = [f"{folder / name} {said}" for name, count in counts.items() if (said := described.difference(name, count))]
    found += [f"{folder} {said}" for said in described.lost(counts)]
    if found and not tolerated:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise DataError(f"{found[0]}{more}, or remove {folder / FILE} if that is meant")
    return tuple(f"warning: {said}" for said in found)
