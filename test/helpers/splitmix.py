"""SplitMix64 in plain Python, as the reference for draws."""

from __future__ import annotations

_WORD = (1 << 64) - 1


def reference_bits(key: int, *counters: int) -> int:
    """Return bits of the generator, in Python's unbounded integers."""
    state = key
    for counter in counters:
        z = (state + 0x9E3779B97F4A7C15 * (counter + 1)) & _WORD
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
        state = z ^ (z >> 31)
    return state


def reference_below(limit: int, key: int, *counters: int) -> int:
    return (reference_bits(key, *counters) >> 32) * limit >> 32
