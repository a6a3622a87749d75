"""EfficientNet B0 to B7, and a size for CIFAR (Tan and Le, arXiv 1905.11946).

The groups of group convolutions may have any width (Masters et al., "Making EfficientNet More Efficient", arXiv
2106.03640).
EfficientNet-Lite0, 1 and 2 are B0, B1 and B2 with --no-se --use-relu6 --fix-stem-head --batch-norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cnn_harness.base.fields import above, at_least, between, opt
from cnn_harness.Models import _norms
from cnn_harness.Models._layers import Initial, Layers, ProxyRule, Tensor
from cnn_harness.Models._model import Value
from cnn_harness.Models._norms import NetworkOptions, Norm
from cnn_harness.Models._segments import Segment

TITLE = "EfficientNet"
CONV = Initial(2.0, "fan_out")
GROUP_CONV = Initial(2.0, "fan_in")
CHANNEL_MULTIPLE = 8
STEM_WIDTH = 32
SE_RATIO = 0.25  # channels inside squeeze and excitation / input channels of the block


@dataclass(frozen=True)
class StageSpec:
    """A stage, as in table 1 of the paper."""

    kernel: int
    repeats: int
    channels_in: int
    channels_out: int
    stride: int


@dataclass(frozen=True)
class Size:
    """The scaling factors of a model size, its dropout rate, and the side of its images in pixels."""

    width: float
    depth: float
    dropout: float
    image: int


STAGES = (
    StageSpec(3, 1, 32, 16, 1),
    StageSpec(3, 2, 16, 24, 2),
    StageSpec(5, 2, 24, 40, 2),
    StageSpec(3, 3, 40, 80, 2),
    StageSpec(5, 3, 80, 112, 1),
    StageSpec(5, 4, 112, 192, 2),
    StageSpec(3, 1, 192, 320, 1),
)
SIZES = {
    "CIFAR": Size(0.5, 1.0, 0.0, 32),
    "B0": Size(1.0, 1.0, 0.2, 224),
    "B1": Size(1.0, 1.1, 0.2, 240),
    "B2": Size(1.1, 1.2, 0.3, 260),
    "B3": Size(1.2, 1.4, 0.3, 300),
    "B4": Size(1.4, 1.8, 0.4, 380),
    "B5": Size(1.6, 2.2, 0.4, 456),
    "B6": Size(1.8, 2.6, 0.5, 528),
    "B7": Size(2.0, 3.1, 0.5, 600),
}


def _size_name(text: str) -> str:
    """Return B0..B7 for 0..7, and other names unchanged."""
    return f"B{text}" if text.isascii() and text.isdigit() else text


@dataclass(frozen=True, kw_only=True)
class Options(NetworkOptions):
    """Options of EfficientNet."""

    model_size: str | None = opt(
        None,
        "choose the size: B0..B7 (or 0..7), or cifar (default: cifar on images of CIFAR's size, otherwise B0)",
        read=_size_name,
    )
    groups: int = opt(4, "divide the channels into N groups for group norm; 1 is layer norm", check=at_least(1))
    norm_epsilon: float = opt(1e-3, "add this constant to the variance in norms", check=above(0))
    BN_decay: float = opt(0.97, "set the decay of the moving averages of batch-norm statistics", check=between(0, 1))
    dropout_rate: float | None = opt(
        None, "set the dropout rate before the classifier (default: depends on --model-size)", check=between(0, 0.99)
    )
    block_survival_prob: float = opt(
        0.8,
        "drop whole residual blocks at random in training; the last block is kept with this probability",
        check=between(0.01, 1),
    )
    se: bool = opt(True, "build blocks without squeeze and excitation")
    depth_divisor: int = opt(
        CHANNEL_MULTIPLE, "round the number of channels of every layer to a multiple of N", check=at_least(1)
    )
    top_width: int = opt(
        1280,
        "set the number of channels of the last 1x1 convolution, before width scaling; 0 removes the convolution",
        check=at_least(0),
    )
    use_relu: bool = opt(False, "use ReLU instead of Swish")
    use_relu6: bool = opt(False, "use ReLU6 instead of Swish")
    fix_stem_head: bool = opt(
        False,
        "do not scale the first convolution (32 channels), the last 1x1 convolution, and the repeats of the first and"
        " last stage",
    )
    expand_ratio: int = opt(6, "set the expansion ratio of the blocks after the first stage", check=at_least(1))
    group_dim: int = opt(
        1, "set the number of channels per group of the spatial convolutions; 1 makes them depthwise", check=at_least(1)
    )
    width_coefficient: float | None = opt(
        None, "multiply the number of channels by this factor (default: depends on --model-size)", check=between(0.01, 100)
    )
    depth_coefficient: float | None = opt(
        None, "multiply the number of blocks by this factor (default: depends on --model-size)", check=between(0.01, 100)
    )
    proxy_norm: bool = opt(False, "apply proxy norm after group norm; with --groups 1, after layer norm")
    proxy_epsilon: float = opt(0.03, "add this constant to the variance in proxy norm", check=above(0))
    proxy_recompute: bool = opt(
        True, "keep the activations of proxy norm, instead of recomputing them in the backward pass", kind="hint"
    )

    def __post_init__(self) -> None:
        if self.proxy_norm and (self.batch_norm or self.group_norm is False):
            raise ValueError(
                "--proxy-norm needs group norm; give --group-norm, or leave out --proxy-norm (--no-proxy-norm if a "
                "configuration or record sets it)"
            )
        if self.use_relu and self.use_relu6:
            raise ValueError(
                "--use-relu and --use-relu6 exclude each other; give only one, or --no-use-relu or --no-use-relu6"
            )

    @property
    def activation(self) -> str:
        """Return the name of the activation in the layer vocabulary."""
        return "relu6" if self.use_relu6 else "relu" if self.use_relu else "swish"


# recipes for each family of data: defaults of options, and variables without weight decay
DEFAULTS: dict[str, dict[str, Value]] = {
    "imagenet": {
        "model_size": "B0", "group_norm": True, "batch_norm": False, "micro_batch_size": 4,
        "weight_decay": 1e-5, "lars_weight_decay": 1e-5, "epochs": 350.0, "label_smoothing": 0.1, "stable_norm": True,
        "learning_rate_schedule": "0.3,0.6,0.8,0.9", "lr_decay_rate": 0.97, "lr_drops": 146,
        "rmsprop_base_decay_exp": -14.0,
    },
    "cifar": {
        "model_size": "CIFAR", "group_norm": True, "batch_norm": False, "micro_batch_size": 8,
        "weight_decay": 1e-6, "lars_weight_decay": 1e-6, "epochs": 300.0, "stable_norm": True,
        "learning_rate_schedule": "0.5,0.75", "lr_decay_rate": 0.97, "lr_drops": 146,
    },
}  # fmt: skip
LEARNING_RATE_EXPONENTS = {"imagenet": {"sgd": -7.0, "momentum": -10.0, "rmsprop": -14.0}, "cifar": -6.0}
NOT_DECAYED = {"imagenet": ("beta", "gamma", "proxy"), "cifar": ()}


def image_size(options: Options, family: str) -> int:
    """Return the side of the images in pixels: 32 for CIFAR-sized data, otherwise the side of the model size."""
    return 32 if family == "cifar" else SIZES[options.model_size].image


def sizes(family: str) -> tuple[str, ...]:
    """Return all model sizes."""
    return tuple(SIZES)


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """A block after scaling. `survival` is the probability that drop-connect keeps the block for a sample."""

    name: str
    kernel: int
    channels_in: int
    channels_out: int
    expand: int
    stride: int
    survival: float

    @property
    def skips(self) -> bool:
        """Return whether the block has an identity shortcut, and is therefore a single segment."""
        return self.stride == 1 and self.channels_in == self.channels_out


@dataclass(frozen=True, kw_only=True)
class BlockSettings:
    """The settings shared by all blocks."""

    norm: Norm
    activation: str
    group_dim: int
    se: bool
    padding: str = "SAME"

    def activate(self, layers: Layers, x: Tensor) -> Tensor:
        """Apply the activation of the network."""
        return getattr(layers, self.activation)(x)

    def norm_for(self, channels: int) -> Norm:
        """Return the norm for a layer with `channels` channels."""
        return self.norm.at_most(channels)

    def normalise(self, layers: Layers, x: Tensor, *, scaled: bool = True) -> tuple[Tensor, Tensor]:
        """Apply norm and activation; return the result, and the factor of proxy norm or None.

        If `scaled` is true, the result is already multiplied by the factor.
        """
        norm = self.norm_for(layers.channels(x))
        if not self.has_proxy:
            return layers.norm_activation(x, norm, self.activation), None
        return layers.proxy_norm_activation(x, norm, ProxyRule(self.activation, norm.proxy), scaled=scaled)

    @property
    def has_proxy(self) -> bool:
        """Return whether proxy norm follows the norm."""
        return getattr(self.norm, "proxy", None) is not None


def build(options: Options, family: str, num_classes: int, two_pass: bool) -> list[Segment]:
    """Return the network's segments: block0, the blocks, Top."""
    size = SIZES[options.model_size]
    width = options.width_coefficient or size.width
    settings = BlockSettings(
        norm=_norm_policy(options, two_pass),
        activation=options.activation,
        group_dim=options.group_dim,
        se=options.se,
        padding=options.padding,
    )
    small = options.model_size == "CIFAR"
    stem = partial(_stem, settings=settings, filters=_end_width(STEM_WIDTH, width, options), stride=1 if small else 2)
    segments = [Segment("block0", stem)]
    for block in blocks(options):
        segments += _block_segments(block, settings)
    top_width = _end_width(options.top_width, width, options) if options.top_width else 0
    dropout = size.dropout if options.dropout_rate is None else options.dropout_rate
    top = partial(_top, settings=settings, filters=top_width, dropout=dropout, num_classes=num_classes)
    segments.append(Segment("Top", top))
    return segments


