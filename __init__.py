"""The package cnn_harness, as which this folder is installed; in a checkout, nothing imports this file.

`from cnn_harness import ipu_utils` gives other projects the device layer. The modules behind it import each other by
the names that they have in a checkout, so that a project with modules of its own of these names cannot use it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_FACES = ("ipu_utils",)
_ROOMS = ("base", "Models", "emulator", *_FACES)  # whose modules a face imports


def __getattr__(name: str) -> ModuleType:
    """A face, found behind everything that the importing project has; ImportError where that has one of the names."""
    if name not in _FACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HERE not in sys.path:
        sys.path.append(_HERE)
    for room in _ROOMS:
        spec = importlib.util.find_spec(room)
        origin = os.path.realpath(spec.origin or "") if spec else ""
        if not origin.startswith(os.path.realpath(_HERE) + os.sep):
            raise ImportError(f"{__name__}.{name} needs the module name {room}, which is taken by {origin or room}")
    return importlib.import_module(name)
