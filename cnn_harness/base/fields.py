"""`opt` declares an option as a dataclass field, with its help text and its form on the command line.

Plug-ins import this file, so it imports no other module of the project.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

NOW, HINT = "now", "hint"
# Traits of options:
ONE_CALL = "one call"  # the value is recorded with a run, but a resumed run does not inherit it.
LENGTH = "length"  # the option decides when updates, rows and checkpoints are due.
NOT_IN_GRAPH = "not in graph"  # no compiled program depends on the option.
PER_INSTANCE = "per instance"  # the value may differ between the processes (instances) of a run, as a path may.
HALVES = "halves"  # the option has no effect without half precision.
TRAINING_ONLY = "training only"  # inference ignores the option.
LARGEST_COUNT = 2**31 - 1
MAX_SHOWN = 100  # number of characters shown of a value in a message
# These patterns accept only ASCII digits, while int() and float() also accept other digits, spaces and underscores.
_WHOLE = re.compile(r"[+-]?[0-9]{1,300}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300})(?:[eE][+-]?[0-9]{1,9})?")


META: Mapping[str, Any] = {
    "help": "",
    "aliases": (),  # older names of the option, with the same value
    "rewrites": {},  # older name with another meaning -> function from its raw value to {option: raw value}
    "choices": (),  # the allowed values; case is ignored
    "check": None,  # a function of the value that returns the broken rule, such as "must be at least 1", or None
    "kind": NOW,  # HINT: the option is only recorded for the cost model and does not change the arithmetic.
    "read": None,  # a function that rewrites the raw text before it is converted.
    "bare": None,  # the raw value if the flag is given without a value.
    "off": None,  # the raw value if the flag's --no- form is given.
    "flags": (),  # flags in addition to --field-name.
    "scripts": (),  # the scripts that have the option; empty: all scripts
    "factors": (),  # older options whose product is the value; at most one factor may be above 1
    "traits": (),  # some of the traits above
    "needs": None,  # a `Condition`: without it, the option has no effect
    "metavar": None,  # the name of the value in --help, such as FILE
    "repeated": False,  # the flag takes one value, and may be given several times
}


def opt(default: Any, help: str, **meta: Any) -> Any:
    """Declare an option. The flag and the YAML key are the field's name. `meta` replaces values of META."""
    if unknown := meta.keys() - META.keys():
        raise TypeError(f"an option has no {', '.join(sorted(unknown))}")
    return dataclasses.field(default=default, metadata={**META, "help": help, **meta})


# `opt` with the traits of many options
one_call, per_instance, timing = (partial(opt, traits=(trait,)) for trait in (ONE_CALL, PER_INSTANCE, LENGTH))
on_host, local = partial(opt, traits=(NOT_IN_GRAPH,)), partial(opt, traits=(NOT_IN_GRAPH, PER_INSTANCE))
halves, training_only = partial(opt, traits=(HALVES,)), partial(opt, traits=(TRAINING_ONLY,))


def whole_number(text: str) -> int:
    """Return a whole number of ASCII digits with an optional sign; raise ValueError for any other text."""
    if not _WHOLE.fullmatch(text):
        raise ValueError("a whole number")
    return int(text)


def decimal_number(text: str) -> float:
    """Return a number of ASCII digits, optionally with sign, point and exponent; raise ValueError for any other text."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError("a number")
    return float(text)


def escaped(text: str) -> str:
    """Return a text as one line. Control characters, and bytes of file names that are not UTF-8, are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_text(text: str) -> bool:
    """Return whether a text can be encoded in UTF-8. Command-line arguments may contain other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(value: object) -> str:
    """Return a value for a message: on one line, with control characters escaped, and cut if it is long."""
    text = str(value)
    shown = escaped(text[:MAX_SHOWN])
    return shown if len(text) <= MAX_SHOWN else f"{shown}... ({len(text)} characters)"


def check_fields(options: Any) -> None:
    """Raise ValueError if a field breaks its rule. Callers that bypass the command line need this check."""
    for field in dataclasses.fields(options):
        rule, value = field.metadata.get("check"), getattr(options, field.name)
        broken = rule(value) if rule and value is not None else None
        if broken:
            raise ValueError(f"{field.name} is {value!r} but {broken}")


def exact(value: float | Fraction) -> Fraction:
    """Return a number exactly as its decimal digits say: 0.29 gives 29/100, not the nearest float."""
    return Fraction(str(value))


def at_least(bound: float) -> Callable[[Any], str | None]:
    """Return a check that a value is at least `bound`, and at most LARGEST_COUNT if it is an integer."""

    def check(value: Any) -> str | None:
        if isinstance(value, int) and value > LARGEST_COUNT:
            return f"must be at most {LARGEST_COUNT}"
        return None if bound <= value < math.inf else f"must be at least {bound:g}"

    return check


def above(bound: float) -> Callable[[Any], str | None]:
    """Return a check that a value is above `bound`."""
    return lambda value: None if bound < value < math.inf else f"must be greater than {bound:g}"


def below_one(value: float) -> str | None:
    """Check that 0 <= value < 1: with a decay of 1, old gradients would never fade."""
    return None if 0 <= value < 1 else "must be at least 0 and below 1"


def between(low: float, high: float) -> Callable[[Any], str | None]:
    """Return a check that a number, or every number of a tuple, is from `low` to `high`."""

    def check(value: Any) -> str | None:
        values = value if isinstance(value, tuple) else (value,)
        return None if all(low <= v <= high for v in values) else f"must be between {low:g} and {high:g}"

    return check
