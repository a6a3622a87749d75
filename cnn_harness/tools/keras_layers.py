"""Names of Keras variables, and the constants of preprocessing layers in Keras networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cnn_harness.base.fields import short
from cnn_harness.Datasets.formats.preprocessing import UNIT_DEVIATION, UNIT_MEAN

# The input of the network is pixel * scale + offset, with pixels from 0 to 255.
SCALE, OFFSET = "preprocessing/scale", "preprocessing/offset"
_LEAST_DEVIATION = 1e-7  # the same as in Keras' Normalization
_NO_ARITHMETIC = (  # layers whose class has one of these prefixes do not change pixel values in inference
    "CenterCrop", "CutMix", "Dropout", "Gaussian", "Identity", "InputLayer", "MixUp", "Rand", "Resizing", "ZeroPadding2D",
)  # fmt: skip
Step = tuple[Any, Any]  # the factor and the offset; each is one number, or one number for each channel


def kinds(shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """Return the names of a layer's variables, found by their shapes, because Keras 3 files only number the variables."""
    if len(shapes[0]) > 1:
        return ["kernel", "bias"][: len(shapes)]
    return {3: ["mean", "variance", "count"], 4: ["gamma", "beta", "moving_mean", "moving_variance"]}.get(len(shapes), [])


def constants(arrays: Mapping[str, np.ndarray]) -> tuple[list[float], list[float]] | None:
    """Return channel means and standard deviations for pixels from 0 to 1, computed from a network's variables; None if
    unknown.

    Without SCALE and OFFSET, the network is assumed to come from keras.applications, which divides pixels by 255 and then
    normalises them. The ImageNet weights store deviations as "variance", and one more layer divides by their square root.
    """
    if SCALE in arrays:
        scale, offset = arrays[SCALE], arrays[OFFSET]
    else:
        means = [name for name in arrays if name.startswith("normalization") and name.endswith("/mean")]
        if len(means) != 1:
            return None
        mean, variance = arrays[means[0]], arrays.get(means[0].removesuffix("mean") + "variance", np.ones(()))
        steps: list[Step] = [(1 / 255, 0.0), _normalization(mean, variance)]
        if _alike(mean, UNIT_MEAN) and _alike(variance, UNIT_DEVIATION):
            steps.append((1 / np.sqrt(np.float64(UNIT_DEVIATION)), 0.0))
        scale, offset = composed(steps)
    with np.errstate(divide="ignore"):
        mean, deviation = (np.round(each, 7) for each in (-offset / scale / 255, 1 / (255 * scale)))
    return (mean + 0.0).tolist(), deviation.tolist()


def preprocessing(settings: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return SCALE and OFFSET for a network with these Keras settings. Raise ValueError for unsupported layers before the
    first convolution, and for a classifier that does not end in softmax."""
    layers = [*_layers(settings)]
    heads = [layer.get("activation") for kind, layer in layers if kind == "Dense"]
    if heads and isinstance(heads[-1], str) and heads[-1] not in ("softmax", "linear"):
        raise ValueError(f"its classifier ends in {short(heads[-1])}; only softmax is supported")
    steps = []
    for kind, layer in itertools.takewhile(lambda each: each[0] != "Conv2D", layers):
        if kind == "Rescaling":
            steps.append((_numbers(layer.get("scale")), _numbers(layer.get("offset", 0.0))))
        elif kind == "Normalization" and not layer.get("invert"):
            places = {
                name.rsplit("/", 1)[-1].removesuffix(":0"): name for name in arrays if layer.get("name") in name.split("/")
            }
            pair = (arrays[places[what]] if what in places else _numbers(layer.get(what)) for what in ("mean", "variance"))
            steps.append(_normalization(*pair))
        elif not kind.startswith(_NO_ARITHMETIC):
            raise ValueError(f"its preprocessing layer {short(str(layer.get('name')))} ({short(kind)}) is not supported")
    scale, offset = composed(steps)
    return {SCALE: scale, OFFSET: offset}


def _layers(settings: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the class and the settings of every layer in order, including layers of nested networks."""
    waiting = [settings]
    while waiting:
        entry = waiting.pop(0)
        kind, layer = (entry.get("class_name"), entry.get("config")) if isinstance(entry, dict) else (None, None)
        if isinstance(layer, dict) and isinstance(layer.get("layers"), list):
            waiting = [*layer["layers"], *waiting]
        elif isinstance(layer, dict) and isinstance(kind, str):
            yield kind, layer


def composed(steps: Sequence[Step]) -> tuple[np.ndarray, np.ndarray]:
    """Combine all steps into one factor and one offset for each of three channels."""
    scale, offset = np.ones(3), np.zeros(3)
    for factor, added in steps:
        scale, offset = scale * factor, offset * factor + added
    if scale.shape != (3,) or offset.shape != (3,) or not np.isfinite([scale, offset]).all() or not scale.all():
        raise ValueError("the constants of its preprocessing layers are not finite numbers for three channels")
    return scale, offset


def _normalization(mean: Any, variance: Any) -> Step:
    factor = 1 / np.maximum(np.sqrt(np.float64(variance).ravel()), _LEAST_DEVIATION)
    return factor, -np.float64(mean).ravel() * factor


def _numbers(value: Any) -> np.ndarray:
    """Convert a number or a list of numbers to an array. Keras may wrap it in a dictionary."""
    if isinstance(value, dict) and isinstance(value.get("config"), dict):
        value = value["config"].get("value")
    try:
        return np.asarray(value, np.float64).ravel()
    except (TypeError, ValueError):
        raise ValueError("the constants of its preprocessing layers are not numbers") from None


def _alike(values: np.ndarray, wanted: Sequence[float]) -> bool:
    return values.size == 3 and np.allclose(np.ravel(values), wanted, atol=1e-4)
