"""Records what timm's ResNet-50 and ResNeXt-50 put out for generated weights and pictures.

Writes `resnet50_timm.npz` and `resnext50_timm.npz` beside this file, for test_references.py. In an environment
of its own (torch is no dependency of this project):

    pip install torch==2.13.0 numpy pillow PyYAML
    pip install --no-deps timm==1.0.31
    python test/references/record_resnet50.py

timm imports torchvision, safetensors and huggingface_hub for things that are not needed here; empty stand-ins
take their place. Pictures are 225 pixels wide: every layer of stride two then sees an odd side, where PyTorch's
symmetric padding and TensorFlow's SAME are the same thing. The computation is in float64.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path

import numpy as np
from generated import pictures, weights

ABSENT = ("torchvision", "safetensors", "huggingface_hub")
NETWORKS = {"resnet50": "resnet50", "resnext50": "resnext50_32x4d"}
SIDE, COUNT = 225, 2
WEIGHT_SEED, PICTURE_SEED = 20150, 20151
NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}


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
    """Finds what is not installed and not needed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def our_name(theirs: str) -> str:
    """layer2.0.conv1.weight is all/b2/0/1/conv/conv2d/kernel, layer2.0.downsample.1.bias all/b2/0/p/batch_norm/beta."""
    *place, module, kind = theirs.split(".")
    if module == "fc":
        return f"all/fc1/dense/{'kernel' if kind == 'weight' else 'bias'}"
    if place and place[-1] == "downsample":
        scope, is_norm = f"b{place[0][-1]}/{place[1]}/p", module == "1"
    elif place:
        scope, is_norm = f"b{place[0][-1]}/{place[1]}/{module[-1]}", module.startswith("bn")
    else:
        scope, is_norm = "b0", module.startswith("bn")
    return f"all/{scope}/batch_norm/{NORM[kind]}" if is_norm else f"all/{scope}/conv/conv2d/kernel"


def our_shape(theirs: tuple[int, ...]) -> tuple[int, ...]:
    """[out, in, height, width] to [height, width, in, out]; [out, in] to [in, out]."""
    return {4: (*theirs[2:], *theirs[1::-1]), 2: theirs[::-1], 1: theirs}[len(theirs)]


def their_values(ours: np.ndarray) -> np.ndarray:
    """The way back for values."""
    return {4: lambda: ours.transpose(3, 2, 0, 1), 2: lambda: ours.T, 1: lambda: ours}[ours.ndim]()


def record(name: str, folder: Path) -> None:
    """One network's logits for the generated weights and pictures."""
    import timm
    import torch

    network = timm.create_model(NETWORKS[name]).eval()
    state = {key: value for key, value in network.state_dict().items() if not key.endswith("num_batches_tracked")}
    ours = weights({our_name(key): our_shape(tuple(value.shape)) for key, value in state.items()}, WEIGHT_SEED)
    values = {key: torch.from_numpy(their_values(ours[our_name(key)]).copy()) for key in state}
    unknown = network.load_state_dict(values, strict=False)
    assert not unknown.unexpected_keys and all(key.endswith("num_batches_tracked") for key in unknown.missing_keys)
    images = torch.from_numpy(pictures(COUNT, SIDE, PICTURE_SEED)).permute(0, 3, 1, 2)
    with torch.no_grad():
        single = network(images).numpy()
        logits = network.double()(images.double()).numpy()
    np.savez(
        folder / f"{name}_timm.npz",
        logits=logits,
        weight_seed=WEIGHT_SEED,
        picture_seed=PICTURE_SEED,
        side=SIDE,
        timm=timm.__version__,
        torch=torch.__version__,
        numpy=np.__version__,
    )
    print(
        f"{name}: {len(ours)} variables, logits of deviation {logits.std():.3f}, largest {np.abs(logits).max():.3f}, ",
        end="",
    )
    print(
        f"float32 differs by {np.abs(single - logits).max():.2e}, second picture by {np.abs(logits[0] - logits[1]).max():.2f}"
    )


if __name__ == "__main__":
    sys.meta_path.append(StandIns())
    for chosen in NETWORKS:
        record(chosen, Path(__file__).parent)
