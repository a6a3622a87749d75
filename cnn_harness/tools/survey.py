"""Check a folder of images before fine-tuning: count classes, compare image sizes, find duplicates and damaged files."""

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

from cnn_harness.base.errors import DataError
from cnn_harness.base.fields import short
from cnn_harness.base.process import progress, tf_runtime
from cnn_harness.base.storage import input_files
from cnn_harness.Datasets.formats import image_headers
from cnn_harness.Datasets.formats.image_headers import MAX_BYTES
from cnn_harness.Datasets.sources import image_folder
from cnn_harness.Datasets.sources.image_folder import BadFile, ImageFile, Listing

if TYPE_CHECKING:
    from cnn_harness.Datasets.pipeline import decoding

MAX_READ = 20_000  # Only this number of images is read, so that the check takes seconds.
FEW = 10  # Classes with fewer images cause a warning, because so few images give a poor estimate of the accuracy.
SMALL = 16  # Images with a shorter side, in pixels, cause a warning: they are icons or the remains of damaged files.
_READ_TOGETHER = 16


@dataclass(frozen=True)
class Survey:
    """The images of the folder `top`, and facts about the first MAX_READ images.

    `read` is the number of images that were read. `sides` has the stored (width, height) of the smallest and the largest
    image, in pixels. `turned` is the number of images whose EXIF or XMP data request a rotation. `copies` are groups of
    identical files. `bad` are files that cannot be decoded. `small` are images with a side below SMALL, and `hidden` are
    those with transparent pixels.
    """

    top: Path
    listing: Listing
    read: int
    sides: tuple[tuple[int, int], tuple[int, int]] | None
    turned: int
    copies: tuple[tuple[Path, ...], ...]
    bad: tuple[BadFile, ...]
    small: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The lines to print before training, including the warnings."""
        listing, per_class = self.listing, self._usable(self.listing.train).values()
        held_out = f", and {self._usable(listing.validation).total():,} for validation" if listing.validation else ""
        skipped = f", without {_counted(self.bad, 'damaged file')}" if self.bad else ""
        lines = [
            f"{self.top}: {sum(per_class):,} images in {len(listing.classes)} classes, "
            f"{_range(min(per_class), max(per_class))} each{held_out}{skipped}",
            f"classes: {short(', '.join(listing.classes))}",
        ]
        if self.sides:
            (w, h), (wide, high) = self.sides
            lines.append(f"image sizes: {w} x {h}" + (f" to {wide} x {high}" if (w, h) != (wide, high) else "") + " pixels")
        if self.turned:
            lines.append(f"rotated, because EXIF or XMP data say so: {self.turned} image{'s' * (self.turned > 1)}")
        if self.read < len(self._images):
            lines.append(f"only the first {self.read:,} images were checked")
        return lines + self.warnings

    @property
    def warnings(self) -> list[str]:
        """Warnings about skipped files, and about images that make the accuracy unreliable."""
        counts = self._usable(self.listing.train)
        lines = list(self.listing.notes)
        few = [f"{name} ({counts[k]})" for k, name in enumerate(self.listing.classes, 1) if counts[k] < FEW]
        if few:
            lines.append(f"warning: classes with fewer than {FEW} images: {short(', '.join(few))}")
        if self.copies:
            number = sum(len(group) - 1 for group in self.copies)
            first, second = map(self._short, self.copies[0][:2])
            copies = f"{number} images are copies of others" if number > 1 else "1 image is a copy of another"
            lines.append(
                f"warning: {copies} (for example, {second} of {first}). Delete the copies: in the validation "
                "set, they make the accuracy look better than it is"
            )
        across = self._in_several_classes()
        if across:
            lines.append(f"warning: {short(across)} is in more than one class; keep it in the right class only")
        if self.small:
            images = _counted(self.small, "image")
            lines.append(f"warning: {images} with a side below {SMALL} pixels, for example {self._short(self.small[0])}")
        if self.hidden:
            lines.append(f"warning: {image_headers.hidden_colours(len(self.hidden), self._short(self.hidden[0]))}")
        return lines

    def _short(self, file: Path) -> str:
        return short(os.path.relpath(file, self.top))

    def _usable(self, images: Sequence[ImageFile]) -> Counter[int]:
        """Return the number of images of each label, without the damaged ones."""
        bad = {each.file for each in self.bad}
        return Counter(each.label for each in images if each.file not in bad)

    def _in_several_classes(self) -> Path | None:
        labels = {each.file: each.label for each in self._images}
        return next((group[0] for group in self.copies if len({labels[file] for file in group}) > 1), None)

    @property
    def _images(self) -> list[ImageFile]:
        return [*self.listing.train, *(self.listing.validation or ())]


def scan_folder(top: Path, train: Path | None = None, validation: Path | None = None) -> Survey:
    """Check the images in a folder that contains a folder for each class, or that contains the splits `train` and
    `validation`.

    Raise DataError if there are fewer than two classes, if all images are identical, or if a class or the validation set
    has no valid image.
    """
    if not top.is_dir():
        raise DataError(f"{top} is not a folder; give a folder that contains a folder of images for each class")
    listing = image_folder.tree(top, train, validation)
    if len(listing.classes) < 2:
        notes = "\n".join(note for note in listing.notes if note.startswith("warning"))
        raise DataError(f"{top} has only one class, {listing.classes[0]}; add a folder for another class", notes)
    images = [*listing.train, *(listing.validation or ())][:MAX_READ]
    bad = image_folder.damaged(images)
    tf_runtime.import_tensorflow("3")
    from cnn_harness.Datasets.pipeline import decoding

    unread = {each.file for each in bad}
    files = [each.file for each in images if each.file not in unread]
    with progress.Progress("images checked", len(files)) as shown, ThreadPoolExecutor(_READ_TOGETHER) as pool:
        examined = []
        for facts in pool.map(partial(_facts, decoder=decoding.Decoder()), files):
            examined.append(facts)
            shown.advance()
    bad += [BadFile(facts.file, facts.fault) for facts in examined if facts.fault]
    examined = [facts for facts in examined if not facts.fault]
    _check_sound(listing, {each.file: each.reason for each in bad})
    copies = _groups([(facts.digest, facts.file) for facts in examined])
    if len(examined) > 1 and len(copies) == 1 and len(copies[0]) == len(examined):
        raise DataError(
            f"all {len(examined)} images in {top} are identical, for example {copies[0][0]}; add different images"
        )
    sizes = sorted((facts.size for facts in examined), key=lambda size: size[0] * size[1])
    turned = sum(facts.turned for facts in examined)
    small = tuple(facts.file for facts in examined if min(facts.size) < SMALL)
    hidden = tuple(facts.file for facts in examined if facts.hidden)
    ends = (sizes[0], sizes[-1]) if sizes else None
    return Survey(top, listing, len(images), ends, turned, copies, tuple(bad), small, hidden)


class _Facts(NamedTuple):
    """Facts about an image. `size` is the stored (width, height) in pixels. `turned` is true if EXIF or XMP data request a
    rotation, and `hidden` if it has transparent pixels. `fault` is the reason if the image cannot be decoded."""

    file: Path
    digest: bytes
    size: tuple[int, int]
    turned: bool
    hidden: bool
    fault: str | None


def _facts(file: Path, decoder: decoding.Decoder) -> _Facts:
    content = input_files.content(file, MAX_BYTES)
    digest, fault = hashlib.blake2b(content, digest_size=16).digest(), decoder.fault(content)
    if fault:
        return _Facts(file, digest, (0, 0), False, False, fault)
    header = image_headers.header(content)
    hidden = image_headers.has_transparent_pixels(content)
    return _Facts(file, digest, (header.width, header.height), header.orientation > 1, hidden, None)


def _check_sound(listing: Listing, bad: Mapping[Path, str]) -> None:
    """Raise DataError if a class or the validation set has no valid image. `bad` maps invalid files to reasons."""
    parts = {f"class {name}": [] for name in listing.classes} | {"the validation set": []}
    for each in listing.train:
        parts[f"class {listing.classes[each.label - 1]}"].append(each.file)
    parts["the validation set"] += [each.file for each in listing.validation or ()]
    for part, files in parts.items():
        if files and bad.keys() >= set(files):
            count = f"all {len(files)} images" if len(files) > 1 else "the only image"
            why = f"{files[0]} {bad[files[0]]}"
            raise DataError(f"{count} of {part} cannot be used ({why}); replace the damaged files, or remove the folder")


def _groups(keyed: Sequence[tuple[bytes, Path]]) -> tuple[tuple[Path, ...], ...]:
    """Return the groups of files that share a key."""
    by_key: dict[bytes, list[Path]] = defaultdict(list)
    for key, file in keyed:
        by_key[key].append(file)
    return tuple(tuple(files) for files in by_key.values() if len(files) > 1)


def _counted(files: Sequence[object], noun: str) -> str:
    return f"{len(files)} {noun}{'s' * (len(files) > 1)}"


def _range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
