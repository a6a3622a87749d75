"""A sweep as its block of a YAML file says: the options that all trials share, and those that vary, with their values.

Keys are spelled as on the command line of train.py, or with underscores. Nothing here draws, and nothing here knows which
network the trials have: whether a value suits its option is seen when a trial's options are parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from base.errors import OptionError
from base.fields import brief
from base.plugins import did_you_mean
from harness.options import sources
from harness.options.catalogue import LARGEST, Option, Spelling
from harness.options.configs import MAX_LISTED, ConfigFile, Entry

GRID, RANDOM = "grid", "random"
TRIALS, SEED = "trials", "seed"  # of a random sweep
MAX_TRIALS = 1000
_SCALES = ("linear", "log")
_LARGEST_SEED = 2**63 - 1
_ELSEWHERE: Mapping[str, str] = {  # options that a sweep decides itself, and the way to do the same
    "logs_path": "give --logs-path to sweep.py: each trial has a folder below it",
    "log_dir": "give --logs-path to sweep.py: each trial has a folder below it",
    "name_suffix": "a trial's folder is named by what varies",
    "autoresume": "the same call goes on with every trial anyway",
    "restore_path": "the same call goes on with every trial; --init-path begins with weights",
    "logs": "trials are compared by the rows that they log",
    "distributed": "a trial is one process; train.py trains in several",
    **dict.fromkeys(
        ("help", "version", "explain", "summary", "list_configs", "dry_run", "compile_only", "dataset_benchmark"),
        "that is a question to train.py",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An option with its value, as a file gives it. `name`: of the option; `key`: the spelling, with hyphens."""

    name: str
    key: str
    value: Any
    where: str


@dataclass(frozen=True, kw_only=True)
class Range:
    """The numbers from `low` to `high`, both included; `log`: as many in each power of ten; `whole`: whole numbers alone."""

    low: float
    high: float
    log: bool
    whole: bool


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An option that varies: over its choices, or over a range."""

    option: Option
    key: str
    where: str
    choices: tuple[Any, ...] = ()
    range: Range | None = None


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The number of random trials, and the seed that they are drawn from."""

    trials: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A block. `draws`: None for a grid, which has every combination of the axes' choices."""

    name: str
    where: str
    shared: tuple[Setting, ...]
    axes: tuple[Axis, ...]
    draws: Draws | None = None


def read(path: str, name: str | None) -> Sweep:
    """The sweep of a file by its name, or its only one; OptionError with file and line for anything that is none."""
    file = ConfigFile(path)
    if not file.names:
        raise OptionError(
            f"{path} holds no sweep: NAME: with options that all trials share, and below it {GRID}: or {RANDOM}:"
        )
    if name is None:
        sweeps = file.names_with(GRID, RANDOM) or file.names  # the others are shared by them
        if len(sweeps) > 1:
            raise OptionError(f"{path} holds {len(sweeps)} sweeps, {_some(sweeps)}: name one of them")
        name = sweeps[0]
    if name not in file.names:
        raise OptionError(
            f"{path}: no sweep '{brief(name)}'{did_you_mean(name, file.names)}", f"There are: {_some(file.names)}"
        )
    if not name.replace("_", "").replace("-", "").isalnum() or name.startswith("-"):
        raise OptionError(f"{path}: '{brief(name)}' names a folder: give letters, digits, - and _ alone, and no - at first")
    return _Reader(name, sources.all_options("train").spellings).sweep(file.nested(name, 2), path)


def check_own(name: str, written: str) -> None:
    """OptionError for an option that a sweep decides itself. `written`: its place and spelling."""
    if name in _ELSEWHERE:
        raise OptionError(f"{written} is not for sweep.py: {_ELSEWHERE[name]}")


