"""Find out which architecture published weights belong to, from the name in timm or torchvision, or from timm's config.json.

Several networks of timm have the same variables, but different paddings, epsilons or poolings. Only their names tell which
of these a file needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnn_harness.base import bounds
from cnn_harness.base.errors import WrongInput
from cnn_harness.base.fields import short
from cnn_harness.base.storage import input_files

CONFIG = "config.json"
_TENSORFLOW = {"norm_epsilon": 1e-3, "symmetric_padding": False}
_PYTORCH = {"norm_epsilon": 1e-5, "symmetric_padding": True}
_RESIDUAL = {"symmetric_padding": True}
_SAME = (
    (r"tf_efficientnet_(b[0-7]|lite[0-4])(_ns|_ap|_in21ft1k)?", _TENSORFLOW),
    (r"efficientnet_(b[0-7]a?|lite[0-4])", _PYTORCH),
    (r"((gluon|tv|ssl|swsl|ig)_)?(wide_)?res(net|next)\d+(_2|_\d+x\d+d)?(_v1b)?", _RESIDUAL),
)
_OTHERS = r"[a-z_]*(aa|blur)_?[a-z]?\d+\w*"  # these have the variables of a ResNet, but another pooling
# These arguments of timm change no prediction.
_ORDINARY = ("num_classes", "drop_rate", "drop_path_rate", "img_size", "pretrained")


class ImportFailure(WrongInput):
    """Weights cannot be imported. The message is one line."""


@dataclass(frozen=True)
class Description:
    """A network, as the file's name and the config.json describe it. Default values mean unknown."""

    architecture: str = ""
    source: str = ""  # where the name was found: a phrase for messages
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    image_size: int | None = None
    notes: tuple[str, ...] = ()

    def options(self) -> dict[str, Any]:
        """Return the options that the name implies; raise ImportFailure for an unsupported network."""
        if not self.architecture:
            return {}
        name = self.architecture.lower().split(".")[0].replace("-", "_")
        found = next((options for pattern, options in _SAME if re.fullmatch(pattern, name)), None)
        if found is None:
            raise ImportFailure(
                f"{short(self.architecture)} ({self.source}) is not supported; supported are tf_efficientnet_b0 to b7, "
                "efficientnet_b0 to b7, their lite0 to lite4, resnet, wide_resnet and resnext"
            )
        return found


UNKNOWN = Description()


def by_file_name(source: Path) -> Description:
    """Return the architecture whose name, as in timm or torchvision, begins the file's name; UNKNOWN if there is none."""
    patterns = [rf"({pattern})(?=[^a-z0-9]|$)" for pattern, _ in _SAME]
    stem = source.stem.lower()
    found = next((match for pattern in [*patterns, _OTHERS] if (match := re.match(pattern, stem))), None)
    return Description(found[0], "by the file's name") if found else UNKNOWN


def by_config(source: Path) -> Description:
    """Read timm's config.json in the folder of the weights; return UNKNOWN if there is none."""
    path = source.parent / CONFIG
    try:
        entries = bounds.json_value(input_files.content(path, bounds.TEXT))
    except FileNotFoundError:
        return UNKNOWN
    except (OSError, ValueError) as error:
        raise ImportFailure(f"{path} cannot be read: {bounds.reason(error)}") from None
    if not isinstance(entries, dict) or not isinstance(entries.get("architecture"), str):
        return UNKNOWN  # this config.json is not from timm
    images = entries.get("pretrained_cfg", entries)
    images = images if isinstance(images, dict) else {}
    arguments = entries.get("model_args") or {}
    odd = sorted(set(arguments).difference(_ORDINARY)) if isinstance(arguments, dict) else ["model_args"]
    if odd:
        raise ImportFailure(f"{path} gives {entries['architecture']} the argument {short(odd[0])}, which is not supported")
    size = images.get("input_size", [3, None, None])
    if not isinstance(size, list) or len(size) != 3 or size[0] != 3 or size[1] != size[2]:
        raise ImportFailure(f"{path} has input_size {short(size)}; it must be [3, side, side]")
    if size[1] is not None and (type(size[1]) is not int or not 8 <= size[1] <= 4096):
        raise ImportFailure(f"{path} has input_size {short(size)}; the side must be between 8 and 4096")
    return Description(
        entries["architecture"], f"by {CONFIG}", _three(path, images, "mean"), _three(path, images, "std"), size[1],
        _notes(images),
    )  # fmt: skip


def _three(path: Path, images: dict[str, Any], name: str) -> tuple[float, ...]:
    values = images.get(name) or []
    if not isinstance(values, list) or len(values) not in (0, 3) or any(type(value) not in (int, float) for value in values):
        raise ImportFailure(f"{path} has {name} {short(values)}; it must be three numbers")
    return tuple(map(float, values))


def _notes(images: dict[str, Any]) -> tuple[str, ...]:
    crop, method = images.get("crop_pct", 0.875), images.get("interpolation", "bilinear")
    if crop == 0.875 and method == "bilinear":
        return ()
    return (
        f"timm evaluates this network on a crop of {short(crop)} of the shorter side, with {short(method)} resizing. This "
        "project uses 0.875 and bilinear, so probabilities differ slightly",
    )
