"""Arrays of a .npz file that others may have made, within bounds.

A header's claims are compared with the bytes that are there before memory is taken for them. Nothing is unpickled.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from base import bounds
from base.fields import short
from base.storage import input_files, zips

_HEADER = 10_000  # characters that say kind and shape of an array, as NumPy bounds them
_READERS = {
    b"\1\0": (2, np.lib.format.read_array_header_1_0), b"\2\0": (4, np.lib.format.read_array_header_2_0),
}  # fmt: skip


def read(path: Path, most: int, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, np.ndarray]:
    """The wanted arrays by name, of a file that unpacks to at most `most` bytes; OSError, or ValueError with one line."""
    arrays = {}
    with input_files.open_regular_file(path) as file, zips.opened(file, most) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in arrays:  # once with .npy and once without
                raise ValueError(f"it holds {short(name)} twice")
            if wanted(name):
                with archive.open(info) as member:
                    arrays[name] = _array(member, info.file_size, short(name), most)
    return arrays


def _array(member: BinaryIO, size: int, name: str, most: int) -> np.ndarray:
    """The array in an open member of `size` bytes."""
    if member.read(6) != b"\x93NUMPY":
        raise ValueError(f"{name} is no NumPy array")
    shape, by_column, kind = _header(member, name)
    if kind.hasobject or not kind.itemsize:
        raise ValueError(f"{name} holds no numbers")
    rest = size - member.tell()
    bounds.check_filled(name, shape, kind.itemsize, rest, most)
    values = np.frombuffer(zips.unpacked(member, rest), kind)
    return values.reshape(shape[::-1]).T if by_column else values.reshape(shape)


def _header(member: BinaryIO, name: str) -> tuple[Any, bool, np.dtype]:
    """Shape, whether the first index changes fastest, and kind; the shape is as it was found."""
    version = member.read(2)
    if version not in _READERS:
        raise ValueError(f"{name} has another format than NumPy's 1.0 and 2.0")
    width, reader = _READERS[version]
    length = member.read(width)
    size = int.from_bytes(length, "little")
    if size > _HEADER:
        raise ValueError(f"{name} has a header of {size:,} bytes, and at most {_HEADER:,} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the odd ways in which a header can be written
            return reader(io.BytesIO(length + member.read(size)))
    except Exception:  # the header is Python's grammar and NumPy's kinds: their parsers raise nearly everything
        raise ValueError(f"{name} has a header that says neither kind nor shape of an array") from None
