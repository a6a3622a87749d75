"""Finds plug-ins by file name: Models/, LR_Schedules/, Datasets/."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from base.errors import OptionError
from base.fields import brief

ROOT = Path(__file__).resolve().parent.parent
_LONGEST_NAME = 100  # characters of a name that others are compared with: the comparison's time grows with their square
WHAT = {"Models": "model", "LR_Schedules": "learning-rate schedule", "Datasets": "data set"}


def names(folder: str) -> list[str]:
    """Every plug-in of a folder, sorted."""
    return sorted(path.stem for path in (ROOT / folder).glob("*.py") if not path.stem.startswith("_"))


def load(folder: str, name: str, where: str = "") -> ModuleType:
    """The plug-in's module; an unknown name is an error with the nearest ones."""
    if name not in names(folder):
        raise OptionError(
            f"{where + ': ' if where else ''}no {WHAT[folder]} '{brief(name)}': {folder}/{brief(name)}.py not found"
            f"{did_you_mean(name, names(folder))}\nThere are: {', '.join(names(folder))}"
        )
    return importlib.import_module(f"{folder}.{name}")


def did_you_mean(given: str, known: list[str]) -> str:
    """'; did you mean a, b or c?' with the nearest three names, or nothing."""
    if len(given) > _LONGEST_NAME:
        return ""
    lowered = {name.lower(): name for name in known}
    near = [lowered[name] for name in get_close_matches(given.lower(), list(lowered), n=3, cutoff=0.5)]
    if not near:
        return ""
    return "; did you mean " + (f"{', '.join(near[:-1])} or {near[-1]}" if len(near) > 1 else near[0]) + "?"
