"""Every normalisation that a network can have, a class for each: the option that chooses it, its constants, its variables,
its name. The arithmetic is a method for each class, which `NORMS` names (emulator/layers/tensor_layers.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from base.fields import at_least, between, opt

IPU_GROUP_NORM_EPSILON = 1.53e-5  # the IPU operation's own default, which residual networks keep
NormVariable = tuple[str, float, float | None]  # name, initial value and decay


@dataclass(frozen=True, kw_only=True)
class NormOptions:
    """The options of the norms, for the options of a model."""

    batch_norm: bool | None = opt(None, "batch normalisation (ResNet's and ResNeXt's default on CIFAR-sized data)")
    group_norm: bool | None = opt(None, "group normalisation (the default otherwise)")
    groups: int | None = opt(None, "number of channel groups of group norm (default 32, CIFAR 16)", check=at_least(1))
    contiguous_groups: bool = opt(False, "neighbouring channels form a group; the IPU takes every groups-th channel")
    BN_decay: float | None = opt(None, "decay of batch norm's moving statistics (default 0.97)", check=between(0, 1))


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(NormOptions):
    """The options that residual networks and EfficientNet share."""

    symmetric_padding: bool = opt(False, "windows of stride 2 are padded alike on both sides, as in PyTorch")

    @property
    def padding(self) -> str:
        """The padding of windows in the layer vocabulary."""
        return "SYMMETRIC" if self.symmetric_padding else "SAME"


@dataclass(frozen=True, kw_only=True)
class Norm:
    """The normalisation that follows a convolution. Subclasses have constants of their own, and say of their kind:

    `option`: the switch that chooses it; the kind without one is there if no switch is on. `reads`: options that other kinds
    have no use for. `title`: the name in messages; `scope`: of its variables. `fused`: one function with the activation
    behind it, for which the backward pass keeps the norm's input.
    """

    option: ClassVar[str] = ""
    reads: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str] = ""
    scope: ClassVar[str] = ""
    fused: ClassVar[bool] = False

    epsilon: float = 1e-5

    @classmethod
    def of(cls, options: NormOptions, *, epsilon: float, two_pass: bool, proxy: float | None) -> Norm:
        """Return the norm of these options; constants that a kind has no use for are left out."""
        return cls(epsilon=epsilon)

    def label(self) -> str:
        """The part of a run's name: BN, GN32 or noBN."""
        raise NotImplementedError

    def at_most(self, channels: int) -> Norm:
        """Return the norm for so few channels."""
        return self

    def fault(self, channels: int) -> str | None:
        """The reason why this norm does not fit `channels`; None if it does."""
        return None

    def variables(self, *, zero_gamma: bool, scale: bool, centre: bool) -> list[NormVariable]:
        """The variables [channels] in the order of creation."""
        rows: list[NormVariable] = [("beta", 0.0, None)] if centre else []
        return rows + ([("gamma", 0.0 if zero_gamma else 1.0, None)] if scale else [])


@dataclass(frozen=True, kw_only=True)
class GroupNorm(Norm):
    """Group norm (Wu and He, arXiv 1803.08494). `two_pass`: the variance is that of the centred values; `contiguous`:
    neighbouring channels are a group, where on the IPU every groups-th channel is; `proxy`: proxy normalisation of what
    follows, with this epsilon (Labatie et al., arXiv 2106.03743)."""

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
        """Never more groups than channels."""
        return replace(self, groups=min(self.groups, channels))

    def fault(self, channels: int) -> str | None:
        return f"{channels} channels do not divide into {self.groups} norm groups" if channels % self.groups else None


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Norm):
    """Batch norm (Ioffe and Szegedy, arXiv 1502.03167). `decay`: of the moving statistics."""

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
    """No norm: the values as they are."""

    def label(self) -> str:
        return "noBN"

    def variables(self, *, zero_gamma: bool, scale: bool, centre: bool) -> list[NormVariable]:
        return []


KINDS: tuple[type[Norm], ...] = (GroupNorm, BatchNorm, NoNorm)  # the first whose switch is on is chosen
SWITCHES = tuple(kind.option for kind in KINDS if kind.option)


def chosen(options: NormOptions, *, epsilon: float, two_pass: bool = False, proxy: float | None = None) -> Norm:
    """Return the norm that the options choose. `two_pass`, `proxy`: as of GroupNorm."""
    kind = next(kind for kind in KINDS if not kind.option or getattr(options, kind.option))
    return kind.of(options, epsilon=epsilon, two_pass=two_pass, proxy=proxy)


def of_residual(options: NormOptions, two_pass: bool) -> Norm:
    """Return the norm with epsilon 1e-5; for group norm the epsilon is the IPU operation's."""
    return chosen(options, epsilon=IPU_GROUP_NORM_EPSILON if options.group_norm else 1e-5, two_pass=two_pass)