def blocks(options: Options) -> list[BlockSpec]:
    """Return all blocks of the network, named block<stage><letter>."""
    size = SIZES[options.model_size]
    width = options.width_coefficient or size.width
    repeats = _repeats(options.depth_coefficient or size.depth, options)
    stem_width = _end_width(STEM_WIDTH, width, options)
    blocks: list[BlockSpec] = []
    for number, (stage, count) in enumerate(zip(STAGES, repeats), start=1):
        channels_out = _round_width(stage.channels_out, width, options)
        channels_in = _round_width(stage.channels_in, width, options) if blocks else stem_width
        stage_stride = 1 if options.model_size == "CIFAR" and number == 2 else stage.stride
        for unit in range(count):
            blocks.append(
                BlockSpec(
                    name=f"block{number}{_letters(unit)}",
                    kernel=stage.kernel,
                    channels_in=channels_in if unit == 0 else channels_out,
                    channels_out=channels_out,
                    expand=1 if number == 1 else options.expand_ratio,
                    stride=stage_stride if unit == 0 else 1,
                    survival=1 - (1 - options.block_survival_prob) * len(blocks) / sum(repeats),
                )
            )
    return blocks


def notes(options: Options) -> list[str]:
    """Return log lines about group convolutions whose channels are not divisible into groups of --group-dim."""
    uneven: dict[str, list[str]] = {}
    for block in blocks(options):
        channels = block.channels_in * block.expand
        exact, groups = _wanted_groups(channels, options.group_dim), _conv_groups(channels, options.group_dim)
        if groups != exact:
            division = f"{groups} group{'s' * (groups > 1)} of {channels // groups}"
            note = f"{channels} channels cannot form {exact} groups of --group-dim {options.group_dim}: {division} used"
            uneven.setdefault(note, []).append(f"{block.name}/b")
    return [f"{', '.join(names)}: {note}" for note, names in uneven.items()]


