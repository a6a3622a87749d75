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
MAX_SCANS = 200  # of a JPEG, each of which passes over the whole picture; encoders write a dozen
_SCANS_OF_THE_LARGEST = 16  # of a picture of MAX_PIXELS
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WebP")
_OTHERS = re.compile(
    rb"(?P<TIFF>II[*+]\0|MM\0[*+])|(?P<HEIC>.{4}ftyp(?:hei[cmsx]|hevc|mif1|msf1))"
    rb"|(?P<AVIF>.{4}ftypavi[fs])|(?P<JPEG_XL>\xff\x0a|\0\0\0\x0cJXL )|(?P<JPEG_2000>\0\0\0\x0cjP  |\xff\x4f\xff\x51)"
    rb"|(?P<PNM>P[1-7]\s)|(?P<Photoshop>8BPS)",
    re.DOTALL,
)  # formats that are not read
UNREAD = "cannot be read"  # begins the reason where a file's bytes are not known, or sound bytes have no decoder
REMEDY = re.compile("; (make it smaller|save it anew|convert it)")  # in the reasons why a sound picture is refused
_BEGINNINGS = (
    (rb"\xff\xd8\xff", "JPEG"), (rb"\x89PNG\r\n\x1a\n", "PNG"), (rb"GIF8", "GIF"), (rb"BM", "BMP"),
    (rb"RIFF.{4}WEBP", "WebP"),
)  # fmt: skip
_LONGEST_BEGINNING = 12
# Pixels that a byte can stand for at most. JPEG: a bit for a block of 8 x 8, twice that with odd sampling. PNG:
# DEFLATE's 1032 bytes, eight pixels each. GIF: a code of 12 bits for the longest entry of its table. BMP: a run of 255 in
# two bytes. WebP: a picture of one colour takes no bit a pixel, so that MAX_PIXELS alone bounds it.
_PIXELS_A_BYTE = {"JPEG": 1024, "PNG": 8 * 1032, "GIF": 2 * 4096, "BMP": 128, "WebP": MAX_PIXELS}
# the frame header of a JPEG that is lossless or hierarchical, or has other than 8 bits
_UNREAD_JPEG = re.compile(
    rb"\xff(?:[\xc3\xc5-\xc7\xcb\xcd-\xcf]\0[\x0b\x0e\x11\x14]|[\xc0-\xc2\xc9\xca]\0[\x0b\x0e\x11\x14][^\x08])"
)
_SCAN = re.compile(rb"\xff\xda\0(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")  # the only four beginnings of a JPEG's scan
_SCAN_MARKER = b"\xff\xda"
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


class _Wrong(Exception):
    """Why a picture is not to be decoded."""


def kind(first_bytes: bytes) -> str | None:
    """The format, one of FORMATS, by a file's first bytes; None for any other."""
    return next((name for known, name in _BEGINNINGS if re.match(known, first_bytes, re.DOTALL)), None)


def header(encoded: bytes) -> Header:
    """The header of a picture's file; DataError ("is ...", "says ...") for one that is not to be decoded."""
    try:
        return _header(io.BytesIO(encoded), len(encoded), encoded)
    except _Wrong as error:
        raise DataError(str(error)) from None


def fault(encoded: bytes) -> str | None:
    """Why a picture is not to be decoded ("is ...", "says ..."); None if its header promises what can be."""
    try:
        _header(io.BytesIO(encoded), len(encoded), encoded)
    except _Wrong as error:
        return str(error)
    return None


def file_fault(file: Path) -> str | None:
    """Why a file cannot be a picture, by its header: nothing behind that is read, where the format allows it."""
    try:
        with input_files.open_regular_file(file) as raw, io.BufferedReader(raw) as stream:
            _header(stream, os.fstat(raw.fileno()).st_size)
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"{UNREAD}: {error.strerror}"
    except _Wrong as error:
        return str(error)
    return None


