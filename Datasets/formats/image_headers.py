"""The header of an image, read before anything is decoded: format, size, and whether the bytes can hold that size.

Decoders believe a header and take memory at once: a file of a few bytes that promises gigabytes must not reach them.
Nothing here imports TensorFlow.
"""

from __future__ import annotations

import io
import mmap
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from base.errors import DataError
from base.storage import input_files

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
UNREAD = "cannot be read"  # begins the reason where a file's bytes are not known
REMEDY = re.compile("; (make it smaller|save it anew|convert it)")  # in the reasons why a sound picture is refused
_BEGINNINGS = (
    (rb"\xff\xd8\xff", "JPEG"), (rb"\x89PNG\r\n\x1a\n", "PNG"), (rb"GIF8", "GIF"), (rb"BM", "BMP"),
    (rb"RIFF.{4}WEBP", "WebP"),
)  # fmt: skip
LONGEST_BEGINNING = 12
# Pixels that a byte can stand for at most. JPEG: a bit for a block of 8 x 8, twice that with odd sampling. PNG:
# DEFLATE's 1032 bytes, eight pixels each. GIF: a code of 12 bits for the longest entry of its table. WebP: a picture of one
# colour takes no bit a pixel, so that MAX_PIXELS alone bounds it.
_PIXELS_A_BYTE = {"JPEG": 1024, "PNG": 8 * 1032, "GIF": 2 * 4096, "WebP": MAX_PIXELS}
_MAX_SEGMENTS = 10_000  # of a JPEG
_MAX_BLOCKS = 1 << 20  # of a GIF, 255 bytes each
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])")  # that a length follows; the others stand in and between scans
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # JPEG's markers that a size follows
_SEQUENTIAL = (0xC0, 0xC1)
_END, _SCAN = 0xD9, 0xDA
_EXIF = re.compile(rb"Exif\0\0|eXIf|EXIF|Raw profile type exif")
_ORIENTATION = 0x0112  # EXIF's tag


Bytes = bytes | mmap.mmap


class Header(NamedTuple):
    """A file's claim, in pixels. `pixels`: of all frames; `most`: the number that its bytes can hold; `width` and `height`:
    of the canvas, or of the first frame."""

    kind: str
    width: int
    height: int
    pixels: int
    most: int


class _Wrong(Exception):
    """Why there is no header."""


def kind(first_bytes: bytes) -> str | None:
    """The format, one of FORMATS, by a file's first bytes; None for any other."""
    return next((name for known, name in _BEGINNINGS if re.match(known, first_bytes, re.DOTALL)), None)


def fault(encoded: Bytes, scans: bool = True) -> str | None:
    """Why a picture is not to be decoded ("is ...", "says ..."); None if its header promises what can be. Without `scans`
    nothing behind the header is looked at."""
    try:
        claim = header(encoded)
    except _Wrong as error:
        return str(error)
    size = f"says that it is {claim.width} x {claim.height} pixels"
    if not claim.width or not claim.height:
        return f"{size}, which is no picture; it is damaged"
    if claim.pixels > MAX_PIXELS:
        frames = f" in all its frames {claim.pixels} pixels" if claim.pixels > claim.width * claim.height else ""
        return f"{size}{',' * bool(frames)}{frames}, more than the {MAX_PIXELS} that are decoded; make it smaller"
    if len(encoded) > MAX_BYTES:
        return f"has {len(encoded)} bytes, more than the {MAX_BYTES} that are decoded; make it smaller"
    if claim.pixels > claim.most:
        return f"{size}, which its {len(encoded)} bytes cannot hold; it is damaged"
    most = min(MAX_SCANS, _SCANS_OF_THE_LARGEST * MAX_PIXELS // claim.pixels)
    if scans and claim.kind == "JPEG" and _scans_beyond(encoded, most):
        return f"has more than the {most} scans that are decoded at this number of pixels; save it anew"
    return None


def file_fault(file: Path) -> str | None:
    """Why a file cannot be a picture, by its header."""
    try:
        with input_files.open_regular_file(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            if not size:
                return "is empty"
            with mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ) as content:  # reads a page or two
                return fault(content, scans=False)
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"{UNREAD}: {error.strerror}"


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


def header(encoded: Bytes) -> Header:
    """The header of a picture's file."""
    if not encoded:
        raise _Wrong("is empty")
    form = kind(encoded[:LONGEST_BEGINNING])
    if form is None:
        other, known = _OTHERS.match(encoded[:LONGEST_BEGINNING]), f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        if other:
            raise _Wrong(f"is {other.lastgroup.replace('_', ' ')}, which is not read; convert it to {known}")
        raise _Wrong(f"is no {known} by its first bytes")
    try:
        width, height, pixels = _READERS[form](encoded)
        most = _bitmap_pixels(encoded) if form == "BMP" else len(encoded) * _PIXELS_A_BYTE[form]
    except (IndexError, StopIteration):
        raise _Wrong(f"is cut short: the header of its {form} is not whole") from None
    return Header(form, width, height, pixels, most)


def orientation(encoded: bytes) -> int:
    """Return EXIF's orientation of a JPEG, PNG or WebP, 1 (upright) to 8; 1 where none can be read."""
    if _EXIF.search(encoded) is None:  # nearly always, and Pillow takes a while
        return 1
    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(encoded), formats=["JPEG", "PNG", "WEBP"]) as picture:
            warnings.simplefilter("ignore")  # on damage
            found = picture.getexif().get(_ORIENTATION, 1)
    except Exception:  # whatever Pillow makes of damage: a picture without a sound EXIF is one all the same
        return 1
    return found if found in range(1, 9) else 1


