"""List the images to convert, with labels and splits, from a tree of folders or a CSV file."""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cnn_harness.base import bounds
from cnn_harness.base.errors import DataError
from cnn_harness.base.fields import short
from cnn_harness.base.process import tf_runtime
from cnn_harness.base.process.progress import Progress
from cnn_harness.base.storage import input_files
from cnn_harness.Datasets.formats import class_names, folder_names
from cnn_harness.Datasets.sources import image_folder
from cnn_harness.Datasets.sources.image_folder import BadFile, ImageFile, Listing

_PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "image_name", "img")
_NAMES = ("image_id", "id")  # heading of the path if there is no heading of _PATHS
_HEADINGS = {
    **dict.fromkeys((*_PATHS, *_NAMES), 0),
    **dict.fromkeys(("label", "labels", "class", "class_name", "category", "target"), 1),
    **dict.fromkeys(("split", "set", "subset"), 2),
}
_UNUSED = -1  # a column that is ignored
_ENDINGS = ("", ".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG", ".webp", ".bmp", ".gif")  # of files named without one
_DELIMITER = re.compile(r"sep=(.)\s*", re.IGNORECASE)  # a line that Excel reads and writes
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
    held_out = {folder_names.VALIDATION, folder_names.TEST}
    splits: tuple[list[ImageFile], list[ImageFile]] = ([], [])
    lines: dict[str, int] = {}
    for row in rows:
        file = _existing(source.parent, row.path)
        place = os.path.normpath(os.path.abspath(file))
        if lines.setdefault(place, row.line) != row.line:
            raise DataError(f"{source}, line {row.line}: {row.path} is already in line {lines[place]}")
        splits[row.split in held_out].append(ImageFile(file, label[row.label]))
    notes = tuple(f"warning: {line}" for line in class_names.alike(classes))
    return Listing(classes, splits[0], splits[1] if rows[0].split else None, notes)


def _existing(folder: Path, path: str) -> Path:
    """Return the file of a row, whose path may have backslashes or lack the ending of the file's name."""
    for written in dict.fromkeys((path, path.replace("\\", "/"))):
        for ending in _ENDINGS:
            if (folder / f"{written}{ending}").is_file():
                return folder / f"{written}{ending}"
    return folder / path


def read_rows(file: Path) -> list[_Row]:
    """Return the rows of a CSV file: path, label and optionally split; the header is optional.

    The delimiter is a comma, semicolon or tab, or is given by a line such as sep=; before the header.
    """
    rows: list[_Row] = []
    order: Sequence[int] = ()
    line = 1
    try:
        text = _text(file).split("\n")
        if given := _DELIMITER.fullmatch(text[0]):
            text[0] = ""
        first = next((each for each in text if each.strip()), "")
        found = next((each for each in ",;\t" if len(next(csv.reader([first], delimiter=each), ())) > 1), ",")
        delimiter = given[1] if given else found
        reader = csv.reader((f"{each}\n" for each in text), strict=True, delimiter=delimiter)
        for cells in reader:
            line, cells = reader.line_num, [cell.strip() for cell in cells]
            if not any(cells):
                continue
            heads = not order and _is_heading(cells)
            order = order or _columns(cells)
            if not heads:
                rows.append(_row(line, cells, order))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as a CSV file: {bounds.reason(error)}") from None
    except (csv.Error, ValueError) as error:
        raise DataError(f"{file}, line {line}: {error}") from None
    if not rows:
        raise DataError(f"{file} has no rows; give each image a row with path and label")
    return rows


def _text(file: Path) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 if it begins with the mark of UTF-16."""
    content = input_files.content(file, _MAX_BYTES)
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = content.decode("utf-16" if wide else "utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _is_heading(cells: Sequence[str]) -> bool:
    """Return whether the first line of a file names its columns. The column of an index has no name."""
    return next((cell for cell in cells if not _is_index(cell)), "").lower() in _HEADINGS


def _is_index(heading: str) -> bool:
    return not heading or heading.startswith("Unnamed:")  # as pandas writes it


def _columns(first: list[str]) -> Sequence[int]:
    """Return the content of each column: path (0), label (1), split (2), or _UNUSED, from the header if present."""
    order: list[int] = [*range(len(first))]
    if _is_heading(first):
        names = [cell.lower() for cell in first]
        order = [_UNUSED if _is_index(cell) else _HEADINGS.get(name, 3) for cell, name in zip(first, names)]
        if any(name in _PATHS for name in names):
            order = [_UNUSED if name in _NAMES else content for content, name in zip(order, names)]
        if 1 not in order and order.count(3) == 1:  # the only other column has the labels
            order[order.index(3)] = 1
        order = [_UNUSED if content == 3 and 1 in order else content for content in order]
    if sorted(each for each in order if each != _UNUSED) not in ([0, 1], [0, 1, 2]):
        raise ValueError(f"the columns must be path, label and optionally split, not {short(', '.join(first))}")
    return order


def _row(line: int, cells: list[str], order: Sequence[int]) -> _Row:
    if len(cells) != len(order):
        raise ValueError(f"{len(cells)} column{'s' * (len(cells) > 1)}, but the first line has {len(order)}")
    path, label, split = (dict(zip(order, cells)).get(k) for k in range(3))
    for what, value in (("path", path), ("label", label)):
        if not value or not value.isprintable():
            raise ValueError(f"the {what} '{short(value)}' is empty or has unprintable characters")
    known = folder_names.split_of(split) if split is not None else ""
    if known is None:
        raise ValueError(f"the split '{short(split)}' is neither train nor validation")
    return _Row(line, path, class_names.normal(label), known or None)


def without_bad_files(listing: Listing) -> tuple[Listing, list[BadFile]]:
    """Return the listing with only the images that training can decode, and the other files."""
    tf_runtime.import_tensorflow("3")  # hide TensorFlow's errors, because this command prints the reasons
    from cnn_harness.Datasets.pipeline import decoding

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
