"""ResNet for ImageNet-sized and CIFAR-sized pictures (He et al., arXiv 1512.03385)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.fields import at_least, between, opt
from Models import _norms
from Models._residual import Network, cifar_variants, imagenet_variants, segments
from Models._segments import Segment

VARIANTS = {
    "imagenet": {
        **imagenet_variants("basic", {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}),
        **imagenet_variants(
            "bottleneck",
            {14: (1, 1, 1, 1), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)},
        ),
    },
    # 56 is both 6 x 9 + 2 and 9 x 6 + 2; the bottleneck network has the name
    "cifar": {**cifar_variants("basic", (1, 2, 3, 5, 7, 9, 18)), **cifar_variants("bottleneck", (1, 3, 4, 5, 6, 7))},
}
WIDTHS = {"imagenet": (64, 128, 256, 512), "cifar": (16, 32, 64)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the ResNet family."""

    model_size: int | None = opt(None, "number of layers: 10 14 18 26 34 50 101 152 (ImageNet), 6n+2 or 9n+2 (CIFAR)")
    batch_norm: bool | None = opt(None, "batch normalisation (default on CIFAR-sized data)")
    group_norm: bool | None = opt(None, "group normalisation (default on ImageNet)")
    groups: int | None = opt(None, "number of channel groups of group norm (default 32, CIFAR 16)", check=at_least(1))
    BN_decay: float | None = opt(None, "decay of batch norm's moving statistics (default 0.97)", check=between(0, 1))


DEFAULTS: dict[str, dict[str, Any]] = {
    "imagenet": {
        "model_size": 18, "group_norm": True, "batch_norm": False, "groups": 32, "BN_decay": 0.97, "micro_batch_size": 4,
        "weight_decay": 1e-4, "lars_weight_decay": 1e-4, "epochs": 100.0, "learning_rate_schedule": "0.3,0.6,0.8,0.9",
    },
    "cifar": {
        "model_size": 20, "group_norm": False, "batch_norm": True, "groups": 16, "BN_decay": 0.97, "micro_batch_size": 32,
        "weight_decay": 1e-6, "lars_weight_decay": 1e-6, "epochs": 160.0, "learning_rate_schedule": "0.5,0.75",
    },
}  # fmt: skip
LEARNING_RATE_EXPONENTS = {"imagenet": {"sgd": -8.0, "momentum": -11.0}, "cifar": -6.0}
NOT_DECAYED = {"imagenet": ("beta", "gamma"), "cifar": ()}
IMAGE_SIZES = {"imagenet": 224, "cifar": 32}


def image_size(options: Options, family: str) -> int:
    """The side of the pictures in pixels."""
    return IMAGE_SIZES[family]


def sizes(family: str) -> tuple[int, ...]:
    """Every model size there is."""
    return tuple(sorted(VARIANTS[family]))


def build(options: Options, family: str, num_classes: int, two_pass: bool) -> list[Segment]:
    """The network's segments, in order."""
    widths = WIDTHS[family]
    network = Network(
        variant=VARIANTS[family][options.model_size],
        large_stem=family == "imagenet",
        stem_width=widths[0],
        widths=widths,
        norm=_norms.residual_policy(options, two_pass),
        num_classes=num_classes,
        projection=family == "imagenet",
    )
    return segments(network)


def run_name(options: Options, *, micro: str, replicas: str, accumulation: str, precision: str) -> str:
    """RN<size>_bs<batch>_<norm>_<precision>."""
    norm = _norms.residual_policy(options, False).label()
    return f"RN{options.model_size}_bs{micro}{replicas}{accumulation}_{norm}_{precision}"
