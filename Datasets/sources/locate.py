"""Locate the data: infer the data set from a path, and search folders for the data set's files.

Errors name the missing files and the searched folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets._spec import OpenRequest

MAX_FOLDERS = 20_000  # limit on the number of searched folders
_NAMES_IN_PATHS = (  # text in the path, and data set; the first matching row counts
    ("imagenet", "imagenet"),
    ("cifar100", "cifar-100"),
    ("cifar-100", "cifar-100"),
    ("cifar", "cifar-10"),
    ("fashion", "fashion-mnist-full"),
)


def infer(data_dir: str, source: str = "--data-dir") -> str:
    """Return the data set's name: imagefolder for a folder with class folders, else by words in the path."""
    from cnn_harness.Datasets.formats import tfrecord
    from cnn_harness.Datasets.sources import image_tree

    folder = Path(data_dir)
    if folder.is_dir() and not tfrecord.shard_names(folder, "train") and image_tree.named_below(folder):
        return "imagefolder"
    for text, name in _NAMES_IN_PATHS:
        if text in data_dir.lower():
            return name
    known = ", ".join(text for text, _ in _NAMES_IN_PATHS)
    raise DataError(
        f"no data set can be inferred from {source} {data_dir}: the path contains none of {known}, and the folder has no "
        "class folders with images; give --dataset"
    )


def folder_given(name: str, wanted: str, request: OpenRequest) -> Path:
    """Return the folder given by --data-dir, else by DATA_DIR."""
    given = request.data_dir or request.environ.get("DATA_DIR")
    if not given:
        raise DataError(f"data set {name} needs files ({wanted}); give --data-dir or set DATA_DIR")
    if not Path(given).is_dir():
        source = "--data-dir" if request.data_dir else "DATA_DIR"
        raise DataError(f"data set {name}: {source} {given} is not a folder; give the folder with {wanted}")
    return Path(given)


def split_folder(given: str, data_dir: str | None, option: str) -> Path:
    """Return the folder given by --train-dir or --validation-dir, relative to `data_dir` or to the current folder."""
    places = [Path(data_dir or "", given), Path(given)]
    for place in places:
        if place.is_dir():
            return place
    raise DataError(f"{option} {given} is not a folder; looked for {' and '.join(map(str, dict.fromkeys(places)))}")


def holding_folder(name: str, top: Path, folder: str, files: Sequence[str]) -> Path:
    """Return `top`, or a folder named `folder` below `top`: the first of these that has one of `files`."""
    for here in (top, *folders_called(folder, top)):
        if any((here / file).is_file() for file in files):
            missing = [file for file in files if not (here / file).is_file()]
            if missing:
                raise DataError(f"data set {name}: {here} lacks {', '.join(missing)} (needed: {', '.join(files)})")
            return here
    raise DataError(
        f"data set {name}: no {files[0]} in {top} or in a folder named {folder} below; set --data-dir to the folder "
        f"with {', '.join(files)}"
    )


def folders_called(name: str, top: Path) -> Iterator[Path]:
    """Yield the folders called `name` below `top`, sorted. Follow links. Raise DataError after MAX_FOLDERS folders."""
    seen: set[str] = set()
    for here, below, _ in os.walk(top, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:  # a link to a parent folder would loop forever
            below.clear()
            continue
        seen.add(real)
        if len(seen) > MAX_FOLDERS:
            raise DataError(f"no folder named {name} in the first {MAX_FOLDERS} folders below {top}; set --data-dir to it")
        below.sort()
        if os.path.basename(here) == name and Path(here) != top:
            yield Path(here)
