"""What the classes of a data set are called."""

from __future__ import annotations

from pathlib import Path

from Datasets._spec import DataSpec

IMAGENET = Path(__file__).resolve().parent / "_embedded" / "imagenet_classes.txt"
IMAGENET_CLASSES = 1000


def class_names(spec: DataSpec) -> tuple[str, ...]:
    """The names in the order of the labels; empty if nobody has told them."""
    if spec.name == "imagenet" and not spec.class_names and spec.num_classes == IMAGENET_CLASSES:
        return tuple(IMAGENET.read_text(encoding="utf-8").splitlines())
    return spec.class_names
