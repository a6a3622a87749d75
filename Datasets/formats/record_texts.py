"""Compare the class names inside records with labels.txt, and those of training records with those of validation records.

The feature image/class/text of a record names its class. If the name contradicts the label, the shards were written with
another list of classes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cnn_harness.Datasets.formats import class_names

Texts = Iterable[tuple[int, str]]  # labels of records, and the class names in them
_CODE = re.compile(r"n?\d+", re.ASCII)  # numbers, and names of ImageNet's classes such as n01440764


def contradictions(texts: Mapping[str, Texts], names: Sequence[str], first_label: int) -> list[str]:
    """Return a line for each contradiction. `texts` has an entry for each split; `names` are the lines of labels.txt."""
    seen = {split: _by_label(pairs) for split, pairs in texts.items()}
    lines = []
    for split, by_label in seen.items():
        wrong = [
            (label, text, name)
            for label, name in enumerate(names, first_label)
            for text in by_label.get(label, ())
            if not _same(text, name) and not (_CODE.fullmatch(text) or _CODE.fullmatch(name))
        ]
        if wrong:
            label, text, name = wrong[0]
            known = {form for each in names for form in _forms(each)}
            order = "; the order of labels.txt is wrong" if any(_forms(each[1]) & known for each in wrong) else ""
            lines.append(
                f"label {label} is {text} in {split} records, but {name} in {class_names.FILE}{_more(wrong)}{order}"
            )
    train, validation = (seen.get(split, {}) for split in ("train", "validation"))
    differing = [
        (label, min(train[label]), min(found))
        for label, found in sorted(validation.items())
        if label in train and not any(_same(text, other) for text in found for other in train[label])
    ]
    if differing:
        label, one, other = differing[0]
        lines.append(
            f"label {label} is {one} in train records, but {other} in validation records{_more(differing)}; convert both "
            "again with one list of classes"
        )
    return lines


def _by_label(pairs: Texts) -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for label, text in pairs:
        if text.strip():
            found[label].add(text)
    return found


def _same(one: str, other: str) -> bool:
    return bool(_forms(one) & _forms(other))


def _forms(name: str) -> set[str]:
    """Return the spellings of a name: the whole name, and each synonym if it is a list such as tench, Tinca tinca."""
    return {class_names.spelling(each.replace("-", " ")) for each in (name, *name.split(","))}


def _more(found: Sequence[object]) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""
