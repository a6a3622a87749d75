"""The layer vocabulary that models are written in. No TensorFlow here: two readers implement it.

`TensorLayers` (emulator/layers/tensor_layers.py) builds the graph; `CountingLayers` (emulator/plan/trace.py) counts
parameters, multiply-adds and activations. A model never decides a precision or a device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from Models._norms import GroupNorm, Norm


@dataclass(frozen=True)
class Initial:
    """Initial values of a kernel: variance scaling as in He et al. 2015 (arXiv 1502.01852).

    Variance = scale / n with n = fan_in, fan_out or their mean ("fan_avg"); "truncated_normal" cuts at two
    deviations and keeps that variance, "uniform" has the same variance. Mode "fixed": variance = scale.
    """

    scale: float
    mode: str
    distribution: str = "truncated_normal"


# the rows of a proxy variable, [6, 1, 1, channels]; gradients move those that are no statistics
PROXY_ROWS = ("beta", "gamma", "mean", "inverse_deviation", "extra_beta", "extra_gamma")
TRAINED_PROXY_ROWS = ("beta", "gamma", "extra_beta", "extra_gamma")


@dataclass(frozen=True)
class ProxyRule:
    """The parameters of a proxy variable's statistics: the activation, and the number that is added to the variance."""

    activation: str  # "relu", "relu6" or "swish"
    epsilon: float


@dataclass(frozen=True)
class Variable:
    """A variable: its full name, shape, and initial values (a constant or a kernel's).

    With a `decay` it is a moving statistic, which batches move and gradients do not:
    value -= (1 - decay) * (value - the batch's). With a `proxy` rule two of its rows follow from the others
    (emulator/layers/proxy_norm.py).
    """

    name: str
    shape: tuple[int, ...]
    initial: Initial | float
    decay: float | None = None
    proxy: ProxyRule | None = None

    @property
    def trainable(self) -> bool:
        """True if gradients move it."""
        return self.decay is None

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)

    @property
    def fans(self) -> tuple[int, int]:
        """fan_in and fan_out of a kernel [.., in, out]."""
        receptive = math.prod(self.shape[:-2])
        return receptive * self.shape[-2], receptive * self.shape[-1]


GLOROT = Initial(1.0, "fan_avg", "uniform")


class Tensor(Protocol):
    """The values between layers, as a reader of the vocabulary has them: tensors [batch, height, width, channels] in a
    graph, or their shapes where a network is counted. A model hands them from layer to layer."""


class Layers(ABC):
    """The operations that a model may use."""

    def __init__(self) -> None:
        self._scopes: list[str] = []

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Variables made inside are named below `name`."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def path(self, *names: str) -> str:
        """The full name of something in the present scope."""
        return "/".join([*self._scopes, *names])

    def begin_segment(self, name: str) -> None:  # noqa: B027 - most readers need not know
        """Called before each segment of a model."""

    @abstractmethod
    def channels(self, x: Tensor) -> int:
        """The number of channels of x."""

    @abstractmethod
    def side(self, x: Tensor) -> int:
        """The height of x in pixels."""

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
        """Convolution with SAME padding, or SYMMETRIC: alike on both sides, as in PyTorch. `groups` equal to the channels
        makes it depthwise."""

    @abstractmethod
    def norm(self, x: Tensor, norm: Norm, *, zero_gamma: bool = False, scale: bool = True, centre: bool = True) -> Tensor:
        """Normalisation, with a trained scale and offset if wanted; `zero_gamma` starts the scale at zero."""

    def norm_activation(self, x: Tensor, norm: Norm, activation: str) -> Tensor:
        """Normalisation with scale and offset, then the activation: "relu", "relu6" or "swish"."""
        return getattr(self, activation)(self.norm(x, norm))

    @abstractmethod
    def proxy_norm_activation(self, x: Tensor, norm: GroupNorm, rule: ProxyRule, *, scaled: bool) -> tuple[Tensor, Tensor]:
        """Normalisation, affine map, activation, less the proxy's mean; and the proxy's inverse deviation [1, 1, 1,
        channels], multiplied in if `scaled` (proxy normalisation, Labatie et al., arXiv 2106.03743)."""

    @abstractmethod
    def relu(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def relu6(self, x: Tensor) -> Tensor:
        """relu cut off at 6."""

    @abstractmethod
    def swish(self, x: Tensor) -> Tensor:
        """x * sigmoid(x)."""

    @abstractmethod
    def sigmoid(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def add(self, x: Tensor, y: Tensor) -> Tensor: ...

    @abstractmethod
    def gate(self, x: Tensor, factor: Tensor) -> Tensor:
        """x * factor, the factor [batch, 1, 1, channels] being the same for every pixel."""

    @abstractmethod
    def concat(self, x: Tensor, y: Tensor) -> Tensor:
        """The channels of x, then those of y."""

    @abstractmethod
    def max_pool(self, x: Tensor, kernel: int, stride: int, *, padding: str = "SAME") -> Tensor:
        """Maximum over kernel x kernel pixels, of values that are not negative if the padding is SYMMETRIC."""

    @abstractmethod
    def global_mean(self, x: Tensor) -> Tensor:
        """Mean over the pixels: [batch, 1, 1, channels]."""

    @abstractmethod
    def subsample(self, x: Tensor, stride: int, channels: int) -> Tensor:
        """Every stride-th pixel, padded with zero channels to `channels`: the parameter-free shortcut
        (option A of He et al. 2015, arXiv 1512.03385)."""

    @abstractmethod
    def dense(self, x: Tensor, units: int) -> Tensor:
        """Fully connected with bias on all of a sample's numbers; gives [batch, units]."""

    @abstractmethod
    def flatten(self, x: Tensor) -> Tensor:
        """[batch, all of a sample's numbers]."""

    @abstractmethod
    def dropout(self, x: Tensor, rate: float) -> Tensor:
        """Zero elements with probability `rate` in training, and divide the rest by 1 - rate."""

    @abstractmethod
    def drop_path(self, x: Tensor, survival: float) -> Tensor:
        """Zero whole samples with probability 1 - survival in training, and divide the rest by it (stochastic depth, Huang
        et al. 2016, arXiv 1603.09382)."""
