"""Fitted constants of the cost model, each with a unit, a prior and bounds.

`systems.py` has the published data of the machines, and `kernels.py` counts operations, bytes and launches. The constants
say which fraction of the machine's rates real programs reach. `tools/fit_planner.py` fits them to published training runs
and writes `FITTED`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def _constant(prior: float, low: float, high: float) -> Any:
    return field(metadata={"prior": prior, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants, for one tile of an IPU.

    * `matrix_share` is the fraction of their peak that matrix units reach in a convolution.
    * `exchange_share` is the fraction of the exchange's rate that rearranged tensors reach.
    * `memory_bytes` is the number of bytes per cycle that elementwise operations read and write.
    * `function_cycles` is the number of cycles that a sigmoid or swish takes for each element.
    * `launch_cycles` is the number of cycles to synchronise, exchange and start one compute set.
    * `update_cycles` is the number of cycles that host, loop and collectives add to every update.
    * `later_software` is the time with SDK 2.4 or later, relative to the time with SDK 2.0 to 2.3.
    * `proportion_power` is the exponent p: convolutions take (0.6 / memory proportion)^p times as long as with 0.6.
    """

    matrix_share: float = _constant(0.4, 0.1, 0.95)
    exchange_share: float = _constant(0.5, 0.1, 1.0)
    memory_bytes: float = _constant(8.0, 2.0, 24.0)
    function_cycles: float = _constant(4.0, 1.0, 20.0)
    launch_cycles: float = _constant(1500.0, 300.0, 8000.0)
    update_cycles: float = _constant(3e6, 3e5, 2e7)
    later_software: float = _constant(0.95, 0.8, 1.0)
    proportion_power: float = _constant(0.1, 0.01, 0.5)


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
