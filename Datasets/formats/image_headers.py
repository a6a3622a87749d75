"""The header of an image, read by Pillow before anything is decoded: format, size, orientation, and whether it can be read.

Decoders believe a header and take memory at once: a file of a few bytes that promises gigabytes must not reach them.
Nothing here imports TensorFlow.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from base.errors import DataError
from base.storage import input_files

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 1 << 27  # 400 MB decoded; cameras of a hundred megapixels stay below it
MAX_BYTES = 1 << 27  # of a picture's file, and of a record
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WebP")
_BEGINNINGS = re.compile(
    rb"(?P<JPEG>\xff\xd8\xff)|(?P<PNG>\x89PNG\r\n\x1a\n)|(?P<GIF>GIF8)|(?P<BMP>BM)|(?P<WebP>RIFF.{4}WEBP)"
    # formats that are not read
    rb"|(?P<TIFF>II[*+]\0|MM\0[*+])|(?P<HEIC>.{4}ftyp(?:hei[cmsx]|hevc|mif1|msf1))|(?P<AVIF>.{4}ftypavi[fs])"
    rb"|(?P<JPEG_XL>\xff\x0a|\0\0\0\x0cJXL )|(?P<JPEG_2000>\0\0\0\x0cjP  |\xff\x4f\xff\x51)|(?P<PNM>P[1-7]\s)|(?P<PSD>8BPS)",
    re.DOTALL,
)
_LONGEST_BEGINNING = 12
# the frame header of a JPEG that is lossless or hierarchical, or has other than 8 bits
_UNREAD_JPEG = re.compile(
    rb"\xff(?:[\xc3\xc5-\xc7\xcb\xcd-\xcf]\0[\x0b\x0e\x11\x14]|[\xc0-\xc2\xc9\xca]\0[\x0b\x0e\x11\x14][^\x08])"
)
_END = b"\xff\xd9"  # of a JPEG
_ORIENTATION = 0x0112  # EXIF's tag
_TURNING = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")  # a PNG's chunks, which may follow its pixels


class Header(NamedTuple):
    """A file's claim: its format, one of FORMATS; the size in pixels as stored; and the orientation, 1 (upright) to 8, by
    EXIF, or by XMP where EXIF has none."""

    kind: str
    width: int
    height: int
    orientation: int


def header(encoded: bytes) -> Header:
    """Return the header of a picture's file; DataError ("is ...", "says ...") for one that is not to be decoded."""
    return _header(io.BytesIO(encoded), len(encoded), encoded)


def fault(encoded: bytes) -> str | None:
    """Return why a picture is not to be decoded ("is ...", "says ..."); None if its header promises what can be."""
    try:
        header(encoded)
    except DataError as error:
        return str(error)
    return None


def file_fault(file: Path) -> str | None:
    """Return why a file cannot be a picture, by its header: nothing behind that is read, where the format allows it."""
    try:
        with input_files.open_regular_file(file) as raw, io.BufferedReader(raw) as stream:
            _header(stream, os.fstat(raw.fileno()).st_size)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except DataError as error:
        return str(error)
    return None


def read(path: str) -> bytes:
    """Return the bytes of a photograph's file; DataError if they cannot be read or the header promises no image."""
    try:
        content = input_files.content(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise DataError(f"photograph {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if wrong := fault(content):
        raise DataError(f"photograph {path} {wrong}")
    return content


def _header(stream: BinaryIO, size: int, encoded: bytes | None = None) -> Header:
    """The header of a file of `size` bytes. Without `encoded`, all of them, nothing behind it is looked at."""
    form = _format(stream.read(_LONGEST_BEGINNING), size)
    stream.seek(0)
    try:
        with _pillow().open(stream, formats=[form.upper()]) as picture:
            at = stream.tell()
            (width, height), turn = picture.size, _orientation(picture, form, encoded)
    except Exception as error:  # whatever Pillow makes of damage
        if getattr(error, "errno", None) is not None:  # of the disc
            raise
        _refuse_unread_jpeg(form, stream, size)
        raise DataError(f"is damaged: the header of its {form} cannot be read") from None
    _refuse_unread_jpeg(form, stream, at)
    if width * height > MAX_PIXELS:
        raise DataError(f"says that it is {width} x {height} pixels, more than the {MAX_PIXELS} that are decoded")
    if size > MAX_BYTES:
        raise DataError(f"has {size} bytes, more than the {MAX_BYTES} that are decoded")
    if form == "JPEG" and encoded is not None and encoded.rfind(_END, at) < 0:  # a crop would not need the end
        raise DataError("is cut short: its JPEG has no end")
    return Header(form, width, height, turn)


def _refuse_unread_jpeg(form: str, stream: BinaryIO, size: int) -> None:
    """Raise DataError if the first `size` bytes have the frame header of a sound JPEG that the decoders cannot read."""
    if form == "JPEG":
        stream.seek(0)
        if _UNREAD_JPEG.search(stream.read(size)):
            raise DataError(
                "cannot be read: its JPEG is lossless or has other than 8 bits; save it again as a JPEG of 8 bits"
            )


def _format(first_bytes: bytes, size: int) -> str:
    if not size:
        raise DataError("is empty")
    match = _BEGINNINGS.match(first_bytes)
    form = match.lastgroup.replace("_", " ") if match else None
    if form in FORMATS:
        return form
    known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
    raise DataError(f"is {form}, which is not read; convert it to {known}" if form else f"is no {known} by its first bytes")


@cache
def _pillow() -> ModuleType:
    """Pillow, which takes a while to import. Sizes are checked here, and warnings (on tags, on sizes) would come in between
    the lines of a training."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    warnings.filterwarnings("ignore", module=r"PIL\b")
    return Image


def _orientation(picture: Image.Image, form: str, encoded: bytes | None) -> int:
    """The orientation that Pillow turns a picture upright by, as programs with an exported network do; 1 for none."""
    if encoded is None or (form == "PNG" and not any(word in encoded for word in _TURNING)):  # or Pillow decodes it all
        return 1
    try:
        found = picture.getexif().get(_ORIENTATION, 1)
    except Exception:  # whatever Pillow makes of damage: a picture without a sound EXIF is one all the same
        return 1
    return int(found) if found in range(1, 9) else 1
