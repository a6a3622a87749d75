"""The passes that each use of a network runs, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection

from emulator.lowering.convolutions import kernels
from emulator.network.network import Network
from emulator.passes.checks import checks, counts
from emulator.passes.formats import formats
from emulator.passes.fuse import fuse
from emulator.passes.normal_form import normal_form
from emulator.passes.target import Target
from emulator.plan.options import PASSES
from emulator.plan.precision import Precision

Pass = Callable[[Network], Network]


def passes(precision: Precision, target: Target, watched: Collection[str] = ()) -> dict[str, Pass]:
    """Return the passes on a block by name, in order. `watched` has the paths of the layers whose lost gradients are
    counted."""
    return {
        "normal-form": lambda network: normal_form(network, target),
        "formats": lambda network: formats(network, precision, target),
        "checks": lambda network: counts(checks(network) if precision.checks else network, watched),
        "fuse": lambda network: fuse(network, precision, target),
        "kernels": lambda network: kernels(network, precision, target),
    }


def after(block: Network, name: str, precision: Precision, target: Target) -> Network:
    """Return a block after the pass with this name."""
    for own, each in passes(precision, target).items() if name != PASSES[0] else ():
        block = each(block)
        if own == name:
            break
    return block


def prepared(network: Network, precision: Precision, target: Target, watched: Collection[str] = ()) -> Network:
    """Return the network as it is lowered."""
    for each in passes(precision, target, watched).values():
        network = each(network)
    return network
