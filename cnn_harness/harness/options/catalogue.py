"""List the options of a script with all spellings, and convert text to values.

The options are the fields of the dataclasses in `harness/options/sections.py`, and of `Options` in the files of the chosen
model and schedule. Arguments of flags and YAML values are converted by the same functions.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import META, decimal_number, is_text, short, whole_number
from cnn_harness.base.plugins import did_you_mean
from cnn_harness.harness.options.other_names import OF_OTHER_OPTIONS, OTHER_VALUES
from cnn_harness.harness.options.sections import COMMAND_LINE, SECTIONS, flag

LARGEST = 3.4028235e38  # the largest FP32 number: the device computes in FP32
PLUGINS = (
    ("Models", "model", "model"),
    ("LR_Schedules", "lr_schedule", "schedule"),
)  # (folder, option that chooses a file, section)
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Option:
    """An option: a field of one section."""

    name: str
    section: str
    base: type  # the type of the value, or of each value if `several`: bool, int, float or str
    several: bool
    default: Any
    meta: Mapping[str, Any]

    @property
    def flag(self) -> str:
        """The flag of the option."""
        return flag(self.name)

    def convert(self, raw: Any, where: str) -> Any:
        """Convert a flag's argument or a YAML value to the option's type. Errors begin with `where`: a flag or a line."""
        if isinstance(raw, bool) and self.base is str and self.meta["bare"]:
            raw = self.meta["bare"] if raw else self.meta["off"]
        if raw is None and isinstance(self.default, bool):
            raise OptionError(f"{where}: {self.name} has no value; write true or false, or delete the key")
        if raw is None:
            return self.default
        if self.several:
            items = raw if isinstance(raw, (list, tuple)) else str(raw).split() if isinstance(raw, str) else [raw]
            value: Any = tuple(self._one(item, where) for item in items)
        elif isinstance(raw, (list, tuple)):
            raise OptionError(f"{self._named(where)} takes one value, not the list {short(list(raw))}")
        else:
            value = self._one(raw, where)
        broken = self.meta["check"](value) if self.meta["check"] else None
        if broken:
            given = " ".join(map(str, value)) if self.several else raw
            raise OptionError(f"{self._named(where)} is '{short(given)}' but {broken}")
        return value

    def _named(self, where: str) -> str:
        return where if where.startswith(COMMAND_LINE) else f"{where}: {self.name}"

    def _one(self, raw: Any, where: str) -> Any:
        if self.meta["choices"]:
            return self._choice(raw, where)
        try:
            value = CONVERSIONS[self.base](raw)
        except (ValueError, TypeError):
            raise OptionError(f"{self._named(where)} is '{short(raw)}' but must be {KINDS[self.base]}") from None
        return self.meta["read"](value) if self.meta["read"] else value

    def _choice(self, raw: Any, where: str) -> Any:
        chosen = {choice.lower(): choice for choice in self.meta["choices"]}.get(str(raw).lower())
        if chosen is None:
            known = ", ".join(self.meta["choices"])
            other, place = (each.get(self.name, {}).get(str(raw).lower()) for each in (OTHER_VALUES, OF_OTHER_OPTIONS))
            hint = f"; give it as {place}" if place else did_you_mean(str(raw), self.meta["choices"])
            hint = f"; use {other}" if other else hint
            raise OptionError(f"{self._named(where)} is '{short(raw)}' but must be one of {known}{hint}")
        return self.base(chosen)


@dataclass(frozen=True)
class Spelling:
    """A spelling of an option. `rewrite(raw value)` returns {option: raw value}, possibly of other options."""

    option: Option
    rewrite: Callable[[Any], dict[str, Any]]
    canonical: bool  # False for an older spelling
    takes: str  # "nothing", "one", "optional" or "several" values

    def most(self, given: int) -> int:
        """Return how many of the words after a flag are its values; the others are words of the command."""
        return {"nothing": 0, "several": 1 if self.option.meta["repeated"] else given}.get(self.takes, 1)


class Catalogue:
    """The options of one command line."""

    def __init__(self, options: list[Option]) -> None:
        self.options = {option.name: option for option in options}
        self.spellings: dict[str, Spelling] = {}
        for option in options:
            for name, spelling in _spellings(option):
                self.spellings[name] = spelling

    def flags(self) -> dict[str, Spelling]:
        """Return the spellings by flag, such as --micro-batch-size."""
        flags = {flag(name): spelling for name, spelling in self.spellings.items()}
        flags |= {extra: self.spellings[o.name] for o in self.options.values() for extra in o.meta["flags"]}
        return flags

    def sections(self) -> list[str]:
        """Return the names of the sections, in the order in which they are declared."""
        return list(dict.fromkeys(option.section for option in self.options.values()))


@cache  # `cnn plan` calls this for many configurations
def section_options(section: str, cls: type, script: str | None = None) -> tuple[Option, ...]:
    """Return the options of a dataclass that `script` accepts; if `script` is None, return all options."""
    hints = typing.get_type_hints(cls)
    options = []
    for field in dataclasses.fields(cls):
        meta = {**META, **field.metadata}
        if script is None or not meta["scripts"] or script in meta["scripts"]:
            base, several = _type(hints[field.name])
            options.append(Option(field.name, section, base, several, field.default, meta))
    return tuple(options)


def catalogue(model_options: type, schedule_options: type, script: str) -> Catalogue:
    """Return all options of a script with this model and this schedule."""
    sections = {**SECTIONS, "model": model_options, "schedule": schedule_options}
    return Catalogue([option for name, cls in sections.items() for option in section_options(name, cls, script)])


@cache
def shared_options(script: str | None) -> Catalogue:
    """Return the options of a script that do not depend on the model and schedule; None means all scripts."""
    return Catalogue([option for name, cls in SECTIONS.items() for option in section_options(name, cls, script)])


@cache
def all_options(script: str | None) -> Catalogue:
    """Return the options of all models and schedules. They serve to expand abbreviations and to find an option's model."""
    return Catalogue(every_option(script))


