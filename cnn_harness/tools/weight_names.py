"""Translate the names and layouts of weights from other projects into those of this project.

Four layouts are supported: Keras' EfficientNet, the ResNets of torchvision and timm, timm's EfficientNet, and a PyTorch
EfficientNet whose names begin with underscores. EfficientNet-Lite was published in the last of these layouts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cnn_harness.base import plugins
from cnn_harness.base.fields import short
from cnn_harness.emulator.network.recorder import record
from cnn_harness.tools import keras_layers
from cnn_harness.tools.architectures import UNKNOWN, Description, ImportFailure

NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
BATCH_NORM = {"batch_norm": True, "group_norm": False}
LITE = {"se": False, "use_relu6": True, "fix_stem_head": True}
RESNET_EPSILON = 1e-5
_AVERAGE = re.compile(r"(^|[._])(ema|averaged?|swa)(?=[._])")  # the prefix of averaged variables contains this
MAX_CLASSES = 1_000_000
# Maps the name of a layer in a Keras block to our scope. The norm after a depthwise convolution has an empty name.
KERAS_PARTS = {"expand": "a", "dw": "b", "": "b", "project": "c", "se_reduce": "SE/1", "se_expand": "SE/2"}
UNDERSCORED_PARTS = {
    "_expand_conv": "a", "_bn0": "a", "_depthwise_conv": "b", "_bn1": "b", "_project_conv": "c", "_bn2": "c",
    "_se_reduce": "SE/1", "_se_expand": "SE/2",
}  # fmt: skip
TIMM_PARTS = {
    "conv_pw": "a", "bn1": "a", "conv_dw": "b", "bn2": "b", "conv_pwl": "c", "bn3": "c",
    "se.conv_reduce": "SE/1", "se.conv_expand": "SE/2",
}  # fmt: skip
TIMM_FIRST_PARTS = {**TIMM_PARTS, "conv_dw": "b", "bn1": "b", "conv_pw": "c", "bn2": "c"}  # for blocks without expansion


@dataclass(frozen=True)
class Layout:
    """The layout of another project's weights. `ours` translates a tensor's name into our name. `ours` returns None if the
    tensor is no weight, and raises LookupError for an unknown name."""

    title: str
    model: str
    mark: str  # a file with a variable of this name has this layout
    classifier: str  # the name of the bias of the classifier
    ours: Callable[[str, Any], str | None]
    torch: bool  # kernels are [out, in, height, width]

    def value(self, name: str, array: np.ndarray) -> np.ndarray:
        """Transpose an array to our layout: kernels are [height, width, in, out], depthwise ones [height, width, 1,
        channels]."""
        if self.torch:
            return {4: lambda: array.transpose(2, 3, 1, 0), 2: lambda: array.T}.get(array.ndim, lambda: array)()
        return array.transpose(0, 1, 3, 2) if "dwconv" in name and array.ndim == 4 else array


def clean(name: str) -> str:
    """Remove what file formats add to a name: stem_conv/stem_conv/kernel:0 becomes stem_conv/kernel."""
    name = name.removesuffix(":0")
    if "/" in name:
        layer, kind = name.split("/")[-2:]
        return f"{layer}/{kind.replace('depthwise_kernel', 'kernel')}"
    return name


def keras_efficientnet(name: str, options: Any) -> str | None:
    """Return our name: block2a_expand_conv/kernel becomes all/block2a/a/conv/conv2d/kernel."""
    layer, _, kind = name.partition("/")
    if layer.startswith(("normalization", "preprocessing")):
        return None
    if layer == "predictions":
        return f"all/Top/logits/dense/{kind}"
    first, _, rest = layer.partition("_")
    place = {"stem": "block0", "top": "Top"}.get(first)
    if place is None:
        what = rest.removesuffix("conv").removesuffix("bn").removesuffix("_")
        place = f"{first}/{KERAS_PARTS[what]}"
    return f"all/{place}/batch_norm/{kind}" if rest.endswith("bn") else f"all/{place}/conv/conv2d/{kind}"


def torch_resnet(name: str, options: Any) -> str | None:
    """Return our name: layer2.0.conv1.weight becomes all/b2/0/1/conv/conv2d/kernel, layer2.0.downsample.1.bias becomes
    all/b2/0/p/batch_norm/beta."""
    *place, module, kind = name.split(".")
    if module == "fc":
        return _dense("fc1", kind)
    scope = f"b{place[0][-1]}/{place[1]}/{'p' if place[-1] == 'downsample' else module[-1]}" if place else "b0"
    return _torch_variable(f"all/{scope}", {"0": "conv", "1": "bn"}.get(module, module), kind)


def underscored_efficientnet(name: str, options: Any) -> str | None:
    """Return our name: _blocks.3._bn0.weight becomes all/block3a/a/batch_norm/gamma in B0. Block numbers continue from stage
    to stage."""

    def place(owner: str) -> tuple[str, str]:
        _, index, part = owner.split(".")
        return f"{_blocks(options)[int(index)].name}/{UNDERSCORED_PARTS[part]}", part

    ends = {"_conv_stem": "block0", "_bn0": "block0", "_conv_head": "Top", "_bn1": "Top"}
    return _torch_efficientnet(name, "_fc", ends, place)


def timm_efficientnet(name: str, options: Any) -> str | None:
    """Return our name: blocks.1.0.bn1.weight becomes all/block2a/a/batch_norm/gamma. In blocks without expansion, the first
    convolution is depthwise: blocks.0.0.bn1.weight becomes all/block1a/b/..."""

    def place(owner: str) -> tuple[str, str]:
        _, stage, unit, part = owner.split(".", 3)
        block = [b for b in _blocks(options) if b.name.startswith(f"block{range(1, 8)[int(stage)]}")][int(unit)]
        return f"{block.name}/{(TIMM_FIRST_PARTS if block.expand == 1 else TIMM_PARTS)[part]}", part

    ends = {"conv_stem": "block0", "bn1": "block0", "conv_head": "Top", "bn2": "Top"}
    return _torch_efficientnet(name, "classifier", ends, place)


def _torch_efficientnet(
    name: str, classifier: str, ends: Mapping[str, str], place: Callable[[str], tuple[str, str]]
) -> str | None:
    """Return our name. `ends` has the scopes of layers outside blocks. `place` returns the scope of a layer in a block, and
    the layer's name in the block."""
    owner, _, kind = name.rpartition(".")
    if owner == classifier:
        return _dense("Top/logits", kind)
    scope, part = (ends[owner], owner) if owner in ends else place(owner)
    return _torch_variable(f"all/{scope}", part, kind)


