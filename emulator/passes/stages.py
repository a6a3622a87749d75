"""Cut a network into the blocks whose gradients are computed together.

    a b c | d e  ->  [a b c] [d e]
    a b c | d e  ->  [a] [b] [c] [d] [e]  with recomputation

The plan cuts the segments into stages. A stage is a block. With recomputation, each segment is a block, which keeps its
input and runs forward again. The other passes run on each block, so no operation is fused across a cut.
"""

from __future__ import annotations

from emulator.network.network import Network
from emulator.plan.plan import ExecutionPlan


def blocks(network: Network, plan: ExecutionPlan) -> tuple[tuple[Network, ...], ...]:
    """Return the blocks of each stage."""
    if plan.options.enable_recomputation:
        return tuple(tuple(network.block((name,)) for name in names) for names in plan.stages)
    return tuple((network.block(names),) for names in plan.stages)
