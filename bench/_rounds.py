"""Worker side of the protocol of bench/_paired.py: print a description, then answer each line of standard input."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping


def serve(
    work: Callable[[], object], samples: int, also: Mapping[str, Callable[[], float]] | None = None, **about: object
) -> None:
    """Print `about`, then answer lines of standard input until it ends.

    The answer to the line `peak` is the peak memory of the process in MB. For a name in `also`, its function is called, and
    the answer is the result. For any other line, `work` is called, and the answer is its speed in images per second.
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
