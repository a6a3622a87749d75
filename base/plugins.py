"""Finds plug-ins by file name: Models/, LR_Schedules/, Datasets/."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from base.errors import OptionError
from base.fields import decimal_number, short

ROOT = Path(__file__).resolve().parent.parent
_LONGEST_NAME = 100  # characters of a name that others are compared with: the comparison's time grows with their square
WHAT = {"Models": "model", "LR_Schedules": "learning-rate schedule", "Datasets": "data set"}


def names(folder: str) -> list[str]:
    """Every plug-in of a folder, sorted."""
    return sorted(path.stem for path in (ROOT / folder).glob("*.py") if not path.stem.startswith("_"))


def load(folder: str, name: str, where: str = "") -> ModuleType:
    """The plug-in's module; an unknown name is an error with the nearest ones."""
    if name not in names(folder):
        near = _with_size(name, names(folder)) if folder == "Models" else _a_rate(name)
        raise OptionError(
            f"{where + ': ' if where else ''}no {WHAT[folder]} '{short(name)}': {folder}/{short(name)}.py not found"
            f"{near or did_you_mean(name, names(folder))}",
            f"There are: {', '.join(names(folder))}",
        )
    return __import__(f"{folder}.{name}", fromlist=("Options",))  # as a statement would, in an installation too


def _with_size(name: str, known: list[str]) -> str:
    """The question behind a model's name with its size, as resnet50 or efficientnet_b0; "" for another name."""
    model = max((each for each in known if name.lower().startswith(each)), key=len, default=name)
    size = name[len(model) :].lstrip("-_ ")
    sized = len(size) <= 8 and size.isascii() and size.isalnum() and any(c.isdigit() for c in size)
    return f"; did you mean --model {model} --model-size {size.upper()}?" if sized else ""


def _a_rate(name: str) -> str:
    """The option for a number in a schedule's place."""
    with suppress(ValueError):
        decimal_number(name)
        return f"; a rate is given as --abs-learning-rate {name}"
    return ""


def did_you_mean(given: str, known: Sequence[str], cutoff: float = 0.5) -> str:
    """'; did you mean a, b or c?' with the nearest three names, or nothing; as for `nearest`."""
    near = nearest(given, known, cutoff)
    if not near:
        return ""
    return "; did you mean " + (f"{', '.join(near[:-1])} or {near[-1]}" if len(near) > 1 else near[0]) + "?"


def nearest(given: str, known: Sequence[str], cutoff: float = 0.5) -> list[str]:
    """The nearest three names, nearest first, whatever their capitals. `cutoff`: the least likeness, from 0 to 1."""
    if len(given) > _LONGEST_NAME:
        return []
    lowered = {name.lower(): name for name in known if len(name) <= _LONGEST_NAME}
    return [lowered[name] for name in get_close_matches(given.lower(), list(lowered), n=3, cutoff=cutoff)]
