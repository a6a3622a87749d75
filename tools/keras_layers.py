"""The names of layers in Keras' files, and how its networks prepare images."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from base.fields import short
from Datasets.formats.preprocessing import UNIT_DEVIATION, UNIT_MEAN

SCALE, OFFSET = "preprocessing/scale", "preprocessing/offset"  # input = pixel from 0 to 255 * scale + offset
_LEAST_DEVIATION = 1e-7  # Keras' own
_NO_ARITHMETIC = (  # beginnings of the classes of layers that leave the numbers of pixels as they are when a network answers
    "CenterCrop", "CutMix", "Dropout", "Gaussian", "Identity", "InputLayer", "MixUp", "Rand", "Resizing", "ZeroPadding2D",
)  # fmt: skip
Step = tuple[Any, Any]  # a factor and an offset, one number or one for each channel


def kinds(shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """Return the names of a layer's variables in Keras 3, which numbers them, by their shapes."""
    if len(shapes[0]) > 1:
        return ["kernel", "bias"][: len(shapes)]
    return {3: ["mean", "variance", "count"], 4: ["gamma", "beta", "moving_mean", "moving_variance"]}.get(len(shapes), [])


def constants(arrays: Mapping[str, np.ndarray]) -> tuple[list[float], list[float]] | None:
    """Return the means and deviations, of pixels from 0 to 1, of a network by its variables; None where they do not say.

    Without the settings of its layers, a network of keras.applications is taken: pixels / 255, then the normalisation.
    ImageNet's own weights hold deviations where variances belong, and another layer divides by their root again.
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
    """Return SCALE and OFFSET of a network with these settings. ValueError for other arithmetic before the first
    convolution, and for a classifier without softmax, whose probabilities would become others here."""
    layers = [*_layers(settings)]
    heads = [layer.get("activation") for kind, layer in layers if kind == "Dense"]
    if heads and isinstance(heads[-1], str) and heads[-1] not in ("softmax", "linear"):
        raise ValueError(f"its classifier ends in {short(heads[-1])}, and must end in softmax to have the same answers here")
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
            raise ValueError(
                f"its layer {short(str(layer.get('name')))} ({short(kind)}) changes images in a way that is not done here"
            )
    scale, offset = composed(steps)
    return {SCALE: scale, OFFSET: offset}


def _layers(settings: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield class and settings of all layers in their order, those of networks inside too."""
    waiting = [settings]
    while waiting:
        entry = waiting.pop(0)
        kind, layer = (entry.get("class_name"), entry.get("config")) if isinstance(entry, dict) else (None, None)
        if isinstance(layer, dict) and isinstance(layer.get("layers"), list):
            waiting = [*layer["layers"], *waiting]
        elif isinstance(layer, dict) and isinstance(kind, str):
            yield kind, layer


def composed(steps: Sequence[Step]) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor and the offset of all steps, for each of three channels."""
    scale, offset = np.ones(3), np.zeros(3)
    for factor, added in steps:
        scale, offset = scale * factor, offset * factor + added
    if scale.shape != (3,) or offset.shape != (3,) or not np.isfinite([scale, offset]).all() or not scale.all():
        raise ValueError("its first layers do not prepare three channels with finite numbers")
    return scale, offset


def _normalization(mean: Any, variance: Any) -> Step:
    factor = 1 / np.maximum(np.sqrt(np.float64(variance).ravel()), _LEAST_DEVIATION)
    return factor, -np.float64(mean).ravel() * factor


def _numbers(value: Any) -> np.ndarray:
    """Return a number or a list of them, which Keras may have wrapped as an array."""
    if isinstance(value, dict) and isinstance(value.get("config"), dict):
        value = value["config"].get("value")
    try:
        return np.asarray(value, np.float64).ravel()
    except (TypeError, ValueError):
        raise ValueError("the numbers of its first layers are not understood") from None


def _alike(values: np.ndarray, wanted: Sequence[float]) -> bool:
    return values.size == 3 and np.allclose(np.ravel(values), wanted, atol=1e-4)
