"""Replace torchvision by mock modules. Import this module before timm.

timm imports torchvision, but timm's networks do not need it. A real torchvision would have to match the build of PyTorch."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

_IMPORTED = (  # by timm
    "torchvision", "torchvision.datasets", "torchvision.models", "torchvision.models.feature_extraction", "torchvision.ops",
    "torchvision.ops.misc", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.utils",
)  # fmt: skip

for _name in _IMPORTED:
    sys.modules[_name] = MagicMock(name=_name)  # every name exists in it
    sys.modules[_name].__spec__ = ModuleSpec(_name, None)
