"""Locate the data: infer the data set from a path, and search folders for its files.

Errors name the missing files and the searched folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from base.errors import DataError
from Datasets._spec import OpenRequest

MAX_FOLDERS = 20_000  # searched at most
_NAMES_IN_PATHS = (  # the first row whose text is in the path wins
    ("imagenet", "imagenet"),
    ("cifar100", "cifar-100"),
    ("cifar-100", "cifar-100"),
    ("cifar", "cifar-10"),
    ("fashion", "fashion-mnist-full"),
)


def infer(data_dir: str, source: str = "--data-dir") -> str:
    """Return the data set's name: imagefolder for a folder with class folders, else by words in the path."""
    from Datasets.formats import tfrecord
    from Datasets.sources import image_tree

    folder = Path(data_dir)
    if folder.is_dir() and not tfrecord.shard_names(folder, "train") and image_tree.named_below(folder):
        return "imagefolder"
    for text, name in _NAMES_IN_PATHS:
        if text in data_dir.lower():
            return name
    known = ", ".join(text for text, _ in _NAMES_IN_PATHS)
    raise DataError(
        f"no data set can be inferred from {source} {data_dir}: its name has none of {known}, and it has no class "
        "folders with images; give --dataset"
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
    """Return the folder given by --train-dir or --validation-dir: relative to the data folder, or else as given."""
    places = [Path(data_dir or "", given), Path(given)]
    for place in places:
        if place.is_dir():
            return place
    raise DataError(f"{option} {given} is not a folder; looked for {' and '.join(map(str, dict.fromkeys(places)))}")


def holding_folder(name: str, top: Path, folder: str, files: Sequence[str]) -> Path:
    """Return `top` if it has one of `files`, else a folder named `folder` below it that does."""
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
    """Yield the folders of that name below `top`, sorted, also through links; raise DataError beyond `MAX_FOLDERS`."""
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
