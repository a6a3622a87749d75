"""Fitted constants of the cost model, each with a unit, a prior and bounds.

`systems.py` has the published data of the machines, and `kernels.py` counts operations, bytes and launches. The constants
say which fraction of the machine's rates real programs reach. `tools/fit_planner.py` fits them to published training runs
and writes `FITTED`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def _constant(prior: float, low: float, high: float, factor: float = 2.0) -> Any:
    return field(metadata={"prior": prior, "low": low, "high": high, "factor": factor})


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants, for one tile of an IPU, or for a chip without tiles, whose cycles are nanoseconds.

    Before the fit, each is known to a factor of two, and `release_time` to 2 %. The prior of `gateway_seconds` is from
    published rates: updates on more than 64 IPUs take 2 to 4 ms more.

    * `matrix_share` is the fraction of their peak that matrix units reach in a convolution.
    * `narrow_share` is the same fraction for SLIC and vector kernels, which compute convolutions of few channels per group.
    * `exchange_share` is the fraction of the exchange's rate that rearranged tensors reach.
    * `memory_share` is the fraction of the memory's rate that elementwise operations reach.
    * `function_cycles` is the number of cycles that a sigmoid or swish takes for each element.
    * `launch_cycles` is the number of cycles to synchronise, exchange and start one compute set.
    * `update_seconds` is the time that loops and the host add to every update, whatever the IPU's clock.
    * `gateway_seconds` is the time of one step of an all-reduce through gateways.
    * `release_time` is the time on the tiles with an SDK release (2.1 to 2.5), relative to the time with the release before.
    * `proportion_power` is the exponent p: convolutions take (0.6 / memory proportion)^p times as long as with 0.6.
    """

    matrix_share: float = _constant(0.4, 0.1, 0.95)
    narrow_share: float = _constant(0.3, 0.05, 0.95)
    exchange_share: float = _constant(0.5, 0.1, 1.0)
    memory_share: float = _constant(0.33, 0.08, 1.0)
    function_cycles: float = _constant(8.0, 1.0, 20.0)
    launch_cycles: float = _constant(1500.0, 300.0, 10000.0)
    update_seconds: float = _constant(2e-3, 2e-4, 2e-2)
    gateway_seconds: float = _constant(1e-3, 2e-5, 1e-2)
    release_time: float = _constant(0.98, 0.9, 1.0, 1.02)
    proportion_power: float = _constant(0.1, 0.01, 0.5)


NAMES = tuple(each.name for each in fields(Constants))
PRIOR = Constants(**{each.name: each.metadata["prior"] for each in fields(Constants)})
FACTORS = {each.name: each.metadata["factor"] for each in fields(Constants)}
BOUNDS = {each.name: (each.metadata["low"], each.metadata["high"]) for each in fields(Constants)}
GPU = Constants(
    matrix_share=0.95,
    narrow_share=0.1028,
    exchange_share=0.3052,
    memory_share=0.862,
    function_cycles=20,
    launch_cycles=7110,
    update_seconds=0.003294,
    gateway_seconds=0.001,
    release_time=0.98,
    proportion_power=0.1,
)
FITTED = Constants(
    matrix_share=0.593,
    narrow_share=0.3051,
    exchange_share=0.7842,
    memory_share=0.3289,
    function_cycles=8.81,
    launch_cycles=1152,
    update_seconds=0.002885,
    gateway_seconds=0.0009381,
    release_time=0.9653,
    proportion_power=0.08597,
)
