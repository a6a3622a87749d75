"""The operations from which models are built, as an interface without TensorFlow.

A model runs once: `Recorder` (emulator/network/recorder.py) implements the interface and records the operations. Training,
inference, exports and the planner use this record. Models do not choose the precision or the device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from cnn_harness.Models._norms import GroupNorm, Norm


@dataclass(frozen=True)
class Initial:
    """Initial values of a kernel: variance scaling as in He et al. 2015 (arXiv 1502.01852).

    The variance is scale / n, where n is fan_in, fan_out, or the mean of both ("fan_avg"). In mode "fixed", the variance is
    scale. "truncated_normal" is cut off at two deviations. All distributions have exactly this variance.
    """

    scale: float
    mode: str
    distribution: str = "truncated_normal"


# A proxy variable [6, 1, 1, channels] has these rows. Gradients change all rows except the mean and inverse deviation.
PROXY_ROWS = ("beta", "gamma", "mean", "inverse_deviation", "extra_beta", "extra_gamma")
TRAINED_PROXY_ROWS = ("beta", "gamma", "extra_beta", "extra_gamma")


@dataclass(frozen=True)
class ProxyRule:
    """The parameters from which a proxy variable's mean and inverse deviation are computed.

    `epsilon` is added to the variance.
    """

    activation: str  # "relu", "relu6" or "swish"
    epsilon: float


@dataclass(frozen=True)
class Variable:
    """A variable: full name, shape, and initial values (a constant or a distribution).

    A variable with a `decay` is a moving statistic, updated by batches instead of gradients:
    value -= (1 - decay) * (value - batch value). In a variable with a `proxy` rule, two rows are computed from the other
    rows (emulator/layers/proxy_norm.py).
    """

    name: str
    shape: tuple[int, ...]
    initial: Initial | float
    decay: float | None = None
    proxy: ProxyRule | None = None

    @property
    def trainable(self) -> bool:
        """Return whether gradients change the variable."""
        return self.decay is None

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def fans(self) -> tuple[int, int]:
        """Return fan_in and fan_out of a kernel [.., in, out]."""
        receptive = math.prod(self.shape[:-2])
        return receptive * self.shape[-2], receptive * self.shape[-1]


GLOROT = Initial(1.0, "fan_avg", "uniform")


class Tensor(Protocol):
    """A value [batch, height, width, channels] that models pass between layers. The value has a shape, but no numbers."""


class Layers(ABC):
    """The operations that a model may use."""

    def __init__(self) -> None:
        self._scopes: list[str] = []

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Inside, prefix the names of variables with `name`."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def path(self, *names: str) -> str:
        """Return a full name in the current scope."""
        return "/".join([*self._scopes, *names])

    @abstractmethod
    def channels(self, x: Tensor) -> int:
        """Return the number of channels of x."""

    @abstractmethod
    def side(self, x: Tensor) -> int:
        """Return the height of x in pixels."""

    @abstractmethod
    def conv(
        self,
        x: Tensor,
        filters: int,
        kernel: int,
        initial: Initial,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        padding: str = "SAME",
    ) -> Tensor:
        """Apply a convolution, depthwise if `groups` equals the number of channels.

        `padding` is TensorFlow's "SAME", or "SYMMETRIC", which is equal on both sides, as in PyTorch.
        """

    @abstractmethod
    def norm(self, x: Tensor, norm: Norm, *, zero_gamma: bool = False, scale: bool = True, centre: bool = True) -> Tensor:
        """Normalise. `scale` and `centre` add a trained scale and offset. With `zero_gamma`, the scale starts at zero."""

    def norm_activation(self, x: Tensor, norm: Norm, activation: str) -> Tensor:
        """Normalise with scale and offset, then apply the activation: "relu", "relu6" or "swish"."""
        return getattr(self, activation)(self.norm(x, norm))

    @abstractmethod
    def proxy_norm_activation(self, x: Tensor, norm: GroupNorm, rule: ProxyRule, *, scaled: bool) -> tuple[Tensor, Tensor]:
        """Apply proxy normalisation (Labatie et al., arXiv 2106.03743).

        Normalise, apply an affine map and the activation, and subtract the proxy's mean. Return the result and the
        proxy's inverse deviation [1, 1, 1, channels]. If `scaled` is true, multiply the result by the inverse deviation.
        """

    @abstractmethod
    def relu(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def relu6(self, x: Tensor) -> Tensor:
        """Apply relu, limited to 6."""

    @abstractmethod
    def swish(self, x: Tensor) -> Tensor:
        """Return x * sigmoid(x)."""

    @abstractmethod
    def sigmoid(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x + y. Both have the same shape."""

    @abstractmethod
    def gate(self, x: Tensor, factor: Tensor) -> Tensor:
        """Return x * factor, with a factor [batch, 1, 1, channels]."""

    @abstractmethod
    def concat(self, x: Tensor, y: Tensor) -> Tensor:
        """Concatenate the channels of x and y."""

    @abstractmethod
    def max_pool(self, x: Tensor, kernel: int, stride: int, *, padding: str = "SAME") -> Tensor:
        """Return the maximum over kernel x kernel pixels. With "SYMMETRIC" padding, all values must be at least 0."""

    @abstractmethod
    def global_mean(self, x: Tensor) -> Tensor:
        """Return the mean over the pixels, [batch, 1, 1, channels]."""

    @abstractmethod
    def subsample(self, x: Tensor, stride: int, channels: int) -> Tensor:
        """Return every `stride`-th pixel, and add channels of zeros up to `channels`.

        This operation is the shortcut without parameters (option A of He et al. 2015, arXiv 1512.03385).
        """

    @abstractmethod
    def dense(self, x: Tensor, units: int) -> Tensor:
        """Apply a fully connected layer with bias to all values of each sample; return [batch, units]."""

    @abstractmethod
    def flatten(self, x: Tensor) -> Tensor:
        """Return [batch, all values of a sample]."""

    @abstractmethod
    def dropout(self, x: Tensor, rate: float) -> Tensor:
        """In training, set elements to zero with probability `rate`, and divide the other elements by 1 - rate."""

    @abstractmethod
    def drop_path(self, x: Tensor, survival: float) -> Tensor:
        """In training, set whole samples to zero with probability 1 - survival; divide the other samples by `survival`.

        This operation is stochastic depth (Huang et al. 2016, arXiv 1603.09382).
        """
