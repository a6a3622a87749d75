"""Recognise the names of folders and files: splits such as Training, test_set or images-val, and parts of a data set such as
JPEGImages or masks."""

from __future__ import annotations

import re

TRAIN, VALIDATION, TEST = "train", "validation", "test"
_SPLITS = {
    **dict.fromkeys(("train", "training", "trainval", "trn"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "validate", "validating", "dev", "eval", "evaluation"), VALIDATION),
    **dict.fromkeys(("test", "tests", "testing", "tst", "holdout"), TEST),
}
_SPLIT_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_ENDING = re.compile(r"(set|data|images?|imgs?|pictures?|photos?|split)$")  # removed from words such as testset
_IMAGES = frozenset(("image", "images", "img", "imgs"))
_ANNOTATIONS = frozenset(
    ("mask", "masks", "label", "labels", "annotation", "annotations", "segmentation", "segmentations", "seg", "trimap",
     "trimaps", "contour", "contours", "groundtruth", "gt", "truth", "bbox", "bboxes")
)  # fmt: skip
_KINDS = frozenset(("jpeg", "jpg", "png", "xml", "json", "txt", "class", "object", "instance", "ground", "binary", "raw"))
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_MASK = re.compile(r"(?P<image>.+?)[ _-]?(?P<word>[A-Za-z]+)(?:[ _-]?\d+)?")


def split_of(name: str) -> str | None:
    """Return the split that a name refers to; None if the name refers to no split or to several splits."""
    each = (word.lower() for word in _SPLIT_WORD.findall(name))
    found = {_SPLITS.get(word) or _SPLITS.get(_ENDING.sub("", word)) for word in each} - {None}
    return found.pop() if len(found) == 1 else None


def words(name: str) -> frozenset[str]:
    """Return the words of a name in lower case, and its numbers."""
    return frozenset(word.lower() for word in _WORD.findall(name))


def mentions_part(name: str) -> bool:
    """Return whether a name has a word for images or annotations."""
    return bool(words(name) & (_IMAGES | _ANNOTATIONS))


def is_part(name: str) -> bool:
    """Return whether a name consists of words for images, annotations and their kinds."""
    return bool(name) and words(name) <= _IMAGES | _ANNOTATIONS | _KINDS


def is_annotation(name: str) -> bool:
    """Return whether a name consists of such words, and one of them is for annotations."""
    return is_part(name) and bool(words(name) & _ANNOTATIONS)


def masked(stem: str) -> str | None:
    """Return the name of the image to which a mask belongs, such as "a (1)" for "a (1)_mask"; None for other names."""
    match = _MASK.fullmatch(stem)
    return match["image"] if match and match["word"].lower() in _ANNOTATIONS else None
