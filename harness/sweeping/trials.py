"""The trials of a sweep: every combination of a grid, or random draws. A trial's name is a function of its own options, and
a draw one of seed, number and option, so that more values, more trials and more options leave the earlier ones alone."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from base import keys
from base.errors import OptionError
from base.fields import brief
from harness.options.catalogue import CONVERSIONS, Option
from harness.sweeping.block import MAX_TRIALS, Axis, Range, Setting, Sweep

_LONGEST = 120  # characters of a name; a file system takes 255
_DIGITS = 4  # of a draw from a range over powers of ten
_EVERY_DIGIT = 17  # of a floating-point number
_STEPS = 1000  # values that an even range has at least
_NAMED = ("model", "dataset", "lr_schedule")  # options with the names of modules and data sets
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=,@-]")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A training of a sweep. `settings`: the options that vary; `texts`: their values as names and tables have them."""

    name: str
    settings: tuple[Setting, ...]
    texts: tuple[str, ...]


def of(sweep: Sweep) -> list[Trial]:
    """The trials in their order, each once; OptionError for a grid that is too large, or has a value twice."""
    if sweep.draws is None:
        return _grid(sweep)
    drawn = [_trial(sweep, [_drawn(axis, sweep.draws.seed, k) for axis in sweep.axes]) for k in range(sweep.draws.trials)]
    once: dict[tuple[str, ...], Trial] = {}
    for trial in drawn:
        once.setdefault(tuple(_value(axis.option, each) for axis, each in zip(sweep.axes, trial.texts)), trial)
    return list(once.values())


def words(settings: tuple[Setting, ...]) -> list[str]:
    """The words of train.py for options with their values."""
    return [word for setting in settings for word in _words(setting)]


def text(option: Option, value: Any) -> str:
    """A value in one short word: 0.80 and 8e-1 are 0.8, and -0.0 is 0."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return "+".join(text(option, item) for item in value) or "none"
    if option.base in (int, float):
        with suppress(ValueError, TypeError, OverflowError):
            number = CONVERSIONS[option.base](str(value))
            return f"{number + 0.0:.10g}" if option.base is float else str(number)
    return str(value)


def _value(option: Option, word: str) -> str:
    """A word that all spellings of a value share: where the value is one of several names, their case does not matter."""
    return word.lower() if option.meta["choices"] or option.name in _NAMED else word


def _grid(sweep: Sweep) -> list[Trial]:
    count = math.prod(len(axis.choices) for axis in sweep.axes)
    if count > MAX_TRIALS:
        sizes = " x ".join(str(len(axis.choices)) for axis in sweep.axes)
        raise OptionError(
            f"{sweep.where}: the grid has {sizes} = {count:,} trials, and {MAX_TRIALS:,} at most are made; give fewer"
        )
    for axis in sweep.axes:
        seen: set[str] = set()
        for each in (text(axis.option, choice) for choice in axis.choices):
            value = _value(axis.option, each)
            if value in seen:
                raise OptionError(f"{axis.where}: {axis.key} has {brief(each)} twice; keep one of them")
            seen.add(value)
    return [_trial(sweep, chosen) for chosen in itertools.product(*(axis.choices for axis in sweep.axes))]


def _drawn(axis: Axis, seed: int, k: int) -> Any:
    """The value of an option in the k-th random trial."""
    fraction = keys.fraction(seed, f"sweep/{axis.option.name}/{k}")
    if axis.range is None:
        return axis.choices[int(fraction * len(axis.choices))]
    return whole_at(axis.range, fraction) if axis.range.whole else number_at(axis.range, fraction)


def whole_at(span: Range, fraction: float) -> int:
    """The whole number at a fraction of a range, both of whose ends are as likely as their neighbours."""
    low, end = int(span.low), int(span.high) + 1
    value = low * (end / low) ** fraction if span.log else low + fraction * (end - low)
    return min(max(math.floor(value), low), end - 1)


def number_at(span: Range, fraction: float) -> float:
    """The number at a fraction of a range, of no more digits than tell a thousandth of it."""
    low, high = span.low, span.high
    if span.log:
        length = math.log(high) - math.log(low)
        value = math.exp(math.log(low) + fraction * length)
        finer = max(0, math.ceil(-math.log10(length))) if length else _EVERY_DIGIT
        rounded = float(f"{value:.{_DIGITS + finer}g}")
    else:
        value = low + fraction * (high - low)
        step = (high - low) / _STEPS
        rounded = round(value, -math.floor(math.log10(step))) if step else value
    return min(max(rounded, low), high)


def _trial(sweep: Sweep, values: list[Any] | tuple[Any, ...]) -> Trial:
    settings = [
        Setting(name=axis.option.name, key=axis.key, value=value, where=axis.where)
        for axis, value in zip(sweep.axes, values)
    ]
    texts = [text(axis.option, value) for axis, value in zip(sweep.axes, values)]
    parts = sorted(f"{axis.key}={each}" for axis, each in zip(sweep.axes, texts))
    return Trial(name=_folder(",".join(parts)), settings=tuple(settings), texts=tuple(texts))


def _folder(name: str) -> str:
    """A name that any file system takes; where that loses something, with a digest of the whole."""
    safe = _UNSAFE.sub("_", name)
    if safe == name and len(name) <= _LONGEST:
        return name
    return f"{safe[: _LONGEST - 9]}-{hashlib.blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def _words(setting: Setting) -> Iterator[str]:
    flag, value = f"--{setting.key}", setting.value
    if isinstance(value, list):
        yield from (flag, *map(str, value)) if value else (_negated(setting.key),)
    elif isinstance(value, bool):
        yield flag if value else _negated(setting.key)
    else:
        yield f"{flag}={value}"


def _negated(key: str) -> str:
    return f"--{key.removeprefix('no-')}" if key.startswith("no-") else f"--no-{key}"
