"""Residual networks: the segments shared by ResNet and ResNeXt (He et al., arXiv 1512.03385).

In bottleneck units, the 3x3 convolution has the stride ("v1.5").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cnn_harness.Models._layers import Initial, Layers, Tensor
from cnn_harness.Models._model import Value
from cnn_harness.Models._norms import Norm, NormOptions
from cnn_harness.Models._segments import Segment

KERNEL = Initial(1.0, "fan_in")
BOTTLENECKS = {14: (1, 1, 1, 1), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
CIFAR_BOTTLENECKS = (1, 3, 4, 5, 6, 7)
WIDTHS = {"imagenet": (64, 128, 256, 512), "cifar": (16, 32, 64)}
IMAGE_SIZES = {"imagenet": 224, "cifar": 32}
LEARNING_RATE_EXPONENTS = {"imagenet": {"sgd": -8.0, "momentum": -11.0}, "cifar": -6.0}
NOT_DECAYED = {"imagenet": ("beta", "gamma"), "cifar": ()}
DEFAULTS: dict[str, dict[str, Value]] = {
    "imagenet": {
        "group_norm": True, "batch_norm": False, "groups": 32, "BN_decay": 0.97, "weight_decay": 1e-4,
        "lars_weight_decay": 1e-4, "epochs": 100.0, "learning_rate_schedule": "0.3,0.6,0.8,0.9",
    },
    "cifar": {
        "group_norm": False, "batch_norm": True, "groups": 16, "BN_decay": 0.97, "weight_decay": 1e-6,
        "lars_weight_decay": 1e-6, "epochs": 160.0, "learning_rate_schedule": "0.5,0.75",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A network size: the kind of unit and the number of units per stage."""

    block: str  # "basic" or "bottleneck"
    units: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ResidualNetwork:
    """A network size with the widths and options from which the segments are built."""

    variant: Variant
    large_stem: bool  # begin with a 7x7 convolution of stride 2 and a max-pool, for ImageNet-sized images
    stem_width: int
    widths: tuple[int, ...]  # channels per stage, before bottleneck units widen the output four times
    norm: Norm
    num_classes: int
    padding: str  # padding of windows of stride 2.
    projection: bool  # the shortcut of a stage's first basic unit is a 1x1 convolution; otherwise option A of the paper.
    conv_groups: int = 1
    grouped_width: int | None = None  # channels of the first stage's 3x3 convolutions in bottleneck units; None: widths[0]


def imagenet_variants(block: str, rows: dict[int, tuple[int, ...]]) -> dict[int, Variant]:
    """Return the variants for {size: units per stage}."""
    return {size: Variant(block, units) for size, units in rows.items()}


def cifar_variants(block: str, per_stage: tuple[int, ...]) -> dict[int, Variant]:
    """Return networks of three stages with n units each. The size is 6n + 2 (basic) or 9n + 2 (bottleneck)."""
    layers = {"basic": 6, "bottleneck": 9}[block]
    return {layers * n + 2: Variant(block, (n, n, n)) for n in per_stage}


def image_size(options: NormOptions, family: str) -> int:
    """Return the side of the images in pixels."""
    return IMAGE_SIZES[family]


def segments(network: ResidualNetwork) -> list[Segment]:
    """Return the segments: b0, then b<stage>/<unit> and b<stage>/<unit>/relu, reduce_mean, fc1."""
    segments = [Segment("b0", partial(_stem, network=network))]
    unit_function = {"basic": _basic_unit, "bottleneck": _bottleneck_unit}[network.variant.block]
    for stage, units in enumerate(network.variant.units):
        for unit in range(units):
            name = f"b{stage + 1}/{unit}"
            stride = 2 if stage > 0 and unit == 0 else 1
            width = network.widths[stage]
            apply = partial(unit_function, network=network, name=name, width=width, stride=stride, first=unit == 0)
            segments += [Segment(name, apply), Segment(f"{name}/relu", _relu)]
    segments.append(Segment("reduce_mean", lambda layers, x: layers.global_mean(x)))
    segments.append(Segment("fc1", partial(_head, num_classes=network.num_classes)))
    return segments


def _relu(layers: Layers, x: Tensor) -> Tensor:
    return layers.relu(x)


def _head(layers: Layers, x: Tensor, *, num_classes: int) -> Tensor:
    with layers.scope("fc1"):
        return layers.dense(x, num_classes)


def _stem(layers: Layers, x: Tensor, *, network: ResidualNetwork) -> Tensor:
    with layers.scope("b0"):
        if not network.large_stem:
            return _conv_norm_relu(layers, x, network, network.stem_width, 3)
        x = _conv_norm_relu(layers, x, network, network.stem_width, 7, stride=2)
        return layers.max_pool(x, 3, 2, padding=network.padding)


def _conv_norm(
    layers: Layers,
    x: Tensor,
    network: ResidualNetwork,
    filters: int,
    kernel: int,
    *,
    stride: int = 1,
    zero_gamma: bool = False,
) -> Tensor:
    # Padding does not matter, because only 1x1 kernels have a stride here.
    return layers.norm(layers.conv(x, filters, kernel, KERNEL, stride=stride), network.norm, zero_gamma=zero_gamma)


def _conv_norm_relu(
    layers: Layers, x: Tensor, network: ResidualNetwork, filters: int, kernel: int, *, stride: int = 1, groups: int = 1
) -> Tensor:
    x = layers.conv(x, filters, kernel, KERNEL, stride=stride, groups=groups, padding=network.padding)
    return layers.norm_activation(x, network.norm, "relu")


def _basic_unit(
    layers: Layers, x: Tensor, *, network: ResidualNetwork, name: str, width: int, stride: int, first: bool
) -> Tensor:
    with layers.scope(name):
        shortcut = _basic_shortcut(layers, x, network, width, stride) if first else x
        with layers.scope("1"):
            x = _conv_norm_relu(layers, x, network, width, 3, stride=stride)
        with layers.scope("2"):
            x = _conv_norm(layers, x, network, width, 3)
        return layers.add(shortcut, x)


def _basic_shortcut(layers: Layers, x: Tensor, network: ResidualNetwork, width: int, stride: int) -> Tensor:
    if not network.projection and (stride, width) == (1, layers.channels(x)):
        return x
    if not network.projection:
        return layers.subsample(x, stride, width)
    with layers.scope("p"):
        return _conv_norm(layers, x, network, width, 1, stride=stride)


def _bottleneck_unit(
    layers: Layers, x: Tensor, *, network: ResidualNetwork, name: str, width: int, stride: int, first: bool
) -> Tensor:
    with layers.scope(name):
        shortcut = x
        if first:
            with layers.scope("p"):
                shortcut = _conv_norm(layers, x, network, 4 * width, 1, stride=stride)
        inner = width * network.grouped_width // network.stem_width if network.grouped_width else width
        with layers.scope("1"):
            x = _conv_norm_relu(layers, x, network, inner, 1)
        with layers.scope("2"):
            x = _conv_norm_relu(layers, x, network, inner, 3, stride=stride, groups=network.conv_groups)
        with layers.scope("3"):
            x = _conv_norm(layers, x, network, 4 * width, 1, zero_gamma=not first)
        return layers.add(shortcut, x)
