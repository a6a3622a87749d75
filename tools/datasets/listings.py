"""Listings of the pictures to convert, with labels and splits, from a tree of folders or from a CSV file."""

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
from Datasets.sources.image_folder import BadFile, Listing, Picture

_HEADINGS = {
    **dict.fromkeys(("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img"), 0),
    **dict.fromkeys(("label", "labels", "class", "class_name", "category", "target"), 1),
    **dict.fromkeys(("split", "set", "subset"), 2),
}
_MAX_BYTES = 1 << 28  # of a list: some million pictures


class _Row(NamedTuple):
    line: int
    path: str
    label: str
    split: str | None  # None where the file has no such column


def read(source: Path, train: Path | None = None, validation: Path | None = None) -> Listing:
    """Return the pictures of a folder, of which splits may be given, or of a CSV file."""
    if source.is_dir():
        return image_folder.tree(source, train, validation)
    if not source.is_file():
        raise DataError(f"{source} is neither a folder nor a CSV file")
    rows = read_rows(source)
    classes = class_names.ordered(row.label for row in rows)
    label = {name: k for k, name in enumerate(classes, 1)}
    held_out = {split_names.VALIDATION, split_names.TEST}
    splits: tuple[list[Picture], list[Picture]] = ([], [])
    lines: dict[str, int] = {}
    for row in rows:
        place = os.path.normpath(os.path.join(os.path.abspath(source.parent), row.path))
        if lines.setdefault(place, row.line) != row.line:
            raise DataError(f"{source}, line {row.line}: {row.path} is in line {lines[place]} already")
        splits[row.split in held_out].append(Picture(source.parent / row.path, label[row.label]))
    return Listing(classes, splits[0], splits[1] if rows[0].split else None)


def read_rows(file: Path) -> list[_Row]:
    """Return the rows of a CSV file: path, label and maybe split, with commas, semicolons or tabs, maybe with headings."""
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
        raise DataError(f"{file} has no rows: it needs a path and a label in each")
    return rows


def _columns(first: list[str]) -> Sequence[int]:
    """Return for each column its place in path, label, split, by the headings if there are some."""
    order: Sequence[int] = range(len(first))
    if first[0].lower() in _HEADINGS:
        order = [_HEADINGS.get(cell.lower(), -1) for cell in first]
    if sorted(order) not in ([0, 1], [0, 1, 2]):
        raise ValueError(f"the columns must be path, label and maybe split, not {short(', '.join(first))}")
    return order


def _row(line: int, cells: list[str], order: Sequence[int]) -> _Row:
    if len(cells) != len(order):
        raise ValueError(f"{len(cells)} columns, but the first line has {len(order)}")
    path, label, split = (dict(zip(order, cells)).get(k) for k in range(3))
    for what, value in (("path", path), ("label", label)):
        if not value or not value.isprintable():
            raise ValueError(f"the {what} '{short(value)}' is empty, or has unprintable characters")
    known = split_names.split_of(split) if split is not None else ""
    if known is None:
        raise ValueError(f"the split is '{short(split)}', neither train nor validation")
    return _Row(line, path, class_names.normal(label), known or None)


def without_bad_files(listing: Listing) -> tuple[Listing, list[BadFile]]:
    """Return the pictures that training can decode, and the other files."""
    tf_runtime.import_tensorflow("3")  # the reasons are printed here
    from Datasets.pipeline import decoding

    files = [picture.file for picture in (*listing.train, *(listing.validation or ()))]
    with Progress("pictures decoded", len(files)) as progress, ThreadPoolExecutor() as pool:
        bad = []
        for file, reason in zip(files, pool.map(decoding.Decoder().file_fault, files)):
            bad += [BadFile(file, reason)] * bool(reason)
            progress.advance()
    left_out = {each.file for each in bad}

    def good(split: list[Picture]) -> list[Picture]:
        return [picture for picture in split if picture.file not in left_out]

    held_out = None if listing.validation is None else good(listing.validation)
    return replace(listing, train=good(listing.train), validation=held_out), bad
