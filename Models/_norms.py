"""The norms that networks can use. Each class defines a norm's option, constants, variables and name.

The arithmetic is in emulator/lowering/tensorflow.py, where `NORMS` maps each class to a function.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from cnn_harness.base.fields import at_least, between, opt

IPU_GROUP_NORM_EPSILON = 1.53e-5  # default of the IPU's group norm; residual networks use this value
NormVariable = tuple[str, float, float | None]  # name, initial value and decay


@dataclass(frozen=True, kw_only=True)
class NormOptions:
    """Options of norms. The options of a model inherit from this class."""

    batch_norm: bool | None = opt(None, "use batch norm (default for ResNet and ResNeXt on images of CIFAR's size)")
    group_norm: bool | None = opt(None, "use group norm (default for all other networks and image sizes)")
    groups: int | None = opt(
        None,
        "divide the channels into N groups for group norm (default: 16 on images of CIFAR's size, otherwise 32)",
        check=at_least(1),
    )
    contiguous_groups: bool = opt(
        False,
        "form each group of neighbouring channels, instead of every N-th channel as on the IPU (N is the number of groups)",
    )
    BN_decay: float | None = opt(
        None, "set the decay of the moving averages of batch-norm statistics (default: 0.97)", check=between(0, 1)
    )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(NormOptions):
    """Options shared by residual networks and EfficientNet."""

    symmetric_padding: bool = opt(False, "pad the input of stride-2 layers equally on both sides, as in PyTorch")

    @property
    def padding(self) -> str:
        """Return the padding of windows in the layer vocabulary."""
        return "SYMMETRIC" if self.symmetric_padding else "SAME"


@dataclass(frozen=True, kw_only=True)
class Norm:
    """The norm after a convolution. Each subclass is a kind of norm, with its own constants and these attributes:

    `option` is the switch that chooses this kind. The kind without a switch is used if no switch is on.
    `reads` lists the options that only this kind uses.
    `title` is the name in messages. `scope` is the scope of the norm's variables.
    `fused` is true if norm and activation are one function, so that the backward pass needs only the norm's input.
    """

    option: ClassVar[str] = ""
    reads: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str] = ""
    scope: ClassVar[str] = ""
    fused: ClassVar[bool] = False

    epsilon: float = 1e-5

    @classmethod
    def of(cls, options: NormOptions, *, epsilon: float, two_pass: bool, proxy: float | None) -> Norm:
        """Return the norm for these options. A kind of norm ignores the constants that it does not use."""
        return cls(epsilon=epsilon)

    def label(self) -> str:
        """Return the norm's abbreviation in the name of a run: BN, GN32 or noBN."""
        raise NotImplementedError

    def at_most(self, channels: int) -> Norm:
        """Return the norm for a layer with `channels` channels."""
        return self

    def fault(self, channels: int) -> str | None:
        """Return the reason why this norm cannot be used with `channels` channels, or None."""
        return None

    def variables(self, *, zero_gamma: bool, scale: bool, centre: bool) -> list[NormVariable]:
        """Return the variables, of shape [channels], in the order of creation."""
        rows: list[NormVariable] = [("beta", 0.0, None)] if centre else []
        return rows + ([("gamma", 0.0 if zero_gamma else 1.0, None)] if scale else [])


@dataclass(frozen=True, kw_only=True)
class GroupNorm(Norm):
    """Group norm (Wu and He, arXiv 1803.08494).

    If `two_pass` is true, the variance is computed from centred values.
    If `contiguous` is true, a group consists of neighbouring channels, instead of every groups-th channel as on the IPU.
    `proxy` is the epsilon of the following proxy norm (Labatie et al., arXiv 2106.03743); None: no proxy norm.
    """

    option = "group_norm"
    reads = ("groups", "contiguous_groups", "stable_norm", "force_unstable_norm")
    title = "group norm"
    scope = "GroupNorm"
    fused = True

    groups: int = 1
    two_pass: bool = False
    contiguous: bool = False
    proxy: float | None = None

    @classmethod
    def of(cls, options: NormOptions, *, epsilon: float, two_pass: bool, proxy: float | None) -> GroupNorm:
        return cls(
            epsilon=epsilon, groups=options.groups, contiguous=options.contiguous_groups, two_pass=two_pass, proxy=proxy
        )  # fmt: skip

    def label(self) -> str:
        return f"GN{self.groups}"

    def at_most(self, channels: int) -> GroupNorm:
        """Return the norm with at most as many groups as channels."""
        return replace(self, groups=min(self.groups, channels))

    def fault(self, channels: int) -> str | None:
        return f"{channels} channels cannot be divided into {self.groups} norm groups" if channels % self.groups else None


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Norm):
    """Batch norm (Ioffe and Szegedy, arXiv 1502.03167). `decay` is the decay of the moving statistics."""

    option = "batch_norm"
    reads = ("BN_decay", "BN_span")
    title = "batch norm"
    scope = "batch_norm"

    decay: float = 0.97

    @classmethod
    def of(cls, options: NormOptions, *, epsilon: float, two_pass: bool, proxy: float | None) -> BatchNorm:
        return cls(epsilon=epsilon, decay=options.BN_decay)

    def label(self) -> str:
        return "BN"

    def variables(self, *, zero_gamma: bool, scale: bool, centre: bool) -> list[NormVariable]:
        trained = super().variables(zero_gamma=zero_gamma, scale=scale, centre=centre)
        return [*trained, ("moving_mean", 0.0, self.decay), ("moving_variance", 1.0, self.decay)]


@dataclass(frozen=True, kw_only=True)
class NoNorm(Norm):
    """No norm: values are unchanged."""

    def label(self) -> str:
        return "noBN"

    def variables(self, *, zero_gamma: bool, scale: bool, centre: bool) -> list[NormVariable]:
        return []


KINDS: tuple[type[Norm], ...] = (GroupNorm, BatchNorm, NoNorm)  # the first kind whose switch is on is chosen
SWITCHES = tuple(kind.option for kind in KINDS if kind.option)


def chosen(options: NormOptions, *, epsilon: float, two_pass: bool = False, proxy: float | None = None) -> Norm:
    """Return the norm chosen by the options. GroupNorm explains `two_pass` and `proxy`."""
    kind = next(kind for kind in KINDS if not kind.option or getattr(options, kind.option))
    return kind.of(options, epsilon=epsilon, two_pass=two_pass, proxy=proxy)


def of_residual(options: NormOptions, two_pass: bool) -> Norm:
    """Return the norm of a residual network. The epsilon is 1e-5, except for group norm, which uses the IPU's default."""
    return chosen(options, epsilon=IPU_GROUP_NORM_EPSILON if options.group_norm else 1e-5, two_pass=two_pass)
