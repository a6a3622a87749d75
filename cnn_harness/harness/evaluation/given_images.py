"""Turn the images that a Python program gives to `predict` into photo files and arrays."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from cnn_harness.base import bounds
from cnn_harness.base.errors import DataError
from cnn_harness.Datasets.formats import image_headers
from cnn_harness.Datasets.sources import image_tree

_ACCEPTED = (
    "give an image file, a folder, a PIL image, an array of uint8 [height, width, 3] or [n, height, width, 3], "
    "or a list of these"
)
_NO_LISTS = (bytes, bytearray, memoryview, Mapping, Set)  # their elements are no images, or have no order


def sources(given: Any) -> Iterator[str | np.ndarray]:
    """Yield each image as the path of a file, or as an array, uint8 [height, width, 3].

    A folder means all images below it, sorted by path. Raise DataError for an object that is no image.
    """
    found = _images_in(given, "images")
    if found is not None:
        yield from found
    elif not isinstance(given, Iterable) or isinstance(given, _NO_LISTS) or hasattr(given, "read"):
        raise _refused(given, "images")
    else:
        for k, each in enumerate(given):
            found = _images_in(each, f"image {k}")
            if found is None:
                raise _refused(each, f"image {k}")
            yield from found


def _images_in(given: Any, name: str) -> Iterable[str | np.ndarray] | None:
    """Return the images that an object is or contains; None if it is no image, and perhaps a list."""
    pillow = sys.modules.get("PIL.Image")  # an image exists only after this module was imported
    if isinstance(given, (str, os.PathLike)):
        path = os.fsdecode(given)
        return _photos_below(path) if os.path.isdir(path) else [path]
    if pillow and isinstance(given, pillow.Image):
        return [_pixels(given, name)]
    if isinstance(given, type) or not hasattr(given, "__array__"):
        return None
    try:
        array = np.asarray(given)
    except Exception as error:  # libraries raise many types of errors, for example for a tensor on a GPU
        raise DataError(f"{name}: {_kind(given)} cannot be converted to an array: {bounds.reason(error)}") from None
    if array.dtype.kind in "OU" and array.ndim:  # paths, or arrays of several sizes
        return None
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or array.shape[-1] != 3 or 0 in array.shape[-3:]:
        raise DataError(f"{name}: an array of {array.dtype} {[*array.shape]} was given; {_ACCEPTED}")
    return array if array.ndim == 4 else [array]


def _photos_below(folder: str) -> list[str]:
    found = [*map(str, image_tree.images_below(Path(folder)))]
    if not found:
        raise DataError(f"folder {folder} contains no photos; give another folder")
    return found


def _pixels(image: Any, name: str) -> np.ndarray:
    """Return the pixels of a PIL image as those of a file: upright, RGB, without transparency."""
    from PIL import ImageOps

    try:
        if image.width * image.height > image_headers.MAX_PIXELS:
            raise ValueError(f"it has {image.width} x {image.height} pixels, more than {image_headers.MAX_PIXELS}")
        if image.mode in ("I", "F"):
            raise ValueError(f"its mode {image.mode} has no known range; convert it to RGB")
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I;16"):  # Pillow would make values above 255 white
            grey = np.asarray(image) >> 8
            return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
        return np.asarray(image.convert("RGB"))
    except Exception as error:  # Pillow raises many types of errors for damaged and for closed files
        raise DataError(f"{name}: the PIL image cannot be used: {bounds.reason(error)}") from None


def _kind(given: Any) -> str:
    return "None" if given is None else f"an object of type {type(given).__name__}"


def _refused(given: Any, name: str) -> DataError:
    return DataError(f"{name}: {_kind(given)} was given; {_ACCEPTED}")
