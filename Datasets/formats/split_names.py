"""Recognise splits by the names of folders and files, such as Training, test_set or images-val."""

from __future__ import annotations

import re

TRAIN, VALIDATION, TEST = "train", "validation", "test"
_WORDS = {
    **dict.fromkeys(("train", "training", "trainval", "trn"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "validate", "validating", "dev", "eval", "evaluation"), VALIDATION),
    **dict.fromkeys(("test", "tests", "testing", "tst", "holdout"), TEST),
}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_ENDING = re.compile(r"(set|data|images?|imgs?|pictures?|photos?|split)$")  # removed from words such as testset


def split_of(name: str) -> str | None:
    """Return the split that a name refers to; None if the name refers to no split or to several splits."""
    words = (word.lower() for word in _WORD.findall(name))
    found = {_WORDS.get(word) or _WORDS.get(_ENDING.sub("", word)) for word in words} - {None}
    return found.pop() if len(found) == 1 else None
