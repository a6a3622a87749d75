"""The passes that each use of a network runs, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection

from cnn_harness.emulator.lowering.convolutions import kernels
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.passes.checks import checks, counts
from cnn_harness.emulator.passes.formats import formats
from cnn_harness.emulator.passes.fuse import fuse
from cnn_harness.emulator.passes.normal_form import normal_form
from cnn_harness.emulator.passes.printed import printed
from cnn_harness.emulator.passes.target import Target
from cnn_harness.emulator.plan.options import PASSES
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.plan.precision import Precision


def passes(precision: Precision, target: Target, watched: Collection[str] = ()) -> dict[str, Callable[[Network], Network]]:
    """Return the passes on a block by name, in order. Lost gradients are counted at the layers whose paths are `watched`."""
    return {
        "normal-form": lambda network: normal_form(network, target),
        "formats": lambda network: formats(network, precision, target),
        "checks": lambda network: counts(checks(network) if precision.checks else network, watched),
        "fuse": lambda network: fuse(network, precision, target),
        "kernels": lambda network: kernels(network, precision, target),
    }


def prepared(
    network: Network, precision: Precision, target: Target, watched: Collection[str] = (), last: str = PASSES[-1]
) -> Network:
    """Return the network as it is lowered, or as it is after the pass `last`."""
    steps = passes(precision, target, watched)
    for name in PASSES[1 : 1 + PASSES.index(last)]:
        network = steps[name](network)
    return network


def printed_after(network: Network, plan: ExecutionPlan, last: str, training: bool, frozen: Collection[str]) -> str:
    """Return the nodes of each block of a plan after the pass `last`. `frozen` is that of `PrecisionPolicy.target`."""
    library.load()
    policy = PrecisionPolicy(plan.precision)
    blocks = network.blocks(plan.stages, plan.separates_segments)
    several, tables = sum(map(len, blocks)) > 1, []
    for number, (parts, device) in enumerate(zip(blocks, plan.stage_devices)):
        target = policy.target(device, training=training, frozen=frozen)
        for block in parts:
            title = f"stage {number}, {block.segments[0]} to {block.segments[-1]}\n" if several else ""
            tables.append(title + printed(prepared(block, policy.precision, target, last=last), policy.precision))
    return "\n\n".join(tables)
