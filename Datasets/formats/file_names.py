"""<split>-files.txt beside converted shards: line i, counted from 1, names the file of the picture in the split's record
i - 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from base.storage import input_files
from Datasets.formats import conversion_info

_MAX_BYTES = 1 << 30  # some ten million pictures


def file(split: str) -> str:
    """The name of the file for a split."""
    return conversion_info.names_file(split)


def text(names: Iterable[str]) -> str:
    """The content: what no line can hold is written as Python escapes it."""
    return "".join(f"{''.join(map(_printable, name))}\n" for name in names)


def read(folder: Path, split: str, counts: Mapping[str, int]) -> tuple[str, ...]:
    """The names in the order of the records; () if nothing tells them, or shards with these `counts` of records are others
    than it tells of."""
    try:
        names = input_files.content(folder / file(split), _MAX_BYTES).decode("utf-8").splitlines()
    except (OSError, ValueError):  # they are for people alone
        return ()
    shards = {int(name[-5:]) for name in counts}
    cuts = conversion_info.cuts(split, len(names), shards.pop()) if len(shards) == 1 else {}
    if any(len(cuts.get(name, ())) != count for name, count in counts.items()):
        return ()
    return tuple(names[k] for name in counts for k in cuts[name])


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
