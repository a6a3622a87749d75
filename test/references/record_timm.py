"""Record the outputs of timm's networks for generated weights and images, in float64.

Writes `<network>.npz` next to this file, for test_references.py: names and shapes of timm's variables, logits with moving
statistics and logits with batch statistics. Run it in a separate environment (torch is no dependency of this project):

    pip install torch==2.13.0 numpy pillow PyYAML
    pip install --no-deps timm==1.0.31
    python test/references/record_timm.py [NETWORK...]

timm imports torchvision, safetensors and huggingface_hub, which are not needed here; empty stand-ins replace them. The sides
of the images are such that every layer of stride two sees an odd side. There PyTorch's symmetric padding equals TensorFlow's
SAME; the EfficientNet pads like TensorFlow at any side.

timm's ResNet-18 and 34 start their first stage without a projection. Their first logits are of that network, their second
of one that was given timm's own projection.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from references.generated import noise_images, value_back, weights  # noqa: E402

from cnn_harness.tools import weight_names  # noqa: E402

ABSENT = ("torchvision", "safetensors", "huggingface_hub")
NETWORKS = {  # file -> name in timm, options here, side
    "resnet18": ("resnet18", {"model_size": 18}, 225),
    "resnet34": ("resnet34", {"model_size": 34}, 97),
    "resnet50": ("resnet50", {"model_size": 50}, 225),
    "resnet101": ("resnet101", {"model_size": 101}, 97),
    "resnet152": ("resnet152", {"model_size": 152}, 97),
    "resnext50": ("resnext50_32x4d", {"model_size": 50}, 225),
    "resnext101": ("resnext101_32x4d", {"model_size": 101}, 97),
    "efficientnet_b0": ("tf_efficientnet_b0", {"model_size": "B0"}, 96),
    "resnet50_even": ("resnet50", {"model_size": 50}, 96),
    "efficientnet_b0_even": ("efficientnet_b0", {"model_size": "B0"}, 96),
}
COUNT = 3
WEIGHT_SEED, PICTURE_SEED = 20150, 20151


class Anything(type):
    """A class that has every attribute."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class StandIn(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find modules that are not installed and not needed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


def filled(network: Any, layout: weight_names.Layout, options: Any) -> dict[str, tuple[int, ...]]:
    """Fill in generated weights; return the names and shapes of the variables."""
    import torch

    state = {name: value for name, value in network.state_dict().items() if layout.ours(name, options)}
    shapes = {layout.ours(name, options): layout.value(name, value.numpy()).shape for name, value in state.items()}
    made = weights(shapes, WEIGHT_SEED)
    values = {name: torch.from_numpy(value_back(layout, name, made[layout.ours(name, options)]).copy()) for name in state}
    unknown = network.load_state_dict(values, strict=False)
    assert not unknown.unexpected_keys and all(key.endswith("num_batches_tracked") for key in unknown.missing_keys)
    return {name: tuple(value.shape) for name, value in values.items()}


def record(name: str, folder: Path) -> None:
    """Return a network's logits for the generated weights and images."""
    import timm
    import torch

    theirs, asked, side = NETWORKS[name]
    layout = next(lay for lay in weight_names.LAYOUTS if lay.mark in timm.create_model(theirs).state_dict())
    options = weight_names.plugins.load("Models", layout.model).Options(**asked)
    images = torch.from_numpy(noise_images(COUNT, side, PICTURE_SEED)).permute(0, 3, 1, 2).double()
    networks = [timm.create_model(theirs) for _ in range(2)]
    if name in ("resnet18", "resnet34"):
        networks[1].layer1[0].downsample = timm.models.resnet.downsample_conv(64, 64, kernel_size=1)
    names, _ = [filled(network, layout, options) for network in networks]
    with torch.no_grad():
        inference = networks[0].double().eval()(images).numpy()
        batch = networks[1].double().train()(images).numpy()
    np.savez_compressed(
        folder / f"{name}.npz", inference=inference, batch=batch, weight_seed=WEIGHT_SEED, picture_seed=PICTURE_SEED,
        side=side, names=np.array(json.dumps(names)), timm=timm.__version__, torch=torch.__version__, numpy=np.__version__,
    )  # fmt: skip
    for what, logits in (("inference", inference), ("batch", batch)):
        away = np.abs(logits[0] - logits[1]).max()
        print(f"{name}: {what}: deviation {logits.std():.3f}, largest {np.abs(logits).max():.3f}, images {away:.2f} apart")


if __name__ == "__main__":
    sys.meta_path.append(StandIns())
    for chosen in sys.argv[1:] or NETWORKS:
        record(chosen, HERE)