LAYOUTS = (
    Layout("EfficientNet of Keras", "efficientnet", "stem_conv/kernel", "predictions/bias", keras_efficientnet, False),
    Layout("a ResNet of torchvision or timm", "resnet", "layer1.0.conv1.weight", "fc.bias", torch_resnet, True),
    Layout("EfficientNet of timm", "efficientnet", "conv_stem.weight", "classifier.bias", timm_efficientnet, True),
    Layout("EfficientNet in PyTorch", "efficientnet", "_conv_stem.weight", "_fc.bias", underscored_efficientnet, True),
)


@dataclass(frozen=True)
class Match:
    """Imported weights and their network.

    `options` are the options of train.py that select the network. `values` maps our names to arrays. `without` lists
    variables of the classifier that the file lacks. `added` lists variables of an identity convolution that only our network
    has. `constants` are channel means and standard deviations for pixels from 0 to 1, if known.
    """

    layout: Layout
    options: dict[str, Any]
    values: dict[str, np.ndarray]
    without: tuple[str, ...]
    added: tuple[str, ...]
    constants: tuple[list[float], list[float]] | None = None
    notes: tuple[str, ...] = ()


_FOREIGN = "it has no "  # beginning of the description of a variable that only the file has


def identify(arrays: Mapping[str, np.ndarray], described: Description = UNKNOWN, average: bool = True) -> Match:
    """Return the network to which these arrays belong; raise ImportFailure if there is none.

    `arrays` has the names of the other project. If `average` is true, prefer averaged weights (EMA) to the weights
    themselves.
    """
    layout, theirs, notes = _one_network(arrays, average)
    decided, unsure = _decided(layout, described)
    notes += unsure
    classes = _classes(layout, theirs)
    attempts = [_attempt(layout, network | decided, theirs, classes) for network in _candidates(layout, theirs)]
    for attempt in attempts:
        if isinstance(attempt, Match):
            try:
                constants = keras_layers.constants(theirs) if layout is LAYOUTS[0] else None
            except ValueError as error:
                raise ImportFailure(str(error)) from None
            return replace(attempt, constants=constants, notes=notes)
    differing, name, what, extra = min(attempt for attempt in attempts if not isinstance(attempt, Match))
    if differing == extra:
        tensors = f"{extra} variable{'s' * (extra > 1)} more than it: {what.removeprefix(_FOREIGN)}{', ...' * (extra > 1)}"
        raise ImportFailure(f"it has all variables of {name}, but {tensors}; delete what this network does not use")
    raise ImportFailure(
        f"it looks like {layout.title}, but no supported size matches; the closest is {name}, but {what}"
        + (f" (and {differing - 1} more {'differs' if differing == 2 else 'differ'})" if differing > 1 else "")
    )


