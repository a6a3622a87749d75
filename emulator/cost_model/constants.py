"""Constants of the cost model that published rates do not determine, each with a unit, a prior and bounds.

The machine's data are in `systems.py`; numbers of operations, bytes and launches in `kernels.py`. These constants say how
much of the machine's rates programs reach. `tools/fit_planner.py` fits them to published trainings and writes `FITTED`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def _constant(prior: float, low: float, high: float) -> Any:
    return field(metadata={"prior": prior, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of one tile."""

    matrix_share: float = _constant(0.4, 0.1, 0.95)  # fraction of the peak that matrix units reach in a convolution
    exchange_share: float = _constant(0.5, 0.1, 1.0)  # fraction of the exchange's rate that rearranged tensors reach.
    memory_bytes: float = _constant(8.0, 2.0, 24.0)  # bytes per cycle that elementwise work reads and writes
    function_cycles: float = _constant(4.0, 1.0, 20.0)  # cycles for a sigmoid or swish of one element.
    launch_cycles: float = _constant(1500.0, 300.0, 8000.0)  # cycles to synchronise, exchange and start one compute set
    update_cycles: float = _constant(3e6, 3e5, 2e7)  # fixed cycles of an update: host, loop, start of collectives.
    later_software: float = _constant(0.95, 0.8, 1.0)  # cycles with SDK 2.4 and later, relative to SDK 2.0 to 2.3
    proportion_power: float = _constant(0.1, 0.01, 0.5)  # exponent of convolution time in (default proportion / proportion)


NAMES = tuple(each.name for each in fields(Constants))
PRIOR = Constants(**{each.name: each.metadata["prior"] for each in fields(Constants)})
BOUNDS = {each.name: (each.metadata["low"], each.metadata["high"]) for each in fields(Constants)}
FITTED = Constants(
    matrix_share=0.6457,
    exchange_share=0.8944,
    memory_bytes=8.305,
    function_cycles=11.9,
    launch_cycles=1280,
    update_cycles=6.122e06,
    later_software=0.8718,
    proportion_power=0.1033,
)
