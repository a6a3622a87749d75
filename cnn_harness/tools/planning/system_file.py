"""Read systems from a YAML file. A row has the keys of `systems.KEYS`, and `like` names a system or chip to begin with.

my-server:
  like: A100-8
  memory: 40 GB
  price: 12.5
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from cnn_harness.base.errors import OptionError, parts
from cnn_harness.base.fields import short
from cnn_harness.base.plugins import did_you_mean
from cnn_harness.emulator.cost_model import systems
from cnn_harness.emulator.cost_model.constants import BOUNDS
from cnn_harness.emulator.cost_model.systems import CHIPS, KEYS, KINDS, ROWS, System, by_name
from cnn_harness.harness.options.configs import ConfigFile, Entry

LIKE = "like"
NAMED = {"chip": (CHIPS, "chip"), "kind": (KINDS, "kind of chip")}
COUNTS = ("devices", "machine", "pod", "tiles", "threads", "processes")
_PREFIXES = {"": 1.0, **{letter: 1000.0 ** (k + 1) for k, letter in enumerate("kMGTPE")}}
_PREFIXES |= {f"{letter}i": 1024.0 ** (k + 1) for k, letter in enumerate(("K", "M", "G", "T", "P"))} | {"K": 1000.0}
_EXAMPLES = {"B": "80 GB", "B/s": "600 GB/s or 200 Gbit/s", "FLOP/s": "312 TFLOP/s", "W": "400 W", "Hz": "1.33 GHz"}
# Rates are 0 images/s with less, and searches endless with more chips.
_LEAST = {"B": 1e6, "B/s": 1e8, "FLOP/s": 1e9, "Hz": 1e6, "bandwidth": 1e9, "exchange": 1e10}
_MOST, _MOST_COUNTED = 1e24, 65_536


def chosen(words: Sequence[str], option: str = "--system ") -> tuple[System, ...]:
    """Return the systems that names and files mean, without repetitions. Errors about names begin with `option`."""
    files = [word.lower().endswith((".yml", ".yaml")) or "/" in word for word in words]
    found = [read(word) if is_file else [by_name(word, option)] for word, is_file in zip(words, files)]
    return tuple(dict.fromkeys(chain.from_iterable(found)))


def read(path: str) -> list[System]:
    """Return the systems of a file. Raise OptionError with file and line for wrong values."""
    file = ConfigFile(path)
    if not file.names:
        raise OptionError(f"{path}: the file has no systems; give blocks such as NAME: {{like: POD16, devices: 8}}")
    return [_system(name, file.block(name), path) for name in file.names]


def _system(name: str, entries: Mapping[str, Entry], path: str) -> System:
    row: dict[str, Any] = {}
    for written, entry in entries.items():
        key = written.replace("-", "_")
        if key == LIKE:
            continue
        if key not in KEYS:
            raise OptionError(
                f"{entry.where}: unknown key '{short(written)}'{did_you_mean(key, [LIKE, *KEYS])}",
                f"Available: {', '.join((LIKE, *KEYS))}",
            )
        row[key] = _value(key, entry)
    start = {key: value for key, value in _start(entries).items() if key not in ("chip", "source")}
    where = next((entry.where for entry in entries.values()), path)
    try:
        return systems.read(name, {"chip": name, "source": path, **start, **row})
    except OptionError as error:
        raise OptionError(*parts(error, f"{where}: ")) from None


def _start(entries: Mapping[str, Entry]) -> Mapping[str, Any]:
    """Return the row that `like` names."""
    if LIKE not in entries:
        return {}
    entry, known = entries[LIKE], {**CHIPS, **ROWS}
    row = known[_one_of(known, "system or chip", LIKE, entry)]
    return {**CHIPS.get(row.get("chip", ""), {}), **row}


def _one_of(known: Collection[str], what: str, key: str, entry: Entry) -> str:
    """Return the name in `known` that an entry means, in upper or lower case."""
    name = text(key, entry)
    found = {each.upper(): each for each in known}.get(name.upper())
    if found is None:
        raise OptionError(
            f"{entry.where}: {key}: {short(name)} is no {what}{did_you_mean(name, list(known))}",
            f"Available: {', '.join(known)}",
        )
    return found


def text(key: str, entry: Entry) -> str:
    """Return the value of a key as text. Raise OptionError if it has no value."""
    if entry.value is None:
        raise OptionError(f"{entry.where}: {key} has no value; give one, or delete the line")
    return str(entry.value)


def _value(key: str, entry: Entry) -> Any:
    """Return the value of a key: a text, a count, or a number in the key's unit."""
    if key in NAMED:
        return _one_of(*NAMED[key], key, entry)
    unit, given = KEYS[key], text(key, entry)
    if unit is None:
        return given
    number = quantity(given, unit)
    if key in COUNTS and (number is None or number != int(number) or number > _MOST_COUNTED):
        raise OptionError(f"{entry.where}: {key} is '{short(given)}' but must be a whole number from 1 to {_MOST_COUNTED:,}")
    if number is None:
        what = f"a number above 0 with its unit, such as {_EXAMPLES[unit]}" if unit else "a number above 0, such as 12.5"
        raise OptionError(f"{entry.where}: {key} is '{short(given)}' but must be {what}")
    if number < (least := _LEAST.get(key, _LEAST.get(unit, 0))):
        raise OptionError(f"{entry.where}: {key} is {short(given)} but must be at least {least:g} {unit}")
    if key in BOUNDS and not BOUNDS[key][0] <= number <= BOUNDS[key][1]:
        low, high = BOUNDS[key]
        raise OptionError(f"{entry.where}: {key} is {number:g} but must be between {low:g} and {high:g}")
    return int(number) if key in COUNTS else number


def quantity(text: str, unit: str) -> float | None:
    """Return a number such as "80 GB" in a unit such as "B". Only watts need no unit. Return None for another unit, or for a
    number not above 0."""
    found = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*", text)
    try:
        number = float(found[1]) if found else 0.0
    except ValueError:
        return None
    rest = found[2] if found else ""
    factor = 1.0
    if unit.startswith("B") and "bit" in rest:
        rest, factor = rest.replace("bit", "B"), 1 / 8
    prefix, needed = rest.removesuffix(unit), unit in _LEAST and not rest.endswith(unit)
    if prefix not in _PREFIXES or (prefix and not unit) or needed:
        return None
    number *= factor * _PREFIXES[prefix]
    return number if 0 < number < _MOST else None
