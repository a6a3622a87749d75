"""Keras' names of variables, and the preprocessing layers of its networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from base.fields import short
from Datasets.formats.preprocessing import UNIT_DEVIATION, UNIT_MEAN

SCALE, OFFSET = "preprocessing/scale", "preprocessing/offset"  # input = pixel * scale + offset, with pixels from 0 to 255
_LEAST_DEVIATION = 1e-7  # as in Keras
_NO_ARITHMETIC = (  # prefixes of layer classes that do not change pixel values in inference
    "CenterCrop", "CutMix", "Dropout", "Gaussian", "Identity", "InputLayer", "MixUp", "Rand", "Resizing", "ZeroPadding2D",
)  # fmt: skip
Step = tuple[Any, Any]  # factor and offset: one number, or one for each channel


def kinds(shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """Return the names of a layer's variables by their shapes. Keras 3 only numbers them."""
    if len(shapes[0]) > 1:
        return ["kernel", "bias"][: len(shapes)]
    return {3: ["mean", "variance", "count"], 4: ["gamma", "beta", "moving_mean", "moving_variance"]}.get(len(shapes), [])


def constants(arrays: Mapping[str, np.ndarray]) -> tuple[list[float], list[float]] | None:
    """Return means and standard deviations of pixels from 0 to 1, by a network's variables; None if they are unknown.

    Without SCALE and OFFSET, the network is assumed to be of keras.applications: pixels / 255, then the normalisation. In
    its ImageNet weights the "variances" are deviations, and another layer divides by their square root again.
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
    """Return SCALE and OFFSET of a network with these settings. Raise ValueError for unsupported layers before the first
    convolution, and for a classifier that does not end in softmax."""
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
    """Yield class and settings of all layers in order, including those of nested networks."""
    waiting = [settings]
    while waiting:
        entry = waiting.pop(0)
        kind, layer = (entry.get("class_name"), entry.get("config")) if isinstance(entry, dict) else (None, None)
        if isinstance(layer, dict) and isinstance(layer.get("layers"), list):
            waiting = [*layer["layers"], *waiting]
        elif isinstance(layer, dict) and isinstance(kind, str):
            yield kind, layer


def composed(steps: Sequence[Step]) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor and the offset of all steps together, for each of three channels."""
    scale, offset = np.ones(3), np.zeros(3)
    for factor, added in steps:
        scale, offset = scale * factor, offset * factor + added
    if scale.shape != (3,) or offset.shape != (3,) or not np.isfinite([scale, offset]).all() or not scale.all():
        raise ValueError("its preprocessing layers do not have finite constants for three channels")
    return scale, offset


def _normalization(mean: Any, variance: Any) -> Step:
    factor = 1 / np.maximum(np.sqrt(np.float64(variance).ravel()), _LEAST_DEVIATION)
    return factor, -np.float64(mean).ravel() * factor


def _numbers(value: Any) -> np.ndarray:
    """Return a number, or a list of numbers, as an array. Keras may have wrapped it."""
    if isinstance(value, dict) and isinstance(value.get("config"), dict):
        value = value["config"].get("value")
    try:
        return np.asarray(value, np.float64).ravel()
    except (TypeError, ValueError):
        raise ValueError("the constants of its preprocessing layers are not numbers") from None


def _alike(values: np.ndarray, wanted: Sequence[float]) -> bool:
    return values.size == 3 and np.allclose(np.ravel(values), wanted, atol=1e-4)
