"""Common parts of all fuzzers: the seed of the day, the number of inputs, kinds of damage, and the checked promise.

The promise: a reader returns, or raises its own type of error with one line. The inputs of a day are the same in every run
and process; FUZZ_SEED=20260131 selects another day.
"""

from __future__ import annotations

import datetime
import os
import random
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

SEED = "FUZZ_SEED"
NUMBERS = (b"-1", b"0", b"1", b"255", b"65536", b"2147483648", b"18446744073709551616", b"1" * 400, b"1e999", b"NaN", b"")
LENGTHS = (0, 1, 2**7 - 1, 2**7, 2**15 - 1, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


def seed() -> int:
    """Return the seed of the day (UTC) as 20260131, or FUZZ_SEED."""
    asked = os.environ.get(SEED)
    return int(asked) if asked else int(datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d"))


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return `data` after one to three kinds of damage."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(ACCIDENTS)(rng, data)
    return data


def hold(
    name: str,
    count: int,
    make: Callable[[random.Random], Any],
    read: Callable[[Any], Any],
    refusal: type[Exception] | tuple[type[Exception], ...],
    memory: int | None = None,
) -> int:
    """Read `count` inputs from `make`; return how many were rejected.

    Each read must return or raise `refusal` with one line, and use no more than `memory` bytes of Python and NumPy if given.
    A broken promise is reported with the seed, and with the number and content of the input.
    """
    refused = 0
    for number in range(count):
        given = make(random.Random(f"{seed()} {name} {number}"))
        if memory is not None:
            tracemalloc.start()
        try:
            refused += _refused(read, given, refusal)
            peak = tracemalloc.get_traced_memory()[1]
            assert memory is None or peak <= memory, f"took {peak / 1e6:.1f} MB, more than {memory / 1e6:.1f}"
        except BaseException as error:  # a time-out too
            shown = repr(given)
            shown = shown if len(shown) < 2000 else f"{shown[:2000]}... ({len(shown)} letters)"
            fault = f"{type(error).__name__}: {error}"[:1000]
            raise AssertionError(f"{name}, {SEED}={seed()}, input {number}: {fault}\n{shown}") from error
        finally:
            tracemalloc.stop()
    return refused


def _refused(read: Callable[[Any], Any], given: Any, refusal: Any) -> bool:
    try:
        read(given)
    except refusal as error:
        said = str(error)
    else:
        return False
    assert said.strip() and "\n" not in said, f"not one line: {said}"
    return True


def _flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return rng.choice((data[:start], data[start:], data[:start] + data[end:]))


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.randbytes(rng.choice((1, 2, 8, 64))) + data[at:]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    end = min(end, start + 64)
    return data[:end] + data[start:end] * rng.choice((1, 2, 16, 1024)) + data[end:]


def _splice(rng: random.Random, data: bytes) -> bytes:
    """Copy a piece over another place."""
    start, end = _span(rng, data)
    at = rng.randint(0, len(data))
    return data[:at] + data[start:end] + data[at + end - start :]


def _zero(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    end = min(end, start + rng.choice((1, 4, 16, 512)))
    return data[:start] + rng.choice((b"\x00", b"\xff")) * (end - start) + data[end:]


def _length(rng: random.Random, data: bytes) -> bytes:
    """Write another number where a length may be."""
    width = rng.choice((1, 2, 4, 8))
    value = rng.choice((*LENGTHS, len(data), len(data) + 1, rng.getrandbits(64))) % 2 ** (8 * width)
    at = rng.randint(0, max(0, len(data) - width))
    return data[:at] + value.to_bytes(width, rng.choice(("little", "big"))) + data[at + width :]


def _digits(rng: random.Random, data: bytes) -> bytes:
    """Replace a number written in digits."""
    found = list(re.finditer(rb"-?\d+", data))
    if not found:
        return _length(rng, data)
    start, end = rng.choice(found).span()
    return data[:start] + rng.choice(NUMBERS) + data[end:]


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, rng.choice((rng.randint(start, len(data)), min(len(data), start + rng.randint(0, 32))))


ACCIDENTS = (_flip, _cut, _insert, _repeat, _splice, _zero, _length, _length, _digits)
