"""Runs in words: the network and its data as people write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# as their authors write them; a plug-in that is not here goes by its own name
_NETWORKS = {"resnet": "ResNet", "resnext": "ResNeXt", "squeezenet": "SqueezeNet", "efficientnet": "EfficientNet"}
_DATA = {
    "fashion-mnist": "Fashion-MNIST", "fashion-mnist-full": "all of Fashion-MNIST", "cifar-10": "CIFAR-10",
    "cifar-100": "CIFAR-100", "imagenet": "ImageNet", "imagefolder": "a folder of pictures",
}  # fmt: skip


def of_run(options: Mapping[str, Any]) -> str:
    """Network, size and data of the run with such options; an empty text where they are not known."""
    model, data, size = (options.get(name) for name in ("model", "dataset", "model_size"))
    if not model:
        return ""
    network = f"{_NETWORKS.get(model, model)}{f'-{size}' if size else ''}"
    return f"{network} on {_DATA.get(data, data) if data else 'unknown data'}"
