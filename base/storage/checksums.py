"""CRC-32C as TFRecord files store it."""

from __future__ import annotations

import google_crc32c

_MASK_ADDED = 0xA282EAD8


def masked(data: bytes) -> int:
    """Return the masked CRC-32C of `data`."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_ADDED) & 0xFFFFFFFF
