"""The files beside converted shards: conversion.json has the number of records of each shard, <split>-files.txt the names
of the images' files in the order of the records. A mark shows that a conversion has not ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from base import bounds
from base.errors import DataError
from base.fields import escaped
from base.storage import input_files

FILE = "conversion.json"
UNFINISHED = "conversion.unfinished"
_MAX_JSON = 16 << 20  # bytes, enough for 99,999 shards
_MAX_NAMES = 1 << 30  # bytes: some ten million images


def names_file(split: str) -> str:
    """Return the name of the file that names the images' files of a split."""
    return f"{split}-files.txt"


def names_text(names: Iterable[str]) -> str:
    """Return the content of a file of names: Python escapes characters that do not fit into a line."""
    return "".join(f"{escaped(name)}\n" for name in names)


def read_names(folder: Path, split: str, counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the images' files in the order of the records of the first shards of a split; () where they are not known.
    `counts`: the records of these shards, by name."""
    try:
        names = input_files.content(folder / names_file(split), _MAX_NAMES).decode("utf-8").splitlines()
        converted = {name: count for name, count in read(folder).items() if name.startswith(f"{split}-")}
    except (OSError, ValueError, DataError):  # they are for people alone
        return ()
    known = [*converted.items()][: len(counts)] == [*counts.items()] and sum(converted.values()) == len(names)
    return tuple(names[: sum(counts.values())]) if known else ()


def read(folder: Path) -> dict[str, int]:
    """Return the number of records of each converted shard; {} without conversion.json. DataError for a damaged one, and for
    a conversion that has not ended."""
    file = folder / FILE
    if (folder / UNFINISHED).exists():
        raise DataError(f"the conversion into {folder} was interrupted; repeat it, or remove {folder / UNFINISHED}")
    try:
        entries = bounds.json_value(input_files.content(file, _MAX_JSON))
        records = entries.get("records", {}) if isinstance(entries, dict) else None  # other programs' files have none
        if not isinstance(records, dict) or not all(type(count) is int for count in records.values()):
            raise ValueError("it does not have the numbers of records")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is damaged: {bounds.reason(error)}; convert again, or remove it") from None
    return records


def differences(folder: Path, counts: Mapping[str, int]) -> list[str]:
    """Return the shards that have lost records since their conversion. `counts`: the records that they have, by name, of the
    first shards of every split."""
    converted = read(folder)
    lost = [
        f"{folder / name} holds {count} records instead of {converted[name]}, by {FILE}"
        for name, count in counts.items()
        if converted.get(name, count) != count
    ]
    there = {name.partition("-")[0] for name in counts}
    splits = dict.fromkeys(name.partition("-")[0] for name in converted)
    return lost + [f"{folder} lacks every {split} shard, by {FILE}" for split in splits if split not in there]


def check(folder: Path, counts: Mapping[str, int], tolerated: bool) -> tuple[str, ...]:
    """Return the log's warnings about shards that have lost records; DataError for the first one unless `tolerated`."""
    lost = differences(folder, counts)
    if lost and not tolerated:
        raise DataError(f"{lost[0]}; copy or convert it again, or remove {folder / FILE} if that is meant")
    return tuple(f"warning: {each}" for each in lost)
