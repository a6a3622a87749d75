"""CRC-32C as TFRecord files store it (masked): of one payload, by a library or in numpy, or of many short rows at once.

A CRC is linear: a byte's share depends on its value and on its distance from the end alone. So blocks of bytes are
looked up in one table by place and value, and the blocks' results are merged in pairs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_CASTAGNOLI = 0x82F63B78  # the reflected polynomial of CRC-32C
_ALL_ONES = 0xFFFFFFFF  # the register before the first byte, and the mask that inverts the last one
_MASK_ADDED = 0xA282EAD8
_BLOCK = 512  # the table by place and value is half a megabyte: the processor's cache holds it
_TOGETHER = 2048  # blocks looked up in one call, whose indices take eight bytes each


try:
    import google_crc32c
except ImportError:  # slower without it
    google_crc32c = None


def masked(data: bytes | np.ndarray) -> int:
    """The masked CRC-32C of `data`."""
    if google_crc32c is None:
        return masked_in_numpy(data)
    return _mask_one(google_crc32c.value(data))


def masked_in_numpy(data: bytes | np.ndarray) -> int:
    """Return the same as `masked`, without a library made for it."""
    content = np.frombuffer(data, np.uint8)
    if len(content) < _BLOCK:
        return int(masked_rows(content[None])[0])
    blocks = np.zeros((-(-len(content) // _BLOCK), _BLOCK), np.uint8)  # zeros in front of the first byte add nothing
    flat = blocks.reshape(-1)
    flat[-len(content) :] = content
    flat[len(flat) - len(content) :][:4] ^= 0xFF  # the register's ones, shifted into the first four bytes
    crc = np.concatenate([_of_blocks(blocks[i : i + _TOGETHER]) for i in range(0, len(blocks), _TOGETHER)])
    level = 0
    while len(crc) > 1:
        if len(crc) % 2:
            crc = np.concatenate([np.zeros(1, np.uint32), crc])
        crc = _shifted(crc[0::2], _shift_tables(level)) ^ crc[1::2]
        level += 1
    return int(_mask(crc)[0])


def masked_rows(rows: np.ndarray) -> np.ndarray:
    """The masked CRC-32C of every row of bytes [n, length]; quick for short rows."""
    table = _byte_table()
    crc = np.full(len(rows), _ALL_ONES, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    return _mask(crc)


def masked_header(eight: bytes) -> int:
    """Return the same as `masked`, in plain Python: numpy's calls take longer than so few bytes."""
    table, crc = _byte_values(), _ALL_ONES
    for byte in eight:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return _mask_one(crc ^ _ALL_ONES)


def _mask_one(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_ADDED) & _ALL_ONES


def _of_blocks(blocks: np.ndarray) -> np.ndarray:
    """The plain CRC of every block, from an empty register."""
    return np.bitwise_xor.reduce(_place_table().take(blocks + np.arange(0, 256 * _BLOCK, 256)), axis=1)


def _mask(crc: np.ndarray) -> np.ndarray:
    crc = ~crc
    return ((crc >> 15) | (crc << 17)) + np.uint32(_MASK_ADDED)


def _shifted(crc: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """The CRC after as many zero bytes as the tables stand for."""
    return tables[0][crc & 0xFF] ^ tables[1][crc >> 8 & 0xFF] ^ tables[2][crc >> 16 & 0xFF] ^ tables[3][crc >> 24]


@lru_cache(maxsize=1)
def _byte_table() -> np.ndarray:
    """The register after each value of a byte, from an empty one: uint32 [256]."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_CASTAGNOLI), table >> 1).astype(np.uint32)
    return table


@lru_cache(maxsize=1)
def _byte_values() -> tuple[int, ...]:
    return tuple(_byte_table().tolist())


@lru_cache(maxsize=1)
def _place_table() -> np.ndarray:
    """The term of value b at place i of a block, at index 256 * i + b."""
    rows = [_byte_table()]
    for _ in range(_BLOCK - 1):
        rows.append(_after_a_zero(rows[-1]))
    return np.concatenate(rows[::-1])


@lru_cache(maxsize=64)
def _shift_tables(level: int) -> np.ndarray:
    """The register's four bytes [4, 256] after 2^level blocks of zeros."""
    values = np.arange(256, dtype=np.uint32)
    tables = np.stack([values << np.uint32(8 * k) for k in range(4)])
    if level:
        half = _shift_tables(level - 1)
        return _shifted(_shifted(tables, half), half)
    for _ in range(_BLOCK):
        tables = _after_a_zero(tables)
    return tables


def _after_a_zero(crc: np.ndarray) -> np.ndarray:
    return _byte_table()[crc & 0xFF] ^ (crc >> 8)
