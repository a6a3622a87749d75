"""Class names: labels.txt beside a set's files; and ImageNet's own.

Line i of labels.txt, counted from 1, is the name of label i. Where all lines are NUMBER:NAME, as TF-Slim writes them, the
number is the label; 0:background is no class."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from base import bounds
from base.errors import DataError
from base.fields import decimal_number, short
from base.storage import input_files
from Datasets._spec import DataSpec

FILE = "labels.txt"
_MAX_BYTES = 16 << 20  # of labels.txt: some hundred thousand classes
_IMAGENET = Path(__file__).resolve().parent.parent / "_embedded" / "imagenet_classes.txt"
IMAGENET_CLASSES = 1000
_NUMBERED = re.compile(r"\s*(\d{1,9})\s*:\s*(\S.*?)\s*", re.ASCII)


def normal(name: str) -> str:
    """Return the one spelling of a name whose accents systems write in two ways."""
    return unicodedata.normalize("NFC", name)


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return the classes in the order of their labels: by value if all are numbers, else by their characters."""
    unique = sorted(set(names))
    values = {name: _number(name) for name in unique}
    if None not in values.values() and len(set(values.values())) < len(unique):
        twice = next((a, b) for a, b in itertools.combinations(unique, 2) if values[a] == values[b])
        raise DataError(f"classes {twice[0]} and {twice[1]} are one number in two spellings; give them one")
    return tuple(unique if None in values.values() else sorted(unique, key=values.__getitem__))


def _number(name: str) -> float | None:
    """The value of a name that is a number, as people write them without an exponent."""
    with suppress(ValueError):
        return None if "e" in name.lower() else decimal_number(name)
    return None


def read(folder: Path) -> tuple[str, ...]:
    """The names in the folder's labels.txt, in the order of the labels; () if it has none."""
    return _read(folder)[0]


def first_label(folder: Path) -> int:
    """The label, as records have it, of the first class in the folder's labels.txt; 1 if it has none."""
    return _read(folder)[1]


def _read(folder: Path) -> tuple[tuple[str, ...], int]:
    file = folder / FILE
    try:
        names = input_files.text(file, _MAX_BYTES).removeprefix("\ufeff").removesuffix("\n").split("\n")
    except FileNotFoundError:
        return (), 1
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {bounds.reason(error)}; it must hold one class name a line") from None
    first_seen: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if not name.strip():
            raise DataError(f"{file}, line {number} is empty: every line must hold a class name")
        if (first := first_seen.setdefault(name, number)) != number:
            raise DataError(f"{file}: lines {first} and {number} are both {short(name)}; a class has one label")
    return _numbered(names, file) or (tuple(names), 1)


def _numbered(names: Sequence[str], file: Path) -> tuple[tuple[str, ...], int] | None:
    """The names and the first label where all lines are NUMBER:NAME; None for plain names. DataError if the numbers do not
    follow one another, but for names like 16:9 and 12:30."""
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
        fault = f"{gap + 1} has no name" if gap < numbers[-1] else "a number comes twice"
        raise DataError(f"{file}: its lines are NUMBER:NAME, and {fault}; give each label one line, without a gap")
    if by_number[numbers[0]].lower() == "background" and numbers[0] == 0 and len(numbers) > 1:
        numbers = numbers[1:]
    ordered_names = tuple(by_number[number] for number in numbers)
    if len(set(ordered_names)) < len(ordered_names):
        raise DataError(f"{file}: a name comes twice; a class has one label")
    return ordered_names, numbers[0]


def beside(shards: Sequence[Path], folder: Path) -> tuple[tuple[str, ...], Path]:
    """The names of the first labels.txt beside the shards or in the folder that they were looked for in, and that file;
    () if there is none."""
    for place in [*(shard.parent for shard in shards[:1]), folder]:
        if names := read(place):
            return names, place / FILE
    return (), folder / FILE


def text(names: Iterable[str]) -> str:
    """The content of labels.txt for these classes, with their labels where the names alone would be read as NUMBER:NAME."""
    names = tuple(names)
    if names and all(map(_NUMBERED.fullmatch, names)):
        names = tuple(f"{label}:{name}" for label, name in enumerate(names, 1))
    return "".join(f"{name}\n" for name in names)


def agree(names: tuple[str, ...], num_classes: int | None, where: str) -> None:
    """Raise DataError if `num_classes` is given and `where` has another number of names."""
    if num_classes is not None and num_classes != len(names):
        raise DataError(
            f"{num_classes} classes were asked for (--num-classes, or of the run) but {where} names {len(names)}; "
            "leave --num-classes out, give the folder that belongs to it, or begin another run"
        )


def for_spec(spec: DataSpec) -> tuple[str, ...]:
    """The names in the order of the labels; () where neither the set's files nor the project have them."""
    if spec.name == "imagenet" and not spec.class_names and spec.num_classes == IMAGENET_CLASSES:
        return tuple(_IMAGENET.read_text(encoding="utf-8").splitlines())
    return spec.class_names