def _decided(layout: Layout, described: Description) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options that only the name of the architecture determines, and a note if the name is unknown."""
    if layout not in LAYOUTS[1:3]:
        return {}, ()
    options = described.options()
    if options and ("norm_epsilon" in options) != (layout.model == "efficientnet"):
        name = f"{short(described.architecture)} ({described.source})"
        raise ImportFailure(f"it is {name}, but it has the variables of {layout.title}")
    if options:
        return options, ()
    assumed = (
        "assuming a plain ResNet; timm's resnetaa and resnetblur have the same variables, but compute something else"
        if layout.model == "resnet"
        else "assuming timm's tf_efficientnet (TensorFlow's padding, epsilon 0.001); efficientnet without tf_ has the same "
        "variables, but computes something else"
    )
    return {}, (f"the name of the architecture is unknown, {assumed}. If you know the name, give --architecture NAME",)


def _one_network(arrays: Mapping[str, np.ndarray], average: bool) -> tuple[Layout, dict[str, np.ndarray], tuple[str, ...]]:
    """Return the layout and the arrays of one network, and notes about arrays that are ignored. Remove prefixes of wrappers
    (module., _orig_mod., state_dict.model.) from the names."""
    theirs = {clean(name): array for name, array in arrays.items()}
    if len(theirs) < len(arrays):
        raise ImportFailure("it contains a variable twice, under two spellings of its name")
    found = [
        (name.removesuffix(layout.mark), layout)
        for layout in LAYOUTS
        for name in theirs
        if name == layout.mark or name.endswith(f".{layout.mark}")
    ]
    if not found:
        raise ImportFailure(
            f"its variables, such as '{short(min(arrays, default=''))}', belong to no supported network; supported are "
            + ", ".join(f"{layout.title} (with {layout.mark})" for layout in LAYOUTS)
        )
    averages = [each for each in found if _AVERAGE.search(each[0])]
    wanted = averages if average and averages else [each for each in found if each not in averages] or averages
    if len(wanted) > 1:
        places = " and ".join(sorted(f"'{short(prefix)}'" for prefix, _ in wanted)[:3])
        raise ImportFailure(f"it contains {len(wanted)} networks, with prefixes {places}; save only one of them to the file")
    prefix, layout = wanted[0]
    # An array belongs to the network with the longest matching prefix.
    owners = sorted((each for each, _ in found), key=len, reverse=True)
    owned = {name: next((each for each in owners if name.startswith(each)), None) for name in theirs}
    inside = {name.removeprefix(prefix): theirs[name] for name, owner in owned.items() if owner == prefix}
    outside = [name for name, owner in owned.items() if owner is None]
    notes = []
    if len(found) > 1:
        kind = "averaged weights (EMA)" if wanted == averages else "weights instead of their average"
        other = "; to import the weights themselves, give --no-ema" if wanted == averages else ""
        notes.append(f"imported the {kind}: {prefix.strip('.') or 'the variables without a prefix'}{other}")
    if outside:
        more = f" and {len(outside) - 1} more" if len(outside) > 1 else ""
        notes.append(f"ignored variables that are not part of the network: {short(outside[0])}{more}")
    return layout, inside, tuple(notes)


def _attempt(
    layout: Layout, network: dict[str, Any], theirs: Mapping[str, np.ndarray], classes: int
) -> Match | tuple[int, str, str, int]:
    """Return the match with this network. If it does not match, return the number of differing variables, the name of the
    network, the first difference, and the number of variables that only the file has."""
    options, wanted = _network(tuple(network.items()), classes)
    values, names, problems = {}, {}, []
    for name, array in theirs.items():
        try:
            ours = layout.ours(name, options)
        except (LookupError, ValueError):
            problems.append(f"{_FOREIGN}{short(name)}")
            continue
        if ours in values:
            problems.append(f"two variables are {ours}, one of them {short(name)}")
        elif ours is not None:
            values[ours], names[ours] = layout.value(name, array), name
    added = identities(wanted, values) if network["model"] == "resnet" else {}
    values |= added
    head = layout.ours(layout.classifier, options).rsplit("/", 1)[0]
    without = tuple(name for name in wanted if name.startswith(head) and name not in values)
    shapes = {name: value.shape for name, value in values.items()}
    for name in wanted:
        if name not in shapes and name not in without:
            problems.append(f"{name} is missing")
        elif name in shapes and shapes[name] != tuple(wanted[name]):
            problems.append(f"{name} has shape {list(shapes[name])} instead of {list(wanted[name])}")
    problems += [f"{_FOREIGN}{short(names.get(name, name))}" for name in shapes if name not in wanted]
    if problems:
        extra = sum(problem.startswith(_FOREIGN) for problem in problems)
        return len(problems), f"{network['model']} {network['model_size']}", problems[0], extra
    return Match(layout, network, values, without, tuple(added))


@lru_cache(maxsize=64)
def _network(items: tuple[tuple[str, Any], ...], classes: int) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Return the options of a network, and the shapes of its variables by name."""
    network = dict(items)
    module = plugins.load("Models", network["model"])
    options = module.Options(**{key: value for key, value in network.items() if key != "model"})
    segments = module.build(options, "imagenet", classes, False)
    recorded = record(segments, module.image_size(options, "imagenet"))
    return options, {variable.name: variable.shape for variable in recorded.variables}


