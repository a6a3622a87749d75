"""A model is a flat list of segments; a pipeline stage begins with one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from Models._layers import Layers, Tensor


@dataclass(frozen=True)
class Segment:
    """A named function of the model: `apply(layers, x)` returns the next x.

    The name is what `--pipeline-splits` and the summary speak of; variables take their names from the scopes
    that `apply` opens, below the scope "all".
    """

    name: str
    apply: Callable[[Layers, Tensor], Tensor]


def run(segments: list[Segment], layers: Layers, x: Tensor) -> Tensor:
    """All segments in order inside the scope "all"; works for any reader of the vocabulary."""
    with layers.scope("all"):
        for segment in segments:
            layers.begin_segment(segment.name)
            x = segment.apply(layers, x)
    return x
