"""Check an image's header with Pillow before decoding: format, size, orientation, and whether it can be read.

Decoders trust headers and allocate memory at once, so a small file that claims gigabytes must be rejected first.
This file does not import TensorFlow.
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

from cnn_harness.base.errors import DataError
from cnn_harness.base.storage import input_files

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 1 << 27  # decoded, this is 400 MB; it is enough for cameras of a hundred megapixels
MAX_BYTES = 1 << 27  # limit for an image file, and for a record
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WebP")
_BEGINNINGS = re.compile(
    rb"(?P<JPEG>\xff\xd8\xff)|(?P<PNG>\x89PNG\r\n\x1a\n)|(?P<GIF>GIF8)|(?P<BMP>BM)|(?P<WebP>RIFF.{4}WEBP)"
    # formats that are recognised but not supported
    rb"|(?P<TIFF>II[*+]\0|MM\0[*+])|(?P<HEIC>.{4}ftyp(?:hei[cmsx]|hevc|mif1|msf1))|(?P<AVIF>.{4}ftypavi[fs])"
    rb"|(?P<JPEG_XL>\xff\x0a|\0\0\0\x0cJXL )|(?P<JPEG_2000>\0\0\0\x0cjP  |\xff\x4f\xff\x51)|(?P<PNM>P[1-7]\s)|(?P<PSD>8BPS)",
    re.DOTALL,
)
_LONGEST_BEGINNING = 12
# matches the frame header of a JPEG that is lossless or hierarchical, or does not have 8 bits per value
_UNREAD_JPEG = re.compile(
    rb"\xff(?:[\xc3\xc5-\xc7\xcb\xcd-\xcf]\0[\x0b\x0e\x11\x14]|[\xc0-\xc2\xc9\xca]\0[\x0b\x0e\x11\x14][^\x08])"
)
_END = b"\xff\xd9"  # the end of a JPEG
_ORIENTATION = 0x0112  # EXIF's tag for the orientation
# marks in PNG chunks that contain an orientation; these chunks may follow the pixels
_TURNING = b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp"


class Header(NamedTuple):
    """An image's format (one of FORMATS), its stored size in pixels, and its orientation.

    The orientation is from 1 (upright) to 8, by EXIF or else by XMP.
    """

    kind: str
    width: int
    height: int
    orientation: int


def header(encoded: bytes) -> Header:
    """Return the header of an encoded image; raise DataError ("is ...", "claims ...") if decoding is not possible."""
    return _header(io.BytesIO(encoded), len(encoded), encoded)


def fault(encoded: bytes) -> str | None:
    """Return the reason why an encoded image cannot be decoded, by its header ("is ...", "claims ..."), or None."""
    try:
        header(encoded)
    except DataError as error:
        return str(error)
    return None


def file_fault(file: Path) -> str | None:
    """Return the reason why a file is not a readable image, by its header, or None. Usually read only the header."""
    try:
        with input_files.open_regular_file(file) as raw, io.BufferedReader(raw) as stream:
            _header(stream, os.fstat(raw.fileno()).st_size)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except DataError as error:
        return str(error)
    return None


def has_transparent_pixels(encoded: bytes) -> bool:
    """Return whether a readable image has fully transparent pixels. Training sees the colours that are stored there."""
    if encoded.startswith(b"\xff\xd8"):  # a JPEG has no transparency
        return False
    try:
        with _pillow().open(io.BytesIO(encoded), formats=[form.upper() for form in FORMATS]) as image:
            if not image.has_transparency_data:
                return False
            return image.convert("RGBA").getchannel("A").getextrema()[0] == 0
    except Exception:  # Pillow raises many types of errors for damaged files, which are reported elsewhere
        return False


def hidden_colours(count: int, first: Path | str) -> str:
    """Return the text of a warning about `count` images with transparent pixels."""
    images = f"{count} images have" if count > 1 else "1 image has"
    return (
        f"{images} transparent pixels, for example {first}. Transparency is ignored, so training sees the colours stored "
        "there; paint a background to hide them"
    )


def read(path: str) -> bytes:
    """Return the bytes of a photo file; raise DataError if it cannot be read or is not an image by its header."""
    try:
        content = input_files.content(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise DataError(f"photo {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if wrong := fault(content):
        raise DataError(f"photo {path} {wrong}")
    return content


def _header(stream: BinaryIO, size: int, encoded: bytes | None = None) -> Header:
    """Return the header of a file of `size` bytes.

    `encoded` has all bytes of the file; None checks the header only.
    """
    form = _format(stream.read(_LONGEST_BEGINNING), size)
    stream.seek(0)
    try:
        with _pillow().open(stream, formats=[form.upper()]) as image:
            at = stream.tell()
            (width, height), turn = image.size, _orientation(image, form, encoded)
    except Exception as error:  # Pillow raises many types of errors for damaged files
        if getattr(error, "errno", None) is not None:  # reading failed, so the image may be intact
            raise
        _refuse_unread_jpeg(form, stream, size)
        raise DataError(f"is damaged: its {form} header cannot be read") from None
    _refuse_unread_jpeg(form, stream, at)
    if width * height > MAX_PIXELS:
        raise DataError(f"claims {width} x {height} pixels, more than the limit of {MAX_PIXELS}")
    if size > MAX_BYTES:
        raise DataError(f"has {size} bytes, more than the limit of {MAX_BYTES}")
    if form == "JPEG" and encoded is not None and encoded.rfind(_END, at) < 0:  # decoding only a crop may not detect this
        raise DataError("is truncated: the end of its JPEG is missing")
    return Header(form, width, height, turn)


def _refuse_unread_jpeg(form: str, stream: BinaryIO, size: int) -> None:
    """Raise DataError if the first `size` bytes have a header of a JPEG kind that the decoders cannot read."""
    if form == "JPEG":
        stream.seek(0)
        if _UNREAD_JPEG.search(stream.read(size)):
            raise DataError(
                "cannot be read: its JPEG is lossless or does not have 8 bits; save it again as a JPEG of 8 bits"
            )


def _format(first_bytes: bytes, size: int) -> str:
    if not size:
        raise DataError("is empty")
    match = _BEGINNINGS.match(first_bytes)
    form = match.lastgroup.replace("_", " ") if match else None
    if form in FORMATS:
        return form
    known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
    raise DataError(f"is {form}, which is not supported; convert it to {known}" if form else f"is not a {known} file")


@cache
def _pillow() -> ModuleType:
    """Import Pillow late, because this is slow. Turn off Pillow's warnings and its limit on sizes, checked here."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    warnings.filterwarnings("ignore", module=r"PIL\b")
    return Image


def _orientation(image: Image.Image, form: str, encoded: bytes | None) -> int:
    """Return the orientation that Pillow finds, from 1 (upright) to 8, so that exported networks see the same image."""
    if encoded is None or (form == "PNG" and not any(word in encoded for word in _TURNING)):  # Pillow would decode the PNG
        return 1
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow raises many types of errors for damaged EXIF data, but the image is usable
        return 1
    return int(found) if found in range(1, 9) else 1
