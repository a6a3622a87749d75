"""Class names, from a data set's labels.txt, or the included names of ImageNet's classes.

Line i of labels.txt, counted from 1, is the name of label i. If all lines are NUMBER:NAME, as TF-Slim writes them, the
number is the label; the line 0:background is not a class.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from cnn_harness.base import bounds
from cnn_harness.base.errors import DataError
from cnn_harness.base.fields import decimal_number, short
from cnn_harness.base.storage import input_files
from cnn_harness.Datasets._spec import DataSpec

FILE = "labels.txt"
_MAX_BYTES = 16 << 20  # limit for labels.txt: a few hundred thousand classes
_IMAGENET = Path(__file__).resolve().parent.parent / "_embedded" / "imagenet_classes.txt"
IMAGENET_CLASSES = 1000
_NUMBERED = re.compile(r"\s*(\d{1,9})\s*:\s*(\S.*?)\s*", re.ASCII)


def normal(name: str) -> str:
    """Return a name in Unicode's NFC form, because operating systems write accents in two ways."""
    return unicodedata.normalize("NFC", name)


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return the classes in the order of their labels: sorted by value if all names are numbers, else as strings."""
    unique = sorted(set(names))
    values = {name: _number(name) for name in unique}
    if None not in values.values() and len(set(values.values())) < len(unique):
        twice = next((a, b) for a, b in itertools.combinations(unique, 2) if values[a] == values[b])
        raise DataError(f"classes {twice[0]} and {twice[1]} are the same number; write it in one way")
    return tuple(unique if None in values.values() else sorted(unique, key=values.__getitem__))


def alike(names: Iterable[str]) -> list[str]:
    """Return a line for each two names that differ only in capitals, blanks or underscores: one may be a misprint."""
    first: dict[str, str] = {}
    lines = []
    for name in names:
        if (other := first.setdefault(spelling(name), name)) != name:
            lines.append(
                f"classes {other!r} and {name!r} differ only in capitals or blanks; if they are one class, merge them"
            )
    return lines


def spelling(name: str) -> str:
    """Return a name without capitals, blanks and underscores. Between digits, blanks matter: 1 1 is not 11."""
    return re.sub(r"(?<!\d)[\s_]+|[\s_]+(?!\d)", "", normal(name)).casefold()


def _number(name: str) -> float | None:
    """Return the value of a name that is a number without exponent; None for other names."""
    with suppress(ValueError):
        return None if "e" in name.lower() else decimal_number(name)
    return None


def read(folder: Path) -> tuple[str, ...]:
    """Return the names in a folder's labels.txt, in the order of the labels; () if there is no such file."""
    return _read(folder)[0]


def first_label(folder: Path) -> int:
    """Return the label that records use for the first class, according to labels.txt; 1 if there is no such file."""
    return _read(folder)[1]


def _read(folder: Path) -> tuple[tuple[str, ...], int]:
    file = folder / FILE
    try:
        names = input_files.text(file, _MAX_BYTES).removeprefix("\ufeff").removesuffix("\n").split("\n")
    except FileNotFoundError:
        return (), 1
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {bounds.reason(error)}; it must have one class name per line") from None
    first_seen: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if not name.strip():
            raise DataError(f"{file}, line {number} is empty, but every line must be a class name")
        if (first := first_seen.setdefault(name, number)) != number:
            raise DataError(f"{file}: lines {first} and {number} are both {short(name)}; remove one of them")
    return _numbered(names, file) or (tuple(names), 1)


def _numbered(names: Sequence[str], file: Path) -> tuple[tuple[str, ...], int] | None:
    """Return the names and the first label if all lines are NUMBER:NAME; otherwise return None.

    Raise DataError if the numbers are not consecutive. Lines such as 16:9 and 12:30 are plain names.
    """
    lines = [_NUMBERED.fullmatch(line) for line in names]
    if None in lines:
        return None
    by_number: dict[int, str] = {}
    for line in lines:
        by_number.setdefault(int(line[1]), line[2])
    numbers = sorted(by_number)
    gap = next((number for number in numbers if number + 1 not in by_number), numbers[-1])
    if len(numbers) < len(lines) or gap < numbers[-1]:
        if all(_number(line[2]) is not None for line in lines):
            return None
        fault = f"{gap + 1} has no name" if gap < numbers[-1] else "a number appears twice"
        raise DataError(f"{file}: lines are NUMBER:NAME, but {fault}; use each number once, without gaps")
    if by_number[numbers[0]].lower() == "background" and numbers[0] == 0 and len(numbers) > 1:
        numbers = numbers[1:]
    ordered_names = tuple(by_number[number] for number in numbers)
    if len(set(ordered_names)) < len(ordered_names):
        raise DataError(f"{file}: a name appears twice; give each class one label")
    return ordered_names, numbers[0]


def beside(shards: Sequence[Path], folder: Path) -> tuple[tuple[str, ...], Path]:
    """Return the names in labels.txt next to the shards, or else in `folder`, and the file's path; () if missing."""
    for place in [*(shard.parent for shard in shards[:1]), folder]:
        if names := read(place):
            return names, place / FILE
    return (), folder / FILE


def text(names: Iterable[str]) -> str:
    """Return the content of labels.txt. Prefix each line with its label if the names look like NUMBER:NAME."""
    names = tuple(names)
    if names and all(map(_NUMBERED.fullmatch, names)):
        names = tuple(f"{label}:{name}" for label, name in enumerate(names, 1))
    return "".join(f"{name}\n" for name in names)


def agree(names: tuple[str, ...], num_classes: int | None, where: str) -> None:
    """Raise DataError if `num_classes` is given and differs from the number of names in `where`."""
    if num_classes is not None and num_classes != len(names):
        raise DataError(
            f"{num_classes} classes are expected (by --num-classes, or by the run), but {where} names {len(names)}; "
            "leave out --num-classes, give the data folder of the run, or start a new run with another --logs-path"
        )


def for_spec(spec: DataSpec) -> tuple[str, ...]:
    """Return the class names in the order of the labels; () if neither the data set nor the project has them."""
    if spec.name == "imagenet" and not spec.class_names and spec.num_classes == IMAGENET_CLASSES:
        return tuple(_IMAGENET.read_text(encoding="utf-8").splitlines())
    return spec.class_names
