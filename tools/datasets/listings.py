"""List the images to convert, with labels and splits, from a tree of folders or a CSV file."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from base import bounds
from base.errors import DataError
from base.fields import short
from base.process import tf_runtime
from base.process.progress import Progress
from base.storage import input_files
from Datasets.formats import class_names, split_names
from Datasets.sources import image_folder
from Datasets.sources.image_folder import BadFile, ImageFile, Listing

_HEADINGS = {
    **dict.fromkeys(("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img"), 0),
    **dict.fromkeys(("label", "labels", "class", "class_name", "category", "target"), 1),
    **dict.fromkeys(("split", "set", "subset"), 2),
}
_MAX_BYTES = 1 << 28  # limit for a CSV file: a few million images


class _Row(NamedTuple):
    line: int
    path: str
    label: str
    split: str | None  # None if the CSV file has no column for the split


def read(source: Path, train: Path | None = None, validation: Path | None = None) -> Listing:
    """Return the images of a folder or of a CSV file. `train` and `validation` are folders given by the user, if any."""
    if source.is_dir():
        return image_folder.tree(source, train, validation)
    if not source.is_file():
        raise DataError(f"{source} is neither a folder nor a CSV file")
    rows = read_rows(source)
    classes = class_names.ordered(row.label for row in rows)
    label = {name: k for k, name in enumerate(classes, 1)}
    held_out = {split_names.VALIDATION, split_names.TEST}
    splits: tuple[list[ImageFile], list[ImageFile]] = ([], [])
    lines: dict[str, int] = {}
    for row in rows:
        place = os.path.normpath(os.path.join(os.path.abspath(source.parent), row.path))
        if lines.setdefault(place, row.line) != row.line:
            raise DataError(f"{source}, line {row.line}: {row.path} is already in line {lines[place]}")
        splits[row.split in held_out].append(ImageFile(source.parent / row.path, label[row.label]))
    return Listing(classes, splits[0], splits[1] if rows[0].split else None)


def read_rows(file: Path) -> list[_Row]:
    """Return the rows of a CSV file: path, label and optionally split; the header is optional.

    The delimiter is a comma, semicolon or tab.
    """
    rows: list[_Row] = []
    order: Sequence[int] = ()
    line = 1
    try:
        text = input_files.text(file, _MAX_BYTES).removeprefix("\ufeff").split("\n")
        first = next((each for each in text if each.strip()), "")
        delimiter = next((each for each in ",;\t" if len(next(csv.reader([first], delimiter=each), ())) > 1), ",")
        reader = csv.reader((f"{each}\n" for each in text), strict=True, delimiter=delimiter)
        for cells in reader:
            line, cells = reader.line_num, [cell.strip() for cell in cells]
            if not any(cells):
                continue
            order = order or _columns(cells)
            if rows or cells[0].lower() not in _HEADINGS:
                rows.append(_row(line, cells, order))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as a CSV file: {bounds.reason(error)}") from None
    except (csv.Error, ValueError) as error:
        raise DataError(f"{file}, line {line}: {error}") from None
    if not rows:
        raise DataError(f"{file} has no rows; give each image a row with path and label")
    return rows


def _columns(first: list[str]) -> Sequence[int]:
    """Return the content of each column: path (0), label (1), split (2), or unknown (-1), from the header if present."""
    order: Sequence[int] = range(len(first))
    if first[0].lower() in _HEADINGS:
        order = [_HEADINGS.get(cell.lower(), -1) for cell in first]
    if sorted(order) not in ([0, 1], [0, 1, 2]):
        raise ValueError(f"the columns must be path, label and optionally split, not {short(', '.join(first))}")
    return order


def _row(line: int, cells: list[str], order: Sequence[int]) -> _Row:
    if len(cells) != len(order):
        raise ValueError(f"{len(cells)} column{'s' * (len(cells) > 1)}, but the first line has {len(order)}")
    path, label, split = (dict(zip(order, cells)).get(k) for k in range(3))
    for what, value in (("path", path), ("label", label)):
        if not value or not value.isprintable():
            raise ValueError(f"the {what} '{short(value)}' is empty or has unprintable characters")
    known = split_names.split_of(split) if split is not None else ""
    if known is None:
        raise ValueError(f"the split '{short(split)}' is neither train nor validation")
    return _Row(line, path, class_names.normal(label), known or None)


def without_bad_files(listing: Listing) -> tuple[Listing, list[BadFile]]:
    """Return the listing with only the images that training can decode, and the other files."""
    tf_runtime.import_tensorflow("3")  # hide TensorFlow's errors, because this command prints the reasons
    from Datasets.pipeline import decoding

    files = [image.file for image in (*listing.train, *(listing.validation or ()))]
    with Progress("images decoded", len(files)) as progress, ThreadPoolExecutor() as pool:
        bad = []
        for file, reason in zip(files, pool.map(decoding.Decoder().file_fault, files)):
            bad += [BadFile(file, reason)] * bool(reason)
            progress.advance()
    left_out = {each.file for each in bad}

    def good(split: list[ImageFile]) -> list[ImageFile]:
        return [image for image in split if image.file not in left_out]

    held_out = None if listing.validation is None else good(listing.validation)
    return replace(listing, train=good(listing.train), validation=held_out), bad
