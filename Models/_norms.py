"""From a model's options to the normalisation it uses."""

from __future__ import annotations

from typing import Any

from Models._layers import NormPolicy

IPU_GROUP_NORM_EPSILON = 1.53e-5  # the IPU operation's own default, which residual networks keep


def residual_policy(options: Any, two_pass: bool) -> NormPolicy:
    """Batch norm with epsilon 1e-5, group norm with the IPU operation's, or none."""
    kind = "batch" if options.batch_norm else "group" if options.group_norm else "none"
    epsilon = IPU_GROUP_NORM_EPSILON if kind == "group" else 1e-5
    return NormPolicy(
        kind=kind, epsilon=epsilon, decay=options.BN_decay, groups=options.groups, two_pass=two_pass,
        contiguous=options.contiguous_groups,
    )  # fmt: skip
