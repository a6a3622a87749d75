"""Weights and images that two frameworks can generate alike: plain NumPy, from a seed.

One stream of PCG64 words, each the 53-bit fraction of a float64 in [0, 1), is divided in the order of the sorted variable
names. Only the bit generator is used: NumPy keeps its stream stable, while distributions may change with the version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

# uniform in this range, so that activations of a residual network neither vanish nor explode
RANGES = {
    "gamma": (0.4, 0.9),
    "beta": (-0.3, 0.3),
    "moving_mean": (-0.4, 0.4),
    "moving_variance": (0.6, 1.6),
    "bias": (-0.5, 0.5),
}


def weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Return float32 values for variables given by name and shape; the order of `shapes` does not matter."""
    stream = np.random.PCG64(seed)
    return {name: _between(stream, shapes[name], *_range(name, shapes[name])) for name in sorted(shapes)}


def noise_images(count: int, side: int, seed: int) -> np.ndarray:
    """Return float32 [count, side, side, 3] in [-2, 2).

    Noise on slopes, so that left, right, top and bottom differ, and on a grey that differs by image.
    """
    noise = _between(np.random.PCG64(seed), (count, side, side, 3), -0.5, 0.5)
    slope = np.arange(side, dtype=np.float32) / side
    grey = np.arange(count, dtype=np.float32) / count - 0.5
    return noise + slope[:, None, None] - slope[:, None] * np.float32([0.5, 1.0, -0.5]) + grey[:, None, None, None]


def _range(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    kind = name.rpartition("/")[2]
    if kind != "kernel":
        return RANGES[kind]
    limit = math.sqrt(6 / math.prod(shape[:-1]))  # variance 2 / fan_in, He et al. 2015 (arXiv 1502.01852)
    return -limit, limit


def _between(stream: np.random.PCG64, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    fractions = (stream.random_raw(math.prod(shape)) >> np.uint64(11)) * 2.0**-53
    return (low + (high - low) * fractions).astype(np.float32).reshape(shape)


def value_back(layout: Any, name: str, array: np.ndarray) -> np.ndarray:
    """Transpose one of our arrays to the layout of another project, a `weight_names.Layout`."""
    if layout.torch:
        return {4: lambda: array.transpose(3, 2, 0, 1), 2: lambda: array.T}.get(array.ndim, lambda: array)()
    return layout.value(name, array)  # swapping two axes is its own inverse