def _number(data: Bytes, at: int, size: int, order: str = "big") -> int:
    if at + size > len(data):
        raise IndexError
    return int.from_bytes(data[at : at + size], order)


def _jpeg(data: Bytes) -> tuple[int, int, int]:
    """Return width, height and pixels by the first frame's header; earlier segments are skipped by their lengths."""
    for marker, at in _segments(data):
        if marker in _FRAMES:
            height, width = _number(data, at + 3, 2), _number(data, at + 5, 2)
            return width, height, width * height
        if marker in (_END, _SCAN):
            raise _Wrong("is damaged: its JPEG has no frame header")
    raise IndexError


def _segments(data: Bytes) -> Iterator[tuple[int, int]]:
    """The markers of a JPEG, each with the offset of its content."""
    at = 2
    for _ in range(_MAX_SEGMENTS):
        marker = _MARKER.search(data, at)
        if marker is None:
            return
        at = marker.end()
        yield marker[1][0], at
        at += max(2, _number(data, at, 2))
    raise _Wrong(f"is damaged: its JPEG has more than {_MAX_SEGMENTS} segments")


def _scans_beyond(data: bytes, most: int) -> bool:
    """Return whether there are more than `most` scans. Bytes behind the picture (phones put films there) do not count."""
    scans = 0
    try:
        if not _takes_scans(data) or data.count(bytes((0xFF, _SCAN))) <= most:
            return False
        for marker, _ in _segments(data):
            scans += marker == _SCAN
            if marker == _END or scans > most:
                break
    except (IndexError, _Wrong):  # the decoder reports missing bytes
        pass
    return scans > most


def _takes_scans(data: bytes) -> bool:
    """Return whether a decoder goes on after the first scan: unless that has all components of a sequential picture."""
    frame = components = 0
    for marker, at in _segments(data):
        if marker in _FRAMES:
            frame, components = marker, data[at + 7]
        elif marker == _SCAN:
            return frame not in _SEQUENTIAL or data[at + 2] != components
    return False


def _png(data: Bytes) -> tuple[int, int, int]:
    if data[12:16] != b"IHDR":
        raise _Wrong("is damaged: its PNG does not begin with a header")
    width, height = _number(data, 16, 4), _number(data, 20, 4)
    return width, height, width * height


def _gif(data: Bytes) -> tuple[int, int, int]:
    """Decoders unpack every frame, a byte a pixel, even for the first frame alone."""
    width, height = _number(data, 6, 2, "little"), _number(data, 8, 2, "little")
    unpacked = 0
    for frame_width, frame_height in _frames(data):
        width, height = width or frame_width, height or frame_height
        unpacked += frame_width * frame_height
    return width, height, width * height + unpacked // 3


def _frames(data: Bytes) -> Iterator[tuple[int, int]]:
    """The sizes of a GIF's frames, as far as its blocks are whole; the decoder reports the rest."""
    at = 13 + _colours(_number(data, 10, 1))
    blocks = 0
    try:
        while (kind := data[at]) in (0x2C, 0x21):
            if kind == 0x2C:
                yield _number(data, at + 5, 2, "little"), _number(data, at + 7, 2, "little")
                at += 11 + _colours(data[at + 9])
            else:
                at += 2
            while size := data[at]:
                at += size + 1
                blocks += 1
                if blocks > _MAX_BLOCKS:
                    raise _Wrong(f"is in more than {_MAX_BLOCKS} pieces; save it anew")
            at += 1
    except IndexError:
        return


def _colours(flags: int) -> int:
    """The bytes of a colour table."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _bmp(data: Bytes) -> tuple[int, int, int]:
    if _number(data, 14, 4, "little") == 12:
        width, height = _number(data, 18, 2, "little"), _number(data, 20, 2, "little")
    else:
        width, height = _number(data, 18, 4, "little"), _number(data, 22, 4, "little")
        height = min(height, 2**32 - height)  # a negative one counts from the top
    return width, height, width * height


def _bitmap_pixels(data: Bytes) -> int:
    """The pixels that a BMP's bytes can stand for: a row of whole bits, or 255 for two bytes where runs are packed."""
    old = _number(data, 14, 4, "little") == 12
    bits = _number(data, 24 if old else 28, 2, "little")
    packed = 0 if old or len(data) < 34 else _number(data, 30, 4, "little")
    return len(data) * 255 if packed in (1, 2) else len(data) * 8 // max(1, bits)


def _webp(data: Bytes) -> tuple[int, int, int]:
    """Return width, height and pixels by the first chunk: of a lossy picture, a lossless one, or the canvas of frames, of
    which the first alone is decoded."""
    chunk, at = data[12:16], 20
    if chunk == b"VP8 ":
        if data[at + 3 : at + 6] not in (b"\x9d\x01\x2a", b""):
            raise _Wrong("is damaged: its WebP does not begin with a whole picture")
        width, height = _number(data, at + 6, 2, "little") & 0x3FFF, _number(data, at + 8, 2, "little") & 0x3FFF
    elif chunk == b"VP8L":
        packed = _number(data, at + 1, 4, "little")
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    elif chunk == b"VP8X":
        width, height = _number(data, at + 4, 3, "little") + 1, _number(data, at + 7, 3, "little") + 1
    elif len(chunk) < 4:
        raise IndexError
    else:
        raise _Wrong("is damaged: its WebP does not begin with a picture")
    return width, height, width * height


_READERS = {"JPEG": _jpeg, "PNG": _png, "GIF": _gif, "BMP": _bmp, "WebP": _webp}
