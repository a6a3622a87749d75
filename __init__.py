"""The installed package cnn_harness. In a checkout, nothing imports this file.

`cnn_harness.load`, `train` and the other functions of `api.py` are the Python API. `from cnn_harness import ipu_utils`
imports the device layer. TensorFlow and the project's modules are imported only when a function is first used.

In a checkout, the project's modules import each other by short names such as `base` and `log`. In the installed package,
these modules are `cnn_harness.base` and `cnn_harness.log`. A custom import function maps the short names to the long
ones, so that they do not clash with modules of the user's project.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_API = (
    "load", "train", "finetune", "plan", "history", "compare", "TrainedNetwork", "HarnessError", "WrongInput",
    "OptionError", "DataError", "CheckpointError", "Failure",
)  # fmt: skip


@cache
def _own(name: str) -> bool:
    """Return whether a top-level name is a module or subpackage of this package."""
    return os.path.isfile(os.path.join(_HERE, f"{name}.py")) or os.path.isfile(os.path.join(_HERE, name, "__init__.py"))


def _import(
    name: str, globals: Mapping[str, Any] | None = None, locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (), level: int = 0,
) -> ModuleType:  # fmt: skip
    """Import a module like `__import__`, but prefer the modules of this package."""
    top = name.partition(".")[0]
    if level or not _own(top):
        return builtins.__import__(name, globals, locals, fromlist, level)
    module = builtins.__import__(f"{__name__}.{name}", globals, locals, fromlist or ("__name__",))
    return module if fromlist else sys.modules[f"{__name__}.{top}"]


class _Loader(SourceFileLoader):
    """Runs a module of this package with `_import` as its import function."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class _Finder:
    """Finds the modules of this package, to be run by `_Loader`.

    tools.console is excluded, because the commands that it starts import modules by their short names.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        own = name.startswith(f"{__name__}.") and name != f"{__name__}.tools.console"
        spec = PathFinder.find_spec(name, path) if own else None
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, _Finder)


def __getattr__(name: str) -> Any:
    """Return a function or class of `api.py`, or the module `ipu_utils`."""
    if name not in (*_API, "ipu_utils"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "ipu_utils":
        return importlib.import_module(f"{__name__}.{name}")
    api = importlib.import_module(f"{__name__}.api")
    globals().update({each: getattr(api, each) for each in _API})  # `train` becomes the function, not the module
    return globals()[name]


def __dir__() -> list[str]:
    return [*_API, "ipu_utils"]
