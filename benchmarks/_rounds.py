"""A worker's side of the talk with benchmarks/_paired.py: its name, then an answer to each line of standard input."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping


def serve(
    work: Callable[[], object], samples: int, also: Mapping[str, Callable[[], float]] | None = None, **about: object
) -> None:
    """Prints its name, then answers until standard input ends: `peak` with the process' peak memory in MB, the names of
    `also` with what they give, and any other line with the samples a second of one round of `work`."""
    _say(**about)
    asked = {"peak": lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, **(also or {})}
    for line in map(str.strip, sys.stdin):
        if line in asked:
            _say(**{line: asked[line]()})
            continue
        started = time.perf_counter()
        work()
        _say(speed=samples / (time.perf_counter() - started))


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)
