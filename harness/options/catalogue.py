"""The options of one command line: which there are, how they are spelled, and how text becomes a value.

Built from the dataclasses of `harness/options/sections.py` and of the chosen plug-ins; flags and YAML keys pass through
the same conversion.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any

from base.errors import OptionError
from base.fields import META, decimal_number, is_text, short, whole_number
from base.plugins import did_you_mean
from harness.options.sections import SECTIONS, flag

LARGEST = 3.4028235e38  # of FP32, in which the device computes
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Option:
    """A field of one section."""

    name: str
    section: str
    base: type  # bool, int, float or str: of the value, or of each of several
    several: bool
    default: Any
    meta: Mapping[str, Any]

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return flag(self.name)

    def convert(self, raw: Any, where: str) -> Any:
        """A flag's text, or a YAML value, as the option's type; `where` names it in errors."""
        if isinstance(raw, bool) and self.base is str and self.meta["bare"] and not self.meta["off"]:
            raw = self.meta["bare"] if raw else None  # a YAML key that stands for the flag alone, or for its --no- form
        if raw is None:
            if isinstance(self.default, bool):
                raise OptionError(f"{where}: {self.name} has no value: write true or false, or leave the key out")
            return self.default
        if self.several:
            items = raw if isinstance(raw, (list, tuple)) else str(raw).split() if isinstance(raw, str) else [raw]
            value: Any = tuple(self._one(item, where) for item in items)
        elif isinstance(raw, (list, tuple)):
            raise OptionError(f"{where}: {self.name} takes one value, not the list {short(list(raw))}")
        else:
            value = self._one(raw, where)
        broken = self.meta["check"](value) if self.meta["check"] else None
        if broken:
            given = " ".join(map(str, value)) if self.several else raw
            raise OptionError(f"{where}: {self.name} is '{short(given)}' but {broken}")
        return value

    def _one(self, raw: Any, where: str) -> Any:
        if self.meta["choices"]:
            return self._choice(raw, where)
        try:
            value = CONVERSIONS[self.base](raw)
        except OverflowError:
            raise OptionError(f"{where}: {self.name} is '{short(raw)}' but must be at most {LARGEST:.2g} in size") from None
        except (ValueError, TypeError):
            raise OptionError(f"{where}: {self.name} is '{short(raw)}' but must be {KINDS[self.base]}") from None
        if self.base is str and self.meta["read"]:
            value = self.meta["read"](value)
        return value

    def _choice(self, raw: Any, where: str) -> Any:
        if self.meta["off"] and isinstance(raw, bool):
            raw = self.meta["bare"] if raw else self.meta["off"]
        lowered = {choice.lower(): choice for choice in self.meta["choices"]}
        if isinstance(raw, bool) or str(raw).lower() not in lowered:
            known = ", ".join(self.meta["choices"])
            hint = did_you_mean(str(raw), list(self.meta["choices"]))
            raise OptionError(f"{where}: {self.name} is '{short(raw)}' but must be one of {known}{hint}")
        return self.base(lowered[str(raw).lower()])


@dataclass(frozen=True)
class Spelling:
    """A way to write an option: how its raw value gives {option: raw value}."""

    option: Option
    rewrite: Callable[[Any], dict[str, Any]]
    canonical: bool
    takes: str  # "nothing", "one", "optional" or "several" values


class Catalogue:
    """Every option known to one command line."""

    def __init__(self, options: list[Option]) -> None:
        self.options = {option.name: option for option in options}
        self.spellings: dict[str, Spelling] = {}
        for option in options:
            for name, spelling in _spellings(option):
                self.spellings[name] = spelling

    def flags(self) -> dict[str, Spelling]:
        """Spellings as flags: --micro-batch-size."""
        flags = {flag(name): spelling for name, spelling in self.spellings.items()}
        flags |= {extra: self.spellings[o.name] for o in self.options.values() for extra in o.meta["flags"]}
        return flags

    def sections(self) -> list[str]:
        """Section names in order of declaration."""
        return list(dict.fromkeys(option.section for option in self.options.values()))


@cache  # a call that plans many configurations asks again and again
def section_options(section: str, cls: type, script: str | None = None) -> tuple[Option, ...]:
    """The options of one dataclass; those of other scripts are left out, unless `script` is None."""
    hints = typing.get_type_hints(cls)
    options = []
    for field in dataclasses.fields(cls):
        meta = {**META, **field.metadata}
        if script is None or not meta["scripts"] or script in meta["scripts"]:
            base, several = _type(hints[field.name])
            options.append(Option(field.name, section, base, several, field.default, meta))
    return tuple(options)


def catalogue(model_options: type, schedule_options: type, script: str) -> Catalogue:
    """All options of a script with this model and this schedule."""
    sections = {**SECTIONS, "model": model_options, "schedule": schedule_options}
    return Catalogue([option for name, cls in sections.items() for option in section_options(name, cls, script)])


def _spellings(option: Option) -> list[tuple[str, Spelling]]:
    def same(raw: Any) -> dict[str, Any]:
        return {option.name: raw}

    switch = option.base is bool
    takes = "several" if option.several else "optional" if option.meta["bare"] else "nothing" if switch else "one"
    spellings = [(option.name, Spelling(option, same, True, takes))]
    spellings += [(alias, Spelling(option, same, False, takes)) for alias in option.meta["aliases"]]
    if switch:
        off = Spelling(option, lambda raw: {option.name: not CONVERSIONS[bool](raw)}, True, "nothing")
        spellings += [(f"no_{name}", off) for name, _ in list(spellings)]
    elif option.meta["off"]:
        off = Spelling(
            option, lambda raw: {option.name: option.meta["off" if CONVERSIONS[bool](raw) else "bare"]}, True, "nothing"
        )
        spellings.append((f"no_{option.name}", off))
    elif option.meta["bare"]:
        spellings.append((f"no_{option.name}", Spelling(option, lambda raw: {option.name: None}, True, "nothing")))
    if option.several:  # a block's list can be emptied
        empty = Spelling(option, lambda raw: {option.name: [] if CONVERSIONS[bool](raw) else None}, True, "nothing")
        spellings.append((f"no_{option.name}", empty))
    for alias, rewrite in option.meta["rewrites"].items():
        spellings.append((alias, Spelling(option, lambda raw, f=rewrite: f(str(raw)), False, "one")))
    return spellings


def _type(hint: Any) -> tuple[type, bool]:
    """(base type, whether there are several) of int, int | None, tuple[int, ...]."""
    arguments = [argument for argument in typing.get_args(hint) if argument not in (NoneType, Ellipsis)]
    if typing.get_origin(hint) is tuple:
        return arguments[0], True
    return (arguments[0] if arguments else hint), False


def _to_bool(raw: Any) -> bool:
    text = str(raw).lower()
    if text not in TRUE + FALSE:
        raise ValueError(raw)
    return text in TRUE


_MANY_DIGITS = re.compile(r"[+-]?[0-9]{300,}")


def _to_int(raw: Any) -> int:
    if isinstance(raw, str):
        if _MANY_DIGITS.fullmatch(raw):
            raise OverflowError(raw)
        return whole_number(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise ValueError(raw)
    return int(raw)


def _to_float(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise ValueError(raw)
    value = decimal_number(raw) if isinstance(raw, str) else float(raw)
    if not math.isfinite(value):
        raise ValueError(raw)
    if abs(value) > LARGEST:
        raise OverflowError(raw)
    return value


def _to_text(raw: Any) -> str:
    if isinstance(raw, (bool, bytes)) or str(raw) == "" or "\0" in str(raw) or not is_text(str(raw)):
        raise ValueError(raw)  # neither a log nor a terminal could show it
    return str(raw)


CONVERSIONS: dict[type, Callable[[Any], Any]] = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_text}
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "UTF-8 text, not empty",
}


def format_value(value: Any) -> str:
    """A value as a person would write it."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "(none)"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "(not set)" if value is None else str(value)