def read(path: str) -> bytes:
    """The bytes of a photograph's file; DataError if they cannot be read or the header promises no image to be decoded."""
    try:
        content = input_files.content(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise DataError(f"photograph {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    wrong = fault(content)
    if wrong:
        raise DataError(f"photograph {path} {wrong}")
    return content


def _header(stream: BinaryIO, size: int, encoded: bytes | None = None) -> Header:
    """The header of a file of `size` bytes. Without `encoded`, all of them, nothing behind it is looked at."""
    form = _form(stream.read(_LONGEST_BEGINNING), size)
    stream.seek(0)
    try:
        with _pillow().open(stream, formats=[form.upper()]) as picture:
            at = stream.tell()
            (width, height), turn = picture.size, _orientation(picture, form, encoded)
    except Exception as error:  # whatever Pillow makes of damage
        if getattr(error, "errno", None) is not None:  # of the disc
            raise
        _refuse_unread_jpeg(form, stream)
        raise _Wrong(f"is damaged: the header of its {form} cannot be read") from None
    says = f"says that it is {width} x {height} pixels"
    if width * height > MAX_PIXELS:
        raise _Wrong(f"{says}, more than the {MAX_PIXELS} that are decoded; make it smaller")
    if size > MAX_BYTES:
        raise _Wrong(f"has {size} bytes, more than the {MAX_BYTES} that are decoded; make it smaller")
    if width * height > size * _PIXELS_A_BYTE[form]:
        raise _Wrong(f"{says}, which its {size} bytes cannot hold; it is damaged")
    if form == "JPEG":
        _refuse_unread_jpeg(form, stream, at)
        if encoded is not None:
            _check_scans(encoded, at, width * height)
    return Header(form, width, height, turn)


def _form(first_bytes: bytes, size: int) -> str:
    if not size:
        raise _Wrong("is empty")
    form = kind(first_bytes)
    if form is None:
        other, known = _OTHERS.match(first_bytes), f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        if other:
            raise _Wrong(f"is {other.lastgroup.replace('_', ' ')}, which is not read; convert it to {known}")
        raise _Wrong(f"is no {known} by its first bytes")
    return form


@cache
def _pillow() -> ModuleType:
    """Pillow, which takes a while to import. Sizes are checked here, and warnings (on tags, on sizes) would come in between
    the lines of a training."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    warnings.filterwarnings("ignore", module=r"PIL\b")
    return Image


def _refuse_unread_jpeg(form: str, stream: BinaryIO, size: int = -1) -> None:
    """Raise if the first `size` bytes have the frame header of a sound JPEG that the decoders cannot read."""
    stream.seek(0)
    if form == "JPEG" and _UNREAD_JPEG.search(stream.read(size)):
        raise _Wrong(f"{UNREAD}: its JPEG is lossless or has other than 8 bits; save it anew as a JPEG of 8 bits")


def _check_scans(encoded: bytes, at: int, pixels: int) -> None:
    """Raise for a JPEG, whose first scan is behind `at`, that is cut short or takes hours. A crop would not need its end."""
    if encoded.rfind(_END, at) < 0:
        raise _Wrong("is cut short: its JPEG has no end; it is damaged")
    most = min(MAX_SCANS, _SCANS_OF_THE_LARGEST * MAX_PIXELS // pixels)
    if encoded.count(_SCAN_MARKER) > most and len(_SCAN.findall(encoded)) > most:  # a film behind it has some markers
        raise _Wrong(f"has more than the {most} scans that are decoded at this number of pixels; save it anew")


def _orientation(picture: Image.Image, form: str, encoded: bytes | None) -> int:
    """The orientation that Pillow turns a picture upright by, as programs with an exported network do; 1 for none."""
    if encoded is None or (form == "PNG" and not any(word in encoded for word in _TURNING)):  # or Pillow decodes it all
        return 1
    try:
        found = picture.getexif().get(_ORIENTATION, 1)
    except Exception:  # whatever Pillow makes of damage: a picture without a sound EXIF is one all the same
        return 1
    return int(found) if found in range(1, 9) else 1
