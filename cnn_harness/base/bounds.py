"""Limits on the size and depth of data in untrusted files.

Data beyond a limit raise a ValueError with the reason and the limit, in one line. The caller adds the file's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from cnn_harness.base.fields import short

TEXT = 1 << 20  # limit in bytes for a file with settings
RANK = 8  # limit on the number of dimensions of an array of weights
MAX_SHOWN = 400  # number of characters shown of another error's message


class NotJson(ValueError):
    """Text that is not JSON in UTF-8."""


def json_value(text: str | bytes) -> Any:
    """Return the value of a JSON text in UTF-8; raise ValueError if it is nested too deeply."""
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"it is not valid JSON: line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise NotJson(f"it is not UTF-8 text: byte {error.start}") from None


def elements(name: str, shape: Any, most: int) -> int:
    """Return the number of elements of the array `name`; raise ValueError for an invalid shape or more than `most`."""
    if not isinstance(shape, (tuple, list)) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name} has the shape {short(shape)}, which is not a list of whole numbers from 0 up")
    if len(shape) > RANK:
        raise ValueError(f"{name} has the shape {short(shape)}: {len(shape)} dimensions, but at most {RANK} are read")
    if max(shape, default=0) > most or math.prod(shape) > most:
        raise ValueError(f"{name} has the shape {short(shape)}, but at most {most:,} elements are read")
    return math.prod(shape)


def total(sizes: Sequence[int], most: int, what: str) -> None:
    """Raise ValueError if the sizes add up to more than `most` bytes; the message begins with `what`."""
    if sum(sizes) > most:
        raise ValueError(f"{what} {sum(sizes):,} bytes, but at most {most:,} are read")


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, without control characters, at most MAX_SHOWN characters."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = (message.splitlines() or [type(error).__name__])[0]
    return "".join(map(short, line[:MAX_SHOWN]))
