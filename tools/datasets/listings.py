"""Listings of the pictures to convert, with labels and splits, from a tree of folders or from a CSV file."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TextIO

from base.errors import DataError
from base.fields import short
from base.process import tf_runtime
from base.process.progress import Progress
from Datasets.formats import class_names
from Datasets.sources import image_folder, split_folders
from Datasets.sources.image_folder import BadFile, Listing, Picture

TRAIN, VALIDATION = "train", "validation"
_SPLITS = {split_folders.TRAIN: TRAIN, split_folders.VALIDATION: VALIDATION, split_folders.TEST: VALIDATION}
_HEADINGS = {
    **dict.fromkeys(("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img"), 0),
    **dict.fromkeys(("label", "labels", "class", "class_name", "category", "target"), 1),
    **dict.fromkeys(("split", "set", "subset"), 2),
}
_MAX_BYTES = 1 << 30  # of a list: some ten million pictures


class _Row(NamedTuple):
    line: int
    path: str
    label: str
    split: str  # "" where the file has no such column


def of(source: Path, train: Path | None = None, validation: Path | None = None) -> Listing:
    """The pictures of a folder, of which splits may be given, or of a CSV file."""
    if source.is_dir():
        return image_folder.tree(source, train, validation)
    if source.is_file():
        return _of_rows(source, read_rows(source))
    raise DataError(f"{source} is neither a folder nor a CSV file")


def read_rows(file: Path) -> list[_Row]:
    """The rows of a CSV file: path, label and maybe split, split by commas, semicolons or tabs, maybe with headings."""
    rows: list[_Row] = []
    order: Sequence[int] = ()
    if file.stat().st_size > _MAX_BYTES:
        raise DataError(f"{file} has more than the {_MAX_BYTES:,} bytes that are read of a list")
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True, delimiter=_delimiter(stream))
            for cells in reader:
                cells = [cell.strip() for cell in cells]
                if not any(cells):
                    continue
                where = f"{file}, line {reader.line_num}"
                if not order:
                    order = _columns(cells, where)
                    if cells[0].lower() in _HEADINGS:
                        continue
                rows.append(_row(cells, order, reader.line_num, where))
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is no UTF-8 text (byte {error.start}); is it a CSV file?") from None
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num}: {error}") from None
    if not rows:
        raise DataError(f"{file} has no rows: it needs a path and a label in each")
    return rows


def _delimiter(stream: TextIO) -> str:
    """The comma, or what separates two or three columns in the first line with text that has none by it."""
    first = next((line for line in stream if line.strip()), "")
    stream.seek(0)
    with suppress(csv.Error):
        for delimiter in ",;\t":
            if len(next(csv.reader([first], delimiter=delimiter))) > 1:
                return delimiter
    return ","


def without_bad_files(listing: Listing) -> tuple[Listing, list[BadFile]]:
    """The pictures that training can decode, and the other files."""
    tf_runtime.import_tensorflow("3")  # the reasons are printed here
    from Datasets.pipeline import decoding

    files = [picture.file for picture in (*listing.train, *(listing.validation or ()))]
    with Progress("pictures decoded", len(files)) as progress, ThreadPoolExecutor() as pool:
        bad = []
        for file, reason in zip(files, pool.map(decoding.Decoder().file_fault, files)):
            bad += [BadFile(file, reason)] * bool(reason)
            progress.advance()
    if not bad:
        return listing, []
    left_out = {each.file for each in bad}

    def good(split: list[Picture]) -> list[Picture]:
        return [picture for picture in split if picture.file not in left_out]

    held_out = None if listing.validation is None else good(listing.validation)
    return replace(listing, train=good(listing.train), validation=held_out), bad


def check_every_class(listing: Listing) -> None:
    """Raise if a class has no picture to train on."""
    with_some = {picture.label for picture in listing.train}
    for label, name in enumerate(listing.classes, 1):
        if label not in with_some:
            raise DataError(f"class {short(name)} has no picture for training left; add one or remove the class")


def _of_rows(file: Path, rows: list[_Row]) -> Listing:
    classes = _classes(file, rows)
    label = {name: k for k, name in enumerate(classes, 1)}
    splits: dict[str, list[Picture]] = {TRAIN: [], VALIDATION: []}
    lines: dict[str, int] = {}
    for row in rows:
        place = os.path.normpath(os.path.join(os.path.abspath(file.parent), row.path))
        if place in lines:
            raise DataError(f"{file}, line {row.line}: {row.path} is in line {lines[place]} already")
        lines[place] = row.line
        splits[row.split or TRAIN].append(Picture(file.parent / row.path, label[row.label]))
    return Listing(classes, splits[TRAIN], splits[VALIDATION] if rows[0].split else None)


def _classes(file: Path, rows: list[_Row]) -> tuple[str, ...]:
    """The labels in their order; DataError where one number has two spellings."""
    lines: dict[str, int] = {}
    for row in rows:
        lines.setdefault(row.label, row.line)
    names = list(lines)
    same = class_names.same_number(names)
    if same:
        first, second = (names[place] for place in same)
        raise DataError(
            f"{file}, line {lines[second]}: the label {short(second)} is the number of {short(first)} in line "
            f"{lines[first]}; write it one way"
        )
    return class_names.ordered(names)


def _columns(first: list[str], where: str) -> Sequence[int]:
    """Return for each column the index into path, label, split, by the first line."""
    if first[0].lower() not in _HEADINGS:
        return range(len(first))
    unknown = [cell for cell in first if cell.lower() not in _HEADINGS]
    if unknown:
        raise DataError(f"{where}: no heading is called '{short(unknown[0])}'; the columns are path, label and maybe split")
    order = [_HEADINGS[cell.lower()] for cell in first]
    if len(set(order)) != len(order) or not {0, 1} <= set(order):
        raise DataError(f"{where}: the headings {short(', '.join(first))} must be path, label and maybe split, each once")
    return order


def _row(cells: list[str], order: Sequence[int], line: int, where: str) -> _Row:
    if len(order) not in (2, 3):
        raise DataError(f"{where}: {len(order)} columns; a row has a path, a label and maybe train or validation")
    if len(cells) != len(order):
        raise DataError(f"{where}: {len(cells)} columns, but the first line has {len(order)}")
    values = dict(zip(order, cells))
    path, label, split = values[0], values[1], values.get(2)
    for what, value in (("path", path), ("label", label)):
        if not value:
            raise DataError(f"{where}: the {what} is empty")
        if not value.isprintable():
            raise DataError(f"{where}: the {what} '{short(value)}' has unprintable characters")
    known = _SPLITS.get(split_folders.split_of(split) or "") if split is not None else ""
    if known is None:
        raise DataError(f"{where}: the split is '{short(split)}', neither {TRAIN} nor {VALIDATION}")
    return _Row(line, path, class_names.normal(label), known)
