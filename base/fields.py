"""`opt`: one option as a dataclass field, with its help text and all that the command line needs.

A leaf: plug-ins import this file, which imports nothing of the project.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

NOW, HINT = "now", "hint"
# traits of options, each with one reader
ONE_CALL = "one call"  # recorded with a run, and not taken over by a call that resumes it
LENGTH = "length"  # decides when updates, rows and checkpoints come
NOT_IN_GRAPH = "not in graph"  # no program depends on it
PER_INSTANCE = "per instance"  # may differ between instances: where things lie on a host, and what only shows
HALVES = "halves"  # means nothing where nothing is in half precision
TRAINING_ONLY = "training only"  # the layout of training, which inference goes without
LARGEST_COUNT = 2**31 - 1
MAX_SHOWN = 100  # characters of a value in a message
# ASCII digits alone: Python's int() and float() also take other scripts' digits, blanks around and underscores between
_WHOLE = re.compile(r"[+-]?[0-9]{1,300}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300})(?:[eE][+-]?[0-9]{1,9})?")


META: Mapping[str, Any] = {
    "help": "",
    "aliases": (),  # older spellings with the same value
    "rewrites": {},  # older spellings with another meaning: spelling -> function of the raw value, {option: raw value}
    "choices": (),  # in any case
    "check": None,  # the rule that a value breaks, as text ("must be at least 1"), or None
    "kind": NOW,  # or HINT: recorded for the cost model, and changes no arithmetic
    "read": None,  # rewrites the raw text before it is converted
    "bare": None,  # the raw value when the flag stands alone
    "off": None,  # that of its --no- form
    "flags": (),  # spellings other than --field-name
    "scripts": (),  # those that know the option; empty means all of them
    "factors": (),  # older spellings whose product is the value, and of which no more than one may be above 1
    "traits": (),  # of those above
    "needs": "",  # without which it has no effect: "--wandb", "--fold auto", or a condition of `harness/run/rules.py`
}


def opt(default: Any, help: str, **meta: Any) -> Any:
    """Declare an option; field name = flag = YAML key. `meta`: values other than those of META."""
    if unknown := meta.keys() - META.keys():
        raise TypeError(f"an option has no {', '.join(sorted(unknown))}")
    return dataclasses.field(default=default, metadata={**META, "help": help, **meta})


def whole_number(text: str) -> int:
    """A whole number as people write it: ASCII digits, maybe a sign; ValueError for any other text."""
    if not _WHOLE.fullmatch(text):
        raise ValueError("a whole number")
    return int(text)


def decimal_number(text: str) -> float:
    """A number as people write it: ASCII digits, maybe a sign, a point and an exponent; ValueError for any other text."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError("a number")
    return float(text)


def escaped(text: str) -> str:
    """A text on one line, with escapes for control characters, and for bytes of a file's name that are no UTF-8."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_text(text: str) -> bool:
    """Return whether a text is UTF-8, as the words of a command line need not be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(value: object) -> str:
    """A value as one line of a message shows it: without control characters, and cut when it is long."""
    text = str(value)
    shown = escaped(text[:MAX_SHOWN])
    return shown if len(text) <= MAX_SHOWN else f"{shown}... ({len(text)} characters)"


def check_fields(options: Any) -> None:
    """Hold every field of a dataclass against its rule, for callers that come past the command line."""
    for field in dataclasses.fields(options):
        rule, value = field.metadata.get("check"), getattr(options, field.name)
        broken = rule(value) if rule and value is not None else None
        if broken:
            raise ValueError(f"{field.name} is {value!r} but {broken}")


def exact(value: float | Fraction) -> Fraction:
    """The number that a person wrote: 0.29 is 29/100, not the float beside it."""
    return Fraction(str(value))


def at_least(bound: float) -> Callable[[Any], str | None]:
    """Check: value >= bound, and a count that the device can hold."""

    def check(value: Any) -> str | None:
        if isinstance(value, int) and value > LARGEST_COUNT:
            return f"must be at most {LARGEST_COUNT}"
        return None if bound <= value < math.inf else f"must be at least {bound:g}"

    return check


def above(bound: float) -> Callable[[Any], str | None]:
    """Check: value > bound."""
    return lambda value: None if bound < value < math.inf else f"must be greater than {bound:g}"


def below_one(value: float) -> str | None:
    """Check: 0 <= value < 1, as a decay of 1 would keep every gradient for ever."""
    return None if 0 <= value < 1 else "must be at least 0 and below 1"


def between(low: float, high: float) -> Callable[[Any], str | None]:
    """Check: low <= value <= high, for a number or for each of several."""

    def check(value: Any) -> str | None:
        values = value if isinstance(value, tuple) else (value,)
        return None if all(low <= v <= high for v in values) else f"must lie between {low:g} and {high:g}"

    return check
