"""Bounds of size and depth for the claims of files from unknown hands.

A claim beyond them is a ValueError with the reason, and the bound, in one line; the caller names the file.
"""

from __future__ import annotations

import codecs
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from base.fields import brief

TEXT = 1 << 20  # bytes of a file with settings
DEPTH = 64  # of JSON
RANK = 8  # of an array of weights
MAX_SHOWN = 400  # characters of another error's message


_MARKS = {codecs.BOM_UTF8: "a byte-order mark", codecs.BOM_UTF16_LE: "UTF-16's mark", codecs.BOM_UTF16_BE: "UTF-16's mark"}


class NotJson(ValueError):
    """A text that is no JSON, or no text in UTF-8."""


def json_value(text: str | bytes) -> Any:
    """The value of a JSON text in UTF-8, nested at most DEPTH deep, with no name twice in one object."""
    mark = next((name for mark, name in _MARKS.items() if isinstance(text, bytes) and text.startswith(mark)), None)
    if mark:
        raise NotJson(f"it begins with {mark}, and JSON in UTF-8 has none")
    if not text.strip():
        raise NotJson("it is empty")
    too_deep = f"its JSON is nested more than {DEPTH} deep"
    try:
        value = json.loads(text.decode("utf-8") if isinstance(text, bytes) else text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(too_deep) from None
    except json.JSONDecodeError as error:
        raise NotJson(f"it is no JSON from line {error.lineno}, column {error.colno} on") from None
    except UnicodeDecodeError as error:
        raise NotJson(f"it is no UTF-8 text from byte {error.start} on") from None
    except _Twice:
        raise
    except ValueError:  # Python's own advice is for programmers
        raise ValueError("its JSON has a number of thousands of digits") from None
    level, depth = _containers([value]), 0
    while level and depth < DEPTH:
        level = [inner for each in level for inner in _containers(each.values() if isinstance(each, dict) else each)]
        depth += 1
    if level:
        raise ValueError(too_deep)
    return value


class _Twice(ValueError):
    """A name that one object of a JSON text gives two values."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise _Twice(f"its JSON gives '{brief(twice)}' twice")
    return entries


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, (dict, list))]


def elements(name: str, shape: Any, most: int) -> int:
    """The number of elements of the array `name`; ValueError if `shape` is none, or has more than `most` elements."""
    if not isinstance(shape, (tuple, list)) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name} claims the shape {brief(shape)}, which is no row of whole numbers from 0 on")
    if len(shape) > RANK:
        raise ValueError(f"{name} claims the shape {brief(shape)} of {len(shape)} dimensions, and at most {RANK} are read")
    if max(shape, default=0) > most or math.prod(shape) > most:
        raise ValueError(f"{name} claims the shape {brief(shape)}, and at most {most:,} elements are read")
    return math.prod(shape)


def check_filled(name: str, shape: Any, each: int, size: int, most: int) -> None:
    """ValueError unless an array of elements of `each` bytes with this shape takes exactly `size` bytes, at most `most`."""
    if elements(name, shape, most // each) * each != size:
        raise ValueError(f"{name} claims the shape {brief(shape)} of {each} bytes each, but has {size:,} bytes")


def total(sizes: Sequence[int], most: int, what: str) -> None:
    """ValueError if the sizes add up to more than `most` bytes; `what`: the beginning of its message."""
    if sum(sizes) > most:
        raise ValueError(f"{what} {sum(sizes):,} bytes, and at most {most:,} are read")


def reason(error: BaseException) -> str:
    """The first line of an error's message, without control characters, at most MAX_SHOWN characters."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = (message.splitlines() or [type(error).__name__])[0]
    return "".join(map(brief, line[:MAX_SHOWN]))
