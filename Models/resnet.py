"""ResNet for ImageNet-sized and CIFAR-sized images (He et al., arXiv 1512.03385)."""

from __future__ import annotations

from dataclasses import dataclass

from cnn_harness.base.fields import opt
from cnn_harness.Models import _norms, _residual
from cnn_harness.Models._model import Value
from cnn_harness.Models._norms import NetworkOptions
from cnn_harness.Models._residual import ResidualNetwork, cifar_variants, image_size, imagenet_variants, segments  # noqa: F401
from cnn_harness.Models._segments import Segment

TITLE = "ResNet"
VARIANTS = {
    "imagenet": {
        **imagenet_variants("basic", {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}),
        **imagenet_variants("bottleneck", _residual.BOTTLENECKS),
    },
    # Size 56 is both 6 x 9 + 2 and 9 x 6 + 2; here the bottleneck network replaces the basic network.
    "cifar": {
        **cifar_variants("basic", (1, 2, 3, 5, 7, 9, 18)),
        **cifar_variants("bottleneck", _residual.CIFAR_BOTTLENECKS),
    },
}
# recipes for each family of data: defaults of options, and variables without weight decay
LEARNING_RATE_EXPONENTS = _residual.LEARNING_RATE_EXPONENTS
NOT_DECAYED = _residual.NOT_DECAYED
DEFAULTS: dict[str, dict[str, Value]] = {
    "imagenet": {**_residual.DEFAULTS["imagenet"], "model_size": 18, "micro_batch_size": 4},
    "cifar": {**_residual.DEFAULTS["cifar"], "model_size": 20, "micro_batch_size": 32},
}


@dataclass(frozen=True, kw_only=True)
class Options(NetworkOptions):
    """Options of the ResNet family."""

    model_size: int | None = opt(
        None, "set the number of layers: 10 14 18 26 34 50 101 152 for ImageNet, 6n+2 or 9n+2 for CIFAR"
    )


def sizes(family: str) -> tuple[int, ...]:
    """Return all model sizes."""
    return tuple(sorted(VARIANTS[family]))


def build(options: Options, family: str, num_classes: int, two_pass: bool) -> list[Segment]:
    """Return the network's segments in order."""
    widths = _residual.WIDTHS[family]
    network = ResidualNetwork(
        variant=VARIANTS[family][options.model_size],
        large_stem=family == "imagenet",
        stem_width=widths[0],
        widths=widths,
        norm=_norms.of_residual(options, two_pass),
        num_classes=num_classes,
        padding=options.padding,
        projection=family == "imagenet",
    )
    return segments(network)


def run_name(options: Options, *, micro: str, replicas: str, accumulation: str, precision: str) -> str:
    """Return RN<size>_bs<batch>_<norm>_<precision>."""
    norm = _norms.of_residual(options, False).label()
    return f"RN{options.model_size}_bs{micro}{replicas}{accumulation}_{norm}_{precision}"
