"""ResNeXt: bottleneck units with grouped 3x3 convolutions (Xie et al., arXiv 1611.05431)."""

from __future__ import annotations

from dataclasses import dataclass

from cnn_harness.base.fields import at_least, opt
from cnn_harness.Models import _norms, _residual
from cnn_harness.Models._model import Value
from cnn_harness.Models._norms import NetworkOptions
from cnn_harness.Models._residual import ResidualNetwork, cifar_variants, image_size, imagenet_variants, segments  # noqa: F401
from cnn_harness.Models._segments import Segment

TITLE = "ResNeXt"
VARIANTS = {
    "imagenet": imagenet_variants("bottleneck", _residual.BOTTLENECKS),
    "cifar": cifar_variants("bottleneck", _residual.CIFAR_BOTTLENECKS),
}
WIDTHS = {**_residual.WIDTHS, "widenet": (64, 128, 256)}
# recipes for each family of data: defaults of options, and variables without weight decay
LEARNING_RATE_EXPONENTS = _residual.LEARNING_RATE_EXPONENTS
NOT_DECAYED = _residual.NOT_DECAYED
DEFAULTS: dict[str, dict[str, Value]] = {
    "imagenet": {**_residual.DEFAULTS["imagenet"], "model_size": 14, "micro_batch_size": 1, "stable_norm": True},
    "cifar": {**_residual.DEFAULTS["cifar"], "model_size": 11, "micro_batch_size": 8, "stable_norm": True},
}


@dataclass(frozen=True, kw_only=True)
class Options(NetworkOptions):
    """Options of ResNeXt."""

    model_size: int | None = opt(
        None, "set the number of layers: 14 26 50 101 152 for ImageNet, 11 29 38 47 56 65 for CIFAR"
    )
    convolution_groups: int = opt(32, "set the number of groups of the 3x3 convolutions", check=at_least(1))
    group_dim: int = opt(4, "set the number of channels per convolution group in the first stage", check=at_least(1))
    widenet: bool = opt(False, "CIFAR: begin with 64 channels")


def sizes(family: str) -> tuple[int, ...]:
    """Return all model sizes."""
    return tuple(sorted(VARIANTS[family]))


def build(options: Options, family: str, num_classes: int, two_pass: bool) -> list[Segment]:
    """Return the network's segments in order."""
    widths = WIDTHS["widenet" if options.widenet and family == "cifar" else family]
    network = ResidualNetwork(
        variant=VARIANTS[family][options.model_size],
        large_stem=family == "imagenet",
        stem_width=widths[0],
        widths=widths,
        norm=_norms.of_residual(options, two_pass),
        num_classes=num_classes,
        padding=options.padding,
        projection=True,
        conv_groups=options.convolution_groups,
        # This is the width of the 3x3 convolutions in the first stage; later stages are wider in proportion.
        grouped_width=options.group_dim * options.convolution_groups,
    )
    return segments(network)


def run_name(options: Options, *, micro: str, replicas: str, accumulation: str, precision: str) -> str:
    """Return RNX<size>_bs<batch>_<norm>_<precision>."""
    norm = _norms.of_residual(options, False).label()
    return f"RNX{options.model_size}_bs{micro}{replicas}{accumulation}_{norm}_{precision}"
