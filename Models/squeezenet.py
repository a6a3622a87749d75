"""SqueezeNet (Iandola et al., arXiv 1602.07360): fire modules, without norms and biases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cnn_harness.base.fields import opt
from cnn_harness.Models._layers import GLOROT, Initial, Layers, Tensor
from cnn_harness.Models._model import Value
from cnn_harness.Models._segments import Segment

TITLE = "SqueezeNet"
CLASSIFIER = Initial(0.01**2, "fixed")


@dataclass(frozen=True)
class Fire:
    """A fire module: a 1x1 squeeze, then 1x1 and 3x3 expansions in parallel."""

    name: str
    squeeze: int
    expand: int
    bypass: bool = False


POOL = "pool"
MODULES: tuple[Fire | str, ...] = (
    Fire("fire2", 16, 64),
    Fire("fire3", 16, 64, bypass=True),
    Fire("fire4", 32, 128),
    POOL,
    Fire("fire5", 32, 128, bypass=True),
    Fire("fire6", 48, 192),
    Fire("fire7", 48, 192, bypass=True),
    Fire("fire8", 64, 256),
    POOL,
    Fire("fire9", 64, 256, bypass=True),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of SqueezeNet."""

    use_bypass: bool = opt(False, "add the input of every second fire module to its output")


# recipes for each family of data: defaults of options, and variables without weight decay
DEFAULTS: dict[str, dict[str, Value]] = {
    "imagenet": {
        "micro_batch_size": 2,
        "weight_decay": 1e-4,
        "lars_weight_decay": 1e-4,
        "epochs": 100.0,
        "learning_rate_schedule": "0.3,0.6,0.8,0.9",
    },
    "cifar": {
        "micro_batch_size": 128,
        "weight_decay": 1e-6,
        "lars_weight_decay": 1e-6,
        "epochs": 160.0,
        "learning_rate_schedule": "0.5,0.75",
    },
}
LEARNING_RATE_EXPONENTS = {"imagenet": {"sgd": -8.0, "momentum": -11.0}, "cifar": -10.0}
NOT_DECAYED = {"imagenet": ("beta", "gamma"), "cifar": ()}


def image_size(options: Options, family: str) -> int:
    """Return the side of the images in pixels."""
    return {"imagenet": 224, "cifar": 32}[family]


def sizes(family: str) -> tuple[int, ...]:
    """Return no sizes, because SqueezeNet has only one size."""
    return ()


def build(options: Options, family: str, num_classes: int, two_pass: bool) -> list[Segment]:
    """Return the segments: conv1, the fire modules and pools, and the classifier."""
    segments = [Segment("conv1", _stem)]
    for module in MODULES:
        if isinstance(module, Fire):
            segments.append(Segment(module.name, partial(_fire, module=module, bypass=options.use_bypass and module.bypass)))
        else:
            segments.append(Segment(f"{segments[-1].name}/pool", _pool))
    head = {"imagenet": _convolution_head, "cifar": _dense_head}[family]
    segments.append(Segment("head", partial(head, num_classes=num_classes)))
    return segments


def run_name(options: Options, *, micro: str, replicas: str, accumulation: str, precision: str) -> str:
    """Return SN_bs<batch>_<precision>."""
    return f"SN_bs{micro}{replicas}{accumulation}_{precision}"


def _stem(layers: Layers, x: Tensor) -> Tensor:
    with layers.scope("conv1"):
        x = layers.relu(layers.conv(x, 96, 7, GLOROT, stride=2))
    return _pool(layers, x)


def _pool(layers: Layers, x: Tensor) -> Tensor:
    return layers.max_pool(x, 3, 2, padding="VALID")


def _fire(layers: Layers, x: Tensor, *, module: Fire, bypass: bool) -> Tensor:
    with layers.scope(module.name):
        with layers.scope("squeeze"):
            squeezed = layers.relu(layers.conv(x, module.squeeze, 1, GLOROT))
        with layers.scope("expand1"):
            narrow = layers.relu(layers.conv(squeezed, module.expand, 1, GLOROT))
        with layers.scope("expand3"):
            wide = layers.relu(layers.conv(squeezed, module.expand, 3, GLOROT))
        y = layers.concat(narrow, wide)
        return layers.add(x, y) if bypass else y


def _convolution_head(layers: Layers, x: Tensor, *, num_classes: int) -> Tensor:
    with layers.scope("conv10"):
        x = layers.conv(layers.dropout(x, 0.5), num_classes, 1, CLASSIFIER)
        return layers.flatten(layers.global_mean(layers.relu(x)))


def _dense_head(layers: Layers, x: Tensor, *, num_classes: int) -> Tensor:
    # The layer has twice as many units as classes, and a relu on the logits, as in the original harness.
    with layers.scope("fc"):
        return layers.relu(layers.dense(layers.dropout(x, 0.5), 2 * num_classes))
