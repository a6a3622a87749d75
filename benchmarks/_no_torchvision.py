"""Stands for torchvision, which timm imports for pictures: the networks do without, and its wheels fit one build of PyTorch
only. To be imported before timm."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from unittest.mock import MagicMock


class NoPictures(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that have everything."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of torchvision, or of a module in it; None for any other."""
        found = name.split(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return a module that has every name."""
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, as the module is complete."""


sys.meta_path.insert(0, NoPictures())
