"""The worker's side of the protocol of benchmarks/_paired.py: describe yourself, then answer each line of standard input."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping


def serve(
    work: Callable[[], object], samples: int, also: Mapping[str, Callable[[], float]] | None = None, **about: object
) -> None:
    """Print `about`, then answer until standard input ends.

    The answer to `peak` is the peak memory of the process in MB. The answer to a name in `also` is its result.
    Any other line runs `work` once and gets the samples per second.
    """
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
