"""Models as flat lists of segments, which are blocks of layers. A pipeline can be split between segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cnn_harness.Models._layers import Layers, Tensor


@dataclass(frozen=True)
class Segment:
    """A named part of a model: `apply(layers, x)` returns the next x.

    `--pipeline-splits` and `--summary` use the name. Variables are named after the scopes that `apply` opens, inside the
    scope "all".
    """

    name: str
    apply: Callable[[Layers, Tensor], Tensor]