def run_name(options: Options, *, micro: str, replicas: str, accumulation: str, precision: str) -> str:
    """Return EfficientNet-<size>_bs<batch>_<norm>."""
    return f"EfficientNet-{options.model_size}_bs{micro}{accumulation}{replicas}_{_norm_policy(options, False).label()}"


def _wanted_groups(channels: int, group_dim: int) -> int:
    return max(channels // group_dim, 1)


def _conv_groups(channels: int, group_dim: int) -> int:
    """Return the largest number of equal groups with at least `group_dim` channels each."""
    return next(groups for groups in range(_wanted_groups(channels, group_dim), 0, -1) if channels % groups == 0)


def _norm_policy(options: Options, two_pass: bool) -> Norm:
    proxy = options.proxy_epsilon if options.proxy_norm else None
    return _norms.chosen(options, epsilon=options.norm_epsilon, two_pass=two_pass, proxy=proxy)


def _letters(unit: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    return ("" if unit < 26 else _letters(unit // 26 - 1)) + chr(ord("a") + unit % 26)


def _repeats(depth: float, options: Options) -> list[int]:
    """Return the number of blocks of each stage."""
    scaled = [math.ceil(depth * stage.repeats) for stage in STAGES]
    return [STAGES[0].repeats, *scaled[1:-1], STAGES[-1].repeats] if options.fix_stem_head else scaled


def _end_width(channels: int, coefficient: float, options: Options) -> int:
    """Return the width of the first or the last convolution."""
    return channels if options.fix_stem_head else _round_width(channels, coefficient, options)


def _round_width(channels: int, coefficient: float, options: Options) -> int:
    """Return the scaled width, rounded to a multiple of the divisor, but at least 90 % of the target."""
    divisor = options.depth_divisor
    target = channels * coefficient
    rounded = max(divisor, int(target + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * target else rounded


def _block_segments(block: BlockSpec, settings: BlockSettings) -> list[Segment]:
    """Return the segments of a block. A block with a shortcut is one segment; other blocks have one segment per part."""
    steps = [("", _expand)] if block.expand > 1 else []
    if settings.se and settings.has_proxy:  # the convolution passes the factor of proxy norm to the gate
        steps.append(("/b", _spatial_and_gate))
    else:
        steps += [("/b", _spatial)] + ([("/SE", _squeeze_excite)] if settings.se else [])
    steps.append(("/c", _project))
    if block.skips:
        inner = [partial(step, block=block, settings=settings) for _, step in steps]
        return [Segment(block.name, partial(_with_shortcut, block=block, steps=inner))]
    return [Segment(block.name + suffix, partial(step, block=block, settings=settings)) for suffix, step in steps]


def _with_shortcut(layers: Layers, x: Tensor, *, block: BlockSpec, steps: list[Callable[..., Tensor]]) -> Tensor:
    y = x
    for step in steps:
        y = step(layers, y)
    with layers.scope(block.name):
        return layers.add(layers.drop_path(y, block.survival), x)


def _stem(layers: Layers, x: Tensor, *, settings: BlockSettings, filters: int, stride: int) -> Tensor:
    with layers.scope("block0"):
        return settings.normalise(layers, layers.conv(x, filters, 3, CONV, stride=stride, padding=settings.padding))[0]


def _expand(layers: Layers, x: Tensor, *, block: BlockSpec, settings: BlockSettings) -> Tensor:
    filters = block.channels_in * block.expand
    with layers.scope(block.name), layers.scope("a"):
        return settings.normalise(layers, layers.conv(x, filters, 1, CONV))[0]


def _spatial_conv(layers: Layers, x: Tensor, block: BlockSpec, settings: BlockSettings) -> Tensor:
    channels = layers.channels(x)
    groups = _conv_groups(channels, settings.group_dim)
    return layers.conv(x, channels, block.kernel, GROUP_CONV, stride=block.stride, groups=groups, padding=settings.padding)


def _spatial(layers: Layers, x: Tensor, *, block: BlockSpec, settings: BlockSettings) -> Tensor:
    with layers.scope(block.name), layers.scope("b"):
        return settings.normalise(layers, _spatial_conv(layers, x, block, settings))[0]


def _spatial_and_gate(layers: Layers, x: Tensor, *, block: BlockSpec, settings: BlockSettings) -> Tensor:
    """Apply the spatial convolution with proxy norm, then the gate. The factor of proxy norm multiplies the gate only."""
    with layers.scope(block.name), layers.scope("b"):
        x, factor = settings.normalise(layers, _spatial_conv(layers, x, block, settings), scaled=False)
    return _squeeze_excite(layers, x, block=block, settings=settings, factor=factor)


def _squeeze_excite(
    layers: Layers, x: Tensor, *, block: BlockSpec, settings: BlockSettings, factor: Tensor | None = None
) -> Tensor:
    """Multiply each channel by a gate computed from the channels' means (Hu et al., arXiv 1709.01507), and by `factor`."""
    channels = layers.channels(x)
    with layers.scope(block.name), layers.scope("SE"):
        gate = layers.global_mean(x)
        with layers.scope("1"):
            gate = layers.conv(gate, max(1, int(block.channels_in * SE_RATIO)), 1, CONV, bias=True)
            gate = settings.activate(layers, gate)
        with layers.scope("2"):
            gate = layers.sigmoid(layers.conv(gate, channels, 1, CONV, bias=True))
        return layers.gate(x, gate if factor is None else layers.gate(gate, factor))


def _project(layers: Layers, x: Tensor, *, block: BlockSpec, settings: BlockSettings) -> Tensor:
    with layers.scope(block.name), layers.scope("c"):
        x = layers.conv(x, block.channels_out, 1, CONV)
        # Proxy norm needs an activation. Without one, the method uses only the norm's scale.
        return layers.norm(x, settings.norm_for(block.channels_out), centre=not settings.has_proxy)


def _top(layers: Layers, x: Tensor, *, settings: BlockSettings, filters: int, dropout: float, num_classes: int) -> Tensor:
    with layers.scope("Top"):
        if filters:
            x = layers.conv(x, filters, 1, CONV)
            x, _ = settings.normalise(layers, x, scaled=False)  # the dense layer learns the factor
        x = layers.dropout(layers.global_mean(x), dropout)
        with layers.scope("logits"):
            return layers.dense(x, num_classes)
