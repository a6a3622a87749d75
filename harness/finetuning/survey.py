"""A first look at a folder of pictures, before anything is trained: classes, sizes, copies, and files left out."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from base.errors import DataError
from base.fields import short
from base.process import tf_runtime
from base.storage import input_files
from Datasets.formats import image_headers
from Datasets.formats.image_headers import MAX_BYTES
from Datasets.sources import image_folder
from Datasets.sources.image_folder import BadFile, Listing, Picture

if TYPE_CHECKING:
    from Datasets.pipeline import decoding

MAX_READ = 20_000  # pictures whose bytes are read; of more, the first ones, as a look is to take seconds
FEW = 10  # pictures of a class, below which a validation accuracy means little
_READ_TOGETHER = 16


@dataclass(frozen=True)
class Survey:
    """The pictures of a folder, and the facts about the first MAX_READ of them. `sides`: (width, height) in pixels of the
    smallest and of the largest picture, as stored; `turned`: the number of those that EXIF or XMP says to turn;
    `copies`: groups of files with the same bytes; `bad`: files that training cannot decode."""

    top: Path
    listing: Listing
    read: int
    sides: tuple[tuple[int, int], tuple[int, int]] | None
    turned: int
    copies: tuple[tuple[Path, ...], ...]
    bad: tuple[BadFile, ...]

    @property
    def lines(self) -> list[str]:
        """The lines that a person reads before the training."""
        listing, count = self.listing, len(self.listing.train)
        per_class = Counter(picture.label for picture in listing.train).values()
        held_out = f", and {len(listing.validation):,} for validation" if listing.validation else ""
        lines = [
            f"{self.top}: {count:,} pictures in {len(listing.classes)} classes, {_range(min(per_class), max(per_class))} "
            f"each{held_out}",
            f"classes: {short(', '.join(listing.classes))}",
        ]
        if self.sides:
            (w, h), (wide, high) = self.sides
            lines.append(f"pixels: {w} x {h}" + (f" to {wide} x {high}" if (w, h) != (wide, high) else ""))
        if self.turned:
            lines.append(f"turned upright, as EXIF says: {self.turned} picture{'s' * (self.turned > 1)}")
        if self.read < count:
            lines.append(f"looked into the first {self.read:,} pictures")
        return lines + self.warnings

    @property
    def warnings(self) -> list[str]:
        """The lines on pictures that are left out, or make an accuracy doubtful."""
        counts = Counter(picture.label for picture in self.listing.train)
        lines = list(self.listing.notes)
        few = [f"{name} ({counts[k]})" for k, name in enumerate(self.listing.classes, 1) if counts[k] < FEW]
        if few:
            lines.append(f"warning: classes of fewer than {FEW} pictures: {short(', '.join(few))}")
        if self.copies:
            number = sum(len(group) - 1 for group in self.copies)
            first, second = (os.path.relpath(path, self.top) for path in self.copies[0][:2])
            copies = f"{number} pictures are copies" if number > 1 else "1 picture is a copy"
            lines.append(
                f"warning: {copies} of others, as {short(second)} of {short(first)}; a copy in validation makes accuracy "
                "look better than it is"
            )
        across = self._in_several_classes()
        if across:
            lines.append(f"warning: {short(across)} is in several classes")
        return lines

    def _in_several_classes(self) -> Path | None:
        labels = {picture.file: picture.label for picture in self._pictures}
        return next((group[0] for group in self.copies if len({labels[file] for file in group}) > 1), None)

    @property
    def _pictures(self) -> list[Picture]:
        return [*self.listing.train, *(self.listing.validation or ())]


def scan_folder(top: Path, train: Path | None = None, validation: Path | None = None) -> Survey:
    """Return the survey of a folder of classes, or of given splits. DataError for a folder that nothing can be learnt from:
    one without classes, with one alone, with nothing but copies, or with nothing but damage in a class or for validation."""
    if not top.is_dir():
        raise DataError(f"{top} is not a folder; give the one with a folder of pictures for each class")
    listing = image_folder.tree(top, train, validation)
    if len(listing.classes) < 2:
        raise DataError(f"{top} has one class, {listing.classes[0]}: there is nothing to learn; add a folder for another")
    pictures = [*listing.train, *(listing.validation or ())][:MAX_READ]
    bad = image_folder.damaged(pictures)
    tf_runtime.import_tensorflow("3")
    from Datasets.pipeline import decoding

    unread = {each.file for each in bad}
    with ThreadPoolExecutor(_READ_TOGETHER) as pool:
        files = [picture.file for picture in pictures if picture.file not in unread]
        examined = list(pool.map(partial(_facts, decoder=decoding.Decoder()), files))
    bad += [BadFile(facts.file, facts.fault) for facts in examined if facts.fault]
    examined = [facts for facts in examined if not facts.fault]
    _check_sound(listing, {each.file: each.reason for each in bad})
    copies = _groups([(facts.digest, facts.file) for facts in examined])
    if len(examined) > 1 and len(copies) == 1 and len(copies[0]) == len(examined):
        raise DataError(
            f"all {len(examined)} pictures in {top} have the same bytes, as {copies[0][0]}: nothing can be learnt"
        )
    sizes = sorted((facts.size for facts in examined), key=lambda size: size[0] * size[1])
    turned = sum(facts.turned for facts in examined)
    return Survey(top, listing, len(pictures), (sizes[0], sizes[-1]) if sizes else None, turned, copies, tuple(bad))


class _Facts(NamedTuple):
    """`size`: (width, height) in pixels, as stored; `turned`: whether the picture is to be turned; `fault`: why it
    cannot be decoded."""

    file: Path
    digest: bytes
    size: tuple[int, int]
    turned: bool
    fault: str | None


def _facts(file: Path, decoder: decoding.Decoder) -> _Facts:
    content = input_files.content(file, MAX_BYTES)
    digest, fault = hashlib.blake2b(content, digest_size=16).digest(), decoder.fault(content)
    if fault:
        return _Facts(file, digest, (0, 0), False, fault)
    header = image_headers.header(content)
    return _Facts(file, digest, (header.width, header.height), header.orientation > 1, None)


def _check_sound(listing: Listing, bad: Mapping[Path, str]) -> None:
    """DataError if a class, or the validation part, has no whole pictures. `bad`: the other files, with their reasons."""
    parts = {f"class {name}": [] for name in listing.classes} | {"validation": []}
    for picture in listing.train:
        parts[f"class {listing.classes[picture.label - 1]}"].append(picture.file)
    parts["validation"] += [picture.file for picture in listing.validation or ()]
    for part, files in parts.items():
        if files and bad.keys() >= set(files):
            count = f"all {len(files)} pictures" if len(files) > 1 else "the only picture"
            why = f"as {files[0]}, which {bad[files[0]]}"
            raise DataError(f"{count} of {part} cannot be used, {why}: put others there, or remove the folder")


def _groups(keyed: Sequence[tuple[bytes, Path]]) -> tuple[tuple[Path, ...], ...]:
    """The files that share a key, group by group."""
    by_key: dict[bytes, list[Path]] = defaultdict(list)
    for key, file in keyed:
        by_key[key].append(file)
    return tuple(tuple(files) for files in by_key.values() if len(files) > 1)


def _range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