def _candidates(layout: Layout, theirs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the options of every network that may match."""
    model, options = layout.model, dict(BATCH_NORM)
    if model == "efficientnet":
        options |= {"norm_epsilon": 1e-3} | ({} if any(re.search(r"(^|[._])se[._]", n) for n in theirs) else LITE)
    else:
        options["symmetric_padding"] = True
        out, into = _kernel(theirs, "layer1.0.conv2.weight", layout.mark)
        if "layer1.0.conv3.weight" in theirs and (out != into or out != 64):
            if not out or not into or out % into:
                raise ImportFailure(
                    f"it looks like {layout.title}, but {out} channels cannot be divided into groups of {into}"
                )
            model, options = "resnext", {**options, "convolution_groups": out // into, "group_dim": into}
    module = plugins.load("Models", model)
    sizes = [size for size in module.sizes("imagenet") if size != "CIFAR"]
    return [{"model": model, "model_size": size, **options} for size in sizes]


def _classes(layout: Layout, theirs: Mapping[str, np.ndarray]) -> int:
    """Return the number of classes. Without a classifier, return 1000."""
    if layout.classifier not in theirs:
        return 1000
    shape = theirs[layout.classifier].shape
    if len(shape) != 1 or not 0 < shape[0] <= MAX_CLASSES:
        raise ImportFailure(
            f"{layout.classifier} has shape {list(shape)}; it must have one number for each of 1 to {MAX_CLASSES:,} classes"
        )
    return shape[0]


def _kernel(theirs: Mapping[str, np.ndarray], *names: str) -> tuple[int, int]:
    """Return the numbers of output and input channels of the first of these convolutions that exists."""
    name = next(name for name in names if name in theirs)
    shape = theirs[name].shape
    if len(shape) != 4:
        raise ImportFailure(f"{name} has shape {list(shape)}; a convolution kernel must have 4 dimensions")
    return shape[0], shape[1]


def identities(wanted: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return values that make the projection of the first stage an identity. Only our networks with basic units have that
    projection: a one-pixel convolution and a norm."""
    scope = "all/b1/0/p"
    missing = [name for name in wanted if name.startswith(scope) and name not in values]
    if len(missing) != 5 or "all/b1/0/3/conv/conv2d/kernel" in wanted:
        return {}
    kernel = wanted[f"{scope}/conv/conv2d/kernel"]
    width = kernel[-1]
    return {
        f"{scope}/conv/conv2d/kernel": np.eye(width, dtype=np.float32).reshape(kernel),
        f"{scope}/batch_norm/gamma": np.ones(width, np.float32),
        f"{scope}/batch_norm/beta": np.zeros(width, np.float32),
        f"{scope}/batch_norm/moving_mean": np.zeros(width, np.float32),
        f"{scope}/batch_norm/moving_variance": np.full(width, 1 - RESNET_EPSILON, np.float32),
    }


def _torch_variable(scope: str, module: str, kind: str) -> str | None:
    if kind == "num_batches_tracked":
        return None
    if "bn" in module:
        return f"{scope}/batch_norm/{NORM[kind]}"
    return f"{scope}/conv/conv2d/{'kernel' if kind == 'weight' else 'bias'}"


def _dense(scope: str, kind: str) -> str:
    return f"all/{scope}/dense/{'kernel' if kind == 'weight' else 'bias'}"


@lru_cache(maxsize=64)
def _blocks(options: Any) -> tuple[Any, ...]:
    """Return the blocks of an EfficientNet in order."""
    return tuple(plugins.load("Models", "efficientnet").blocks(options))