class _Reader:
    """Reads the entries of one block, with the spellings that train.py's options have."""

    def __init__(self, name: str, spellings: Mapping[str, Spelling]) -> None:
        self._name, self._spellings = name, spellings

    def sweep(self, entries: Mapping[str, Entry], path: str) -> Sweep:
        if GRID in entries and RANDOM in entries:
            raise OptionError(f"{entries[RANDOM].where}: {self._name} has both {GRID} and {RANDOM}: keep one of them")
        kind = next((kind for kind in (GRID, RANDOM) if kind in entries), None)
        if kind is None:
            raise OptionError(
                f"{path}: {self._name} has neither {GRID} nor {RANDOM}, which say what varies: give one of them"
            )
        where, inner = entries[kind].where, self._mapping(kind, entries[kind])
        own = (TRIALS, SEED) if kind == RANDOM else ()
        axes = [self._axis(key, entry, kind, own) for key, entry in inner.items() if key not in own]
        if not axes:
            raise OptionError(f"{where}: {kind} varies no option: give it one at least, as momentum: [0.8, 0.9]")
        shared = [self._setting(key, entry) for key, entry in entries.items() if key != kind]
        self._check_once(
            [*((one.name, one.key, one.where) for one in shared), *((a.option.name, a.key, a.where) for a in axes)]
        )
        draws = self._draws(where, inner) if kind == RANDOM else None
        return Sweep(name=self._name, where=where, shared=tuple(shared), axes=tuple(axes), draws=draws)

    def _mapping(self, kind: str, entry: Entry) -> Mapping[str, Entry]:
        if not isinstance(entry.value, dict):
            raise OptionError(f"{entry.where}: {kind} must be a mapping of options to their values")
        return entry.value

    def _draws(self, where: str, inner: Mapping[str, Entry]) -> Draws:
        if TRIALS not in inner:
            raise OptionError(f"{where}: {RANDOM} needs {TRIALS}: the number of trials to draw")
        trials = self._whole(TRIALS, inner[TRIALS], 1, MAX_TRIALS)
        return Draws(trials=trials, seed=self._whole(SEED, inner[SEED], 0, _LARGEST_SEED) if SEED in inner else 0)

    @staticmethod
    def _whole(key: str, entry: Entry, low: int, high: int) -> int:
        if isinstance(entry.value, bool) or not isinstance(entry.value, int) or not low <= entry.value <= high:
            raise OptionError(
                f"{entry.where}: {key} is {_shown(entry.value)} but must be a whole number from {low} to {high}"
            )
        return int(entry.value)

    def _spelling(self, key: str, entry: Entry, others: tuple[str, ...]) -> Spelling:
        spelling = self._spellings.get(key.replace("-", "_"))
        if spelling is None:
            near = did_you_mean(key.replace("-", "_"), [*self._spellings, *others])
            raise OptionError(f"{entry.where}: {self._name}: unknown key '{brief(key)}'{near}")
        check_own(spelling.option.name, f"{entry.where}: {brief(key)}")
        return spelling

    def _setting(self, key: str, entry: Entry) -> Setting:
        spelling = self._spelling(key, entry, (GRID, RANDOM))
        if isinstance(entry.value, dict) or entry.value is None or _nested(entry.value):
            raise OptionError(
                f"{entry.where}: {brief(key)} is {_shown(entry.value)}: an option that all trials share has a value, and "
                f"one that varies stands below {GRID} or {RANDOM}"
            )
        return Setting(name=spelling.option.name, key=_key(key), value=entry.value, where=entry.where)

    def _axis(self, key: str, entry: Entry, kind: str, own: tuple[str, ...]) -> Axis:
        spelling = self._spelling(key, entry, own)
        option, value = spelling.option, entry.value
        if isinstance(value, dict) and kind == RANDOM:
            return Axis(option=option, key=_key(key), where=entry.where, range=self._range(key, option, value, entry.where))
        if isinstance(value, list) and None in value:
            raise OptionError(
                f"{entry.where}: {brief(key)} has null in its list: a trial without the option is none of a {kind}; give "
                "values alone"
            )
        if not isinstance(value, list) or not value:
            ranges = ", or a range, as {low: 0.01, high: 1, scale: log}" * (kind == RANDOM)
            raise OptionError(f"{entry.where}: {brief(key)} is {_shown(value)} but {kind} needs a list of values{ranges}")
        return Axis(option=option, key=_key(key), where=entry.where, choices=tuple(value))

    def _range(self, key: str, option: Option, given: Mapping[str, Entry], where: str) -> Range:
        for name, entry in given.items():
            if name not in ("low", "high", "scale"):
                raise OptionError(f"{entry.where}: {brief(key)}: a range has low, high and scale, not '{brief(name)}'")
        if option.base not in (int, float) or option.several or option.meta["choices"]:
            raise OptionError(f"{where}: {brief(key)} is not one number, which a range is for: give a list of values")
        missing = [name for name in ("low", "high") if name not in given]
        if missing:
            raise OptionError(f"{where}: {brief(key)}: a range needs {' and '.join(missing)}")
        low, high = (self._bound(key, option, name, given[name]) for name in ("low", "high"))
        scale = given["scale"].value if "scale" in given else _SCALES[0]
        if scale not in _SCALES:
            raise OptionError(
                f"{given['scale'].where}: {brief(key)}: scale is {_shown(scale)} but must be {' or '.join(_SCALES)}"
            )
        if not low < high:
            raise OptionError(f"{where}: {brief(key)}: low is {low:g}, and high {high:g}: low must be the lower one")
        if scale == "log" and low <= 0:
            raise OptionError(f"{given['low'].where}: {brief(key)}: low is {low:g} but must be above 0 where scale is log")
        return Range(low=low, high=high, log=scale == "log", whole=option.base is int)

    @staticmethod
    def _bound(key: str, option: Option, name: str, entry: Entry) -> float:
        kind, word = (int, "a whole number") if option.base is int else ((int, float), "a number")
        given = entry.value
        if isinstance(given, bool) or not isinstance(given, kind) or not abs(given) <= LARGEST:
            most = f" up to {LARGEST:.4g}" * (option.base is not int)
            raise OptionError(f"{entry.where}: {brief(key)}: {name} is {_shown(entry.value)} but must be {word}{most}")
        return option.base(entry.value)

    @staticmethod
    def _check_once(given: list[tuple[str, str, str]]) -> None:
        """OptionError for an option that is given twice, be it by two spellings."""
        first: dict[str, str] = {}
        for name, key, where in given:
            if name in first:
                raise OptionError(f"{where}: {key} is given twice, first at {first[name]}; keep one of them")
            first[name] = where


def _some(names: list[str]) -> str:
    return ", ".join([*map(brief, names[:MAX_LISTED]), *["..."] * (len(names) > MAX_LISTED)])


def _key(written: str) -> str:
    return written.replace("_", "-")


def _nested(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, list) or item is None for item in value)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "empty" if value is None or value == [] else f"'{brief(value)}'"
