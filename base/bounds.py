"""Bounds of size and depth for the claims of files from unknown hands.

A claim beyond them is a ValueError with the reason, and the bound, in one line; the caller names the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from base.fields import short

TEXT = 1 << 20  # bytes of a file with settings
RANK = 8  # of an array of weights
MAX_SHOWN = 400  # characters of another error's message


class NotJson(ValueError):
    """A text that is not JSON in UTF-8."""


def json_value(text: str | bytes) -> Any:
    """Return the value of a JSON text in UTF-8; ValueError for one that is nested too deeply."""
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"it is not JSON from line {error.lineno}, column {error.colno} on") from None
    except UnicodeDecodeError as error:
        raise NotJson(f"it is not UTF-8 text from byte {error.start} on") from None


def elements(name: str, shape: Any, most: int) -> int:
    """The number of elements of the array `name`; ValueError if `shape` is none, or has more than `most` elements."""
    if not isinstance(shape, (tuple, list)) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name} claims the shape {short(shape)}, which is no row of whole numbers from 0 on")
    if len(shape) > RANK:
        raise ValueError(f"{name} claims the shape {short(shape)} of {len(shape)} dimensions, and at most {RANK} are read")
    if max(shape, default=0) > most or math.prod(shape) > most:
        raise ValueError(f"{name} claims the shape {short(shape)}, and at most {most:,} elements are read")
    return math.prod(shape)


def check_filled(name: str, shape: Any, each: int, size: int, most: int) -> None:
    """ValueError unless an array of elements of `each` bytes with this shape takes exactly `size` bytes, at most `most`."""
    if elements(name, shape, most // each) * each != size:
        raise ValueError(f"{name} claims the shape {short(shape)} of {each} bytes each, but has {size:,} bytes")


def total(sizes: Sequence[int], most: int, what: str) -> None:
    """ValueError if the sizes add up to more than `most` bytes; `what`: the beginning of its message."""
    if sum(sizes) > most:
        raise ValueError(f"{what} {sum(sizes):,} bytes, and at most {most:,} are read")


def reason(error: BaseException) -> str:
    """The first line of an error's message, without control characters, at most MAX_SHOWN characters."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = (message.splitlines() or [type(error).__name__])[0]
    return "".join(map(short, line[:MAX_SHOWN]))
