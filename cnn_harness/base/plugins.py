"""Find plug-ins by file name in Models/, LR_Schedules/, Optimisers/ and Datasets/."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

import cnn_harness
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import decimal_number, short

ROOT = Path(cnn_harness.ROOT).resolve()
_LONGEST_NAME = 100  # longer names are not compared, because the time grows with the square of the length
WHAT = {"Models": "model", "LR_Schedules": "learning-rate schedule", "Datasets": "data set", "Optimisers": "optimiser"}


def names(folder: str) -> list[str]:
    """Return the names of a folder's plug-ins, sorted."""
    return sorted(path.stem for path in (ROOT / folder).glob("*.py") if not path.stem.startswith("_"))


def load(folder: str, name: str, where: str = "") -> ModuleType:
    """Return a plug-in's module; raise OptionError for an unknown name, and suggest similar names."""
    if name not in names(folder):
        near = _with_size(name, names(folder)) if folder == "Models" else _a_rate(name)
        raise OptionError(
            f"{where + ': ' if where else ''}no {WHAT[folder]} '{short(name)}': {folder}/{short(name)}.py not found"
            f"{near or did_you_mean(name, names(folder))}",
            f"Available: {', '.join(names(folder))}",
        )
    return importlib.import_module(f"cnn_harness.{folder}.{name}")


def _with_size(name: str, known: list[str]) -> str:
    """Return a suggestion for a model name with a size, such as resnet50 or efficientnet_b0; "" for other names."""
    model = max((each for each in known if name.lower().startswith(each)), key=len, default=name)
    size = name[len(model) :].lstrip("-_ ")
    sized = len(size) <= 8 and size.isascii() and size.isalnum() and any(c.isdigit() for c in size)
    return f"; did you mean --model {model} --model-size {size.upper()}?" if sized else ""


def _a_rate(name: str) -> str:
    """Return a suggestion if a number was given in place of a schedule."""
    with suppress(ValueError):
        decimal_number(name)
        return f"; give a constant rate as --abs-learning-rate {name}"
    return ""


def did_you_mean(given: str, known: Sequence[str], cutoff: float = 0.5) -> str:
    """Return '; did you mean a, b or c?' with the names of `nearest`, or ''."""
    near = nearest(given, known, cutoff)
    if not near:
        return ""
    return "; did you mean " + (f"{', '.join(near[:-1])} or {near[-1]}" if len(near) > 1 else near[0]) + "?"


def nearest(given: str, known: Sequence[str], cutoff: float = 0.5) -> list[str]:
    """Return up to three similar names, best first, ignoring case. `cutoff` is the smallest similarity, from 0 to 1."""
    if len(given) > _LONGEST_NAME:
        return []
    lowered = {name.lower(): name for name in known if len(name) <= _LONGEST_NAME}
    return [lowered[name] for name in get_close_matches(given.lower(), list(lowered), n=3, cutoff=cutoff)]
