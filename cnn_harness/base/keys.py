"""Keys of random draws, as pure functions of a seed and a purpose, without TensorFlow."""

from __future__ import annotations

import hashlib


def key(seed: int, what: str) -> int:
    """Return the 64-bit key for a seed and a purpose, such as "data/flip" or "all/Top/dropout"."""
    digest = hashlib.blake2b(f"{seed}|{what}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def fraction(seed: int, what: str) -> float:
    """Return a random number in [0, 1), a multiple of 2^-53, for a seed and a purpose."""
    return (key(seed, what) >> 11) * 2.0**-53
