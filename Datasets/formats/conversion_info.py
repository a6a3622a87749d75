"""The files written with converted shards.

conversion.json contains the number of records of each shard. <split>-files.txt lists the image files in the order of the
records. The file conversion.unfinished exists until a conversion is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from cnn_harness.base import bounds
from cnn_harness.base.errors import DataError
from cnn_harness.base.fields import escaped
from cnn_harness.base.storage import input_files

FILE = "conversion.json"
UNFINISHED = "conversion.unfinished"
_MAX_JSON = 16 << 20  # bytes; this is enough for 99,999 shards
_MAX_NAMES = 1 << 30  # bytes; this is enough for about ten million images


def names_file(split: str) -> str:
    """Return the name of the file that lists a split's image files."""
    return f"{split}-files.txt"


def names_text(names: Iterable[str]) -> str:
    """Return the content of a list of file names, one per line, with control characters escaped."""
    return "".join(f"{escaped(name)}\n" for name in names)


def read_names(folder: Path, split: str, counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the image files of a split's first shards, in the order of the records; () if unknown.

    `counts` maps shard names to numbers of records.
    """
    try:
        names = input_files.content(folder / names_file(split), _MAX_NAMES).decode("utf-8").splitlines()
        converted = {name: count for name, count in read(folder).items() if name.startswith(f"{split}-")}
    except (OSError, ValueError, DataError):  # the names are only shown to the user
        return ()
    known = [*converted.items()][: len(counts)] == [*counts.items()] and sum(converted.values()) == len(names)
    return tuple(names[: sum(counts.values())]) if known else ()


def read(folder: Path) -> dict[str, int]:
    """Return the number of records of each converted shard; {} without conversion.json.

    Raise DataError if the file is damaged or if the conversion was interrupted.
    """
    file = folder / FILE
    if (folder / UNFINISHED).exists():
        raise DataError(f"the conversion into {folder} was interrupted; run it again, or remove {folder / UNFINISHED}")
    try:
        entries = bounds.json_value(input_files.content(file, _MAX_JSON))
        # files of other programs have no key "records"
        records = entries.get("records", {}) if isinstance(entries, dict) else None
        if not isinstance(records, dict) or not all(type(count) is int for count in records.values()):
            raise ValueError("the numbers of records are missing")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is damaged: {bounds.reason(error)}; convert again, or remove it") from None
    return records


def differences(folder: Path, counts: Mapping[str, int]) -> list[str]:
    """Return a message for each shard or split whose records differ from conversion.json.

    `counts` maps the names of each split's first shards to the numbers of records found in the files.
    """
    converted = read(folder)
    lost = [
        f"{folder / name} has {count} records, but {FILE} says {converted[name]}"
        for name, count in counts.items()
        if converted.get(name, count) != count
    ]
    there = {name.partition("-")[0] for name in counts}
    splits = dict.fromkeys(name.partition("-")[0] for name in converted)
    return lost + [f"{folder} lacks all {split} shards listed in {FILE}" for split in splits if split not in there]


def check(folder: Path, counts: Mapping[str, int], tolerated: bool) -> tuple[str, ...]:
    """Return warnings about shards that have lost records. Unless `tolerated`, raise DataError for the first shard."""
    lost = differences(folder, counts)
    if lost and not tolerated:
        raise DataError(f"{lost[0]}; copy or convert it again, or remove {folder / FILE} if this is intended")
    return tuple(f"warning: {each}" for each in lost)
