"""Fitted constants of the memory of an IPU. `cnn fit-planner --memory` fits them and writes `MEMORY` and `AGREEING`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def _between(low: float, high: float) -> Any:
    return field(metadata={"bounds": (low, high)})


@dataclass(frozen=True, kw_only=True)
class MemoryConstants:
    """The constants. Published trainings that ran, and those that did not fit, bound them.

    * `code` is the number of bytes of code in every tile for a launch of the forward or backward pass.
    * `code_always` is the number of bytes in every tile for loops, host exchange, collectives and the stacks of threads.
    * `uneven` is the ratio of the fullest tile to the mean, because large tensors do not divide evenly.
    * `temporaries` is the memory for copies, partial sums and gradients of a product, relative to its input, output and
      weights.
    """

    code: float = _between(20.0, 120.0)
    code_always: float = _between(8_000.0, 60_000.0)
    uneven: float = _between(1.0, 1.3)
    temporaries: float = _between(1.0, 12.0)


MEMORY_BOUNDS: dict[str, tuple[float, float]] = {each.name: each.metadata["bounds"] for each in fields(MemoryConstants)}
MEMORY = MemoryConstants(code=64.37, code_always=19910, uneven=1.3, temporaries=1.338)
# These sets also agree with all published facts. Their predictions differ by as much as those of all sets that agree.
AGREEING: tuple[MemoryConstants, ...] = (
    MemoryConstants(code=76.96, code_always=16470, uneven=1.22, temporaries=1.123),
    MemoryConstants(code=60.16, code_always=38930, uneven=1.3, temporaries=1.792),
    MemoryConstants(code=59.05, code_always=9856, uneven=1.285, temporaries=1.442),
    MemoryConstants(code=62.05, code_always=16410, uneven=1.242, temporaries=1.293),
    MemoryConstants(code=51.96, code_always=57020, uneven=1.251, temporaries=1.452),
    MemoryConstants(code=72.69, code_always=17710, uneven=1.3, temporaries=1.341),
    MemoryConstants(code=57.95, code_always=44930, uneven=1.3, temporaries=1.079),
    MemoryConstants(code=58.73, code_always=13280, uneven=1.3, temporaries=1.051),
)
