"""Name a network as in its publication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Networks of plug-ins are not in this table and keep the value of --model.
_NAMES = {"resnet": "ResNet", "resnext": "ResNeXt", "squeezenet": "SqueezeNet", "efficientnet": "EfficientNet"}
_LITE = {"model": "efficientnet", "se": False, "use_relu6": True, "fix_stem_head": True}


def title(options: Mapping[str, Any]) -> str:
    """Return the name of the network with these options, such as "ResNet-14"; "" if it is unknown."""
    return "-".join(filter(None, (_NAMES.get(name := options.get("model") or "", name), size_name(options))))


def size_name(options: Mapping[str, Any]) -> str:
    """Return the size of the network with these options, such as "50" or "B0"; "Lite0" for the B0 of EfficientNet-Lite."""
    size = str(options.get("model_size") or "")
    lite = all(options.get(name) == value for name, value in _LITE.items())
    return size.replace("B", "Lite") if lite else size
