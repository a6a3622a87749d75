"""The keys of random draws: 64 bits as a pure function of a seed and a purpose. No TensorFlow."""

from __future__ import annotations

import hashlib


def key(seed: int, what: str) -> int:
    """A 64-bit key for one purpose ("data/flip", "all/Top/dropout") under one seed."""
    digest = hashlib.blake2b(f"{seed}|{what}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def fraction(seed: int, what: str) -> float:
    """A number in [0, 1) for one purpose, a multiple of 2^-53."""
    return (key(seed, what) >> 11) * 2.0**-53
