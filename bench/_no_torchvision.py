"""Replace torchvision by mock modules. Import this module before timm.

timm imports torchvision, but timm's networks do not need it. A real torchvision would have to match the build of PyTorch."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from unittest.mock import MagicMock


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that returns mock modules for torchvision."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for torchvision and its submodules, None for any other module."""
        found = name.split(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return a mock module, in which every name exists."""
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, because the mock module is complete."""


sys.meta_path.insert(0, StandIn())
