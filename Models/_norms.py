"""Every normalisation that a network can have: the option that chooses it, its constants, its variables, its name. The
arithmetic is a row of `NORMS` (emulator/layers/tensor_layers.py), a method for each kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from base.fields import at_least, between, opt

IPU_GROUP_NORM_EPSILON = 1.53e-5  # the IPU operation's own default, which residual networks keep


@dataclass(frozen=True, kw_only=True)
class NormKind:
    """The properties that all norms of a kind share."""

    option: str = ""  # the switch that chooses it; the kind without one is there if no switch is on
    scope: str = ""  # of its variables
    label: str  # its part of a run's name, with the fields of the policy
    title: str = ""  # as people call it
    identity: bool = False  # changes nothing
    moving: bool = False  # has moving statistics, of batches, for inference
    fused: bool = False  # one function with the activation behind it, for which the backward pass keeps the norm's input
    reads: tuple[str, ...] = ()  # options that other kinds have no use for


KINDS = {
    "group": NormKind(
        option="group_norm",
        scope="GroupNorm",
        label="GN{groups}",
        title="group norm",
        fused=True,
        reads=("groups", "contiguous_groups"),
    ),
    "batch": NormKind(
        option="batch_norm", scope="batch_norm", label="BN", title="batch norm", moving=True, reads=("BN_decay", "BN_span")
    ),
    "none": NormKind(label="noBN", identity=True),
}
SWITCHES = tuple(kind.option for kind in KINDS.values() if kind.option)


@dataclass(frozen=True, kw_only=True)
class NormOptions:
    """The options of the norms, for the options of a model."""

    batch_norm: bool | None = opt(None, "batch normalisation (ResNet's and ResNeXt's default on CIFAR-sized data)")
    group_norm: bool | None = opt(None, "group normalisation (the default otherwise)")
    groups: int | None = opt(None, "number of channel groups of group norm (default 32, CIFAR 16)", check=at_least(1))
    contiguous_groups: bool = opt(False, "neighbouring channels form a group; the IPU takes every groups-th channel")
    BN_decay: float | None = opt(None, "decay of batch norm's moving statistics (default 0.97)", check=between(0, 1))


@dataclass(frozen=True, kw_only=True)
class NormPolicy:
    """The kind of normalisation that follows a convolution, and its constants."""

    kind: str  # one of KINDS
    epsilon: float = 1e-5
    decay: float = 0.97  # of moving statistics
    groups: int = 1
    two_pass: bool = False  # group norm: variance from the centred values
    contiguous: bool = False  # group norm: neighbouring channels are a group; on the IPU every groups-th is
    proxy: float | None = None  # group norm: proxy normalisation of what follows, with this epsilon

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no norm '{self.kind}'; there are: {', '.join(KINDS)}")

    @property
    def scope(self) -> str:
        """The scope of its variables."""
        return KINDS[self.kind].scope

    @property
    def moving(self) -> bool:
        """True if it has moving statistics."""
        return KINDS[self.kind].moving

    @property
    def identity(self) -> bool:
        """True if it changes nothing."""
        return KINDS[self.kind].identity

    @property
    def fused(self) -> bool:
        """True if it is one function with the activation behind it."""
        return KINDS[self.kind].fused

    def fault(self, channels: int) -> str | None:
        """The reason why it cannot be a norm of so many channels."""
        if "groups" in KINDS[self.kind].reads and channels % self.groups:
            return f"{channels} channels do not divide into {self.groups} norm groups"
        return None

    def label(self) -> str:
        """The part of a run's name: BN, GN32 or noBN."""
        return KINDS[self.kind].label.format_map(vars(self))

    def variables(self, *, zero_gamma: bool, scale: bool, centre: bool) -> list[tuple[str, float, float | None]]:
        """Name, initial value and decay of each variable [channels], in the order of creation."""
        rows: list[tuple[str, float, float | None]] = [("beta", 0.0, None)] if centre else []
        rows += [("gamma", 0.0 if zero_gamma else 1.0, None)] if scale else []
        rows += [("moving_mean", 0.0, self.decay), ("moving_variance", 1.0, self.decay)] if self.moving else []
        return rows


def policy(options: NormOptions, **constants: Any) -> NormPolicy:
    """The norm that the options choose. `constants`: fields of NormPolicy that are no option of all models."""
    kind = next(name for name, kind in KINDS.items() if not kind.option or getattr(options, kind.option))
    return NormPolicy(
        kind=kind, decay=options.BN_decay, groups=options.groups, contiguous=options.contiguous_groups, **constants
    )


def residual_policy(options: NormOptions, two_pass: bool) -> NormPolicy:
    """Return the policy with epsilon 1e-5; for group norm the epsilon is the IPU operation's."""
    return policy(options, epsilon=IPU_GROUP_NORM_EPSILON if options.group_norm else 1e-5, two_pass=two_pass)