def every_option(script: str | None) -> list[Option]:
    """Return the options of a script for all models and schedules; None means all scripts. Names may repeat."""
    own = (option for options in _plugin_options(script).values() for option in options)
    return [*shared_options(script).options.values(), *own]


def plugins_with(spelling: str) -> list[str]:
    """Return the models and schedules that have an option with this spelling."""
    return [name for name, options in _plugin_options(None).items() if spelling in Catalogue([*options]).spellings]


@cache
def _plugin_options(script: str | None) -> dict[str, tuple[Option, ...]]:
    """Return the options of each model and schedule, by arguments such as "--model resnet"."""
    return {
        f"{flag(option)} {name}": section_options(section, plugins.load(folder, name).Options, script)
        for folder, option, section in PLUGINS
        for name in plugins.names(folder)
    }


def _spellings(option: Option) -> list[tuple[str, Spelling]]:
    meta, switch = option.meta, option.base is bool
    takes = "several" if option.several else "optional" if meta["bare"] else "nothing" if switch else "one"
    spellings = [
        (name, Spelling(option, lambda raw: {option.name: raw}, name == option.name, takes))
        for name in (option.name, *meta["aliases"])
    ]
    if switch or option.several or meta["bare"]:  # --no-NAME turns it off; `no_NAME: false` in a file turns it on
        on, off = (True, False) if switch else (None, []) if option.several else (meta["off"] and meta["bare"], meta["off"])
        negated = Spelling(option, lambda raw: {option.name: off if _to_bool(raw) else on}, True, "nothing")
        spellings += [(f"no_{name}", negated) for name, _ in list(spellings)]
    for alias, rewrite in meta["rewrites"].items():
        spellings.append((alias, Spelling(option, lambda raw, f=rewrite: f(str(raw)), False, "one")))
    return spellings


def _type(hint: Any) -> tuple[type, bool]:
    """Return the base type of a type hint, and whether the hint is a tuple."""
    arguments = [argument for argument in typing.get_args(hint) if argument not in (NoneType, Ellipsis)]
    if typing.get_origin(hint) is tuple:
        return arguments[0], True
    return (arguments[0] if arguments else hint), False


def _to_bool(raw: Any) -> bool:
    text = str(raw).lower()
    if text not in TRUE + FALSE:
        raise ValueError(raw)
    return text in TRUE


def _to_int(raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (str, int)):
        raise ValueError(raw)
    return whole_number(raw) if isinstance(raw, str) else raw


def _to_float(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise ValueError(raw)
    value = decimal_number(raw) if isinstance(raw, str) else float(raw)
    if not abs(value) <= LARGEST:
        raise ValueError(raw)
    return value


def _to_text(raw: Any) -> str:
    if isinstance(raw, (bool, bytes)) or str(raw) == "" or "\0" in str(raw) or not is_text(str(raw)):
        raise ValueError(raw)  # logs and terminals cannot show such text
    return str(raw)


CONVERSIONS: dict[type, Callable[[Any], Any]] = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_text}
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: f"a number from -{LARGEST:.2g} to {LARGEST:.2g}",
    str: "UTF-8 text, not empty",
}


def format_value(value: Any) -> str:
    """Return a value as text for people, such as yes for True."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "(none)"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "(not set)" if value is None else str(value)
