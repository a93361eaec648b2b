"""Uniform scale compression: numbers as levels of b bits, spaced evenly from the smallest number to the largest.

Source: VFL-CZOFO (Wang et al. 2024), which compresses uploads and answers to 2, 4 or 8 bits a number so. A number goes
to the nearest level, half a step away at most. Deterministic and biased, unlike FedCom's quantiser
(`raydpzv.methods.horizontal.compression.Quantised`), whose coins make its mean right and need an address.
"""

# c numbers, b bits for each

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_LIMITS = 8
"""Bytes of the two limits, smallest and largest number as float32."""


def compressed_bytes(count: int, bits: int | None) -> int:
    """Return the bytes of so many numbers: ⌈cb / 8⌉ + 8; 4c for float32 (bits None)."""
    return 4 * count if bits is None else -(-count * bits // 8) + _LIMITS


def compress(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the packed levels, uint8 [⌈cb / 8⌉], and the limits, float32 [2], of float32 numbers of any shape.

    Numbers of which one is not finite travel as limits of NaN.
    """
    limits = np.zeros(2, np.float32)
    if values.size:
        limits[:] = values.min(), values.max()
    levels, (low, high) = np.zeros(values.size, np.int64), limits.astype(np.float64)
    if not np.isfinite(limits).all():
        limits[:] = np.nan
    elif high > low:
        share = (values.ravel().astype(np.float64) - low) / (high - low)
        levels = np.rint(share * _top(bits)).astype(np.int64)
    bits_cb = (levels[:, None] >> np.arange(bits)) & 1
    return np.packbits(bits_cb.astype(np.uint8), bitorder="little"), limits


def decompress(packed: np.ndarray, limits: np.ndarray, bits: int, shape: Sequence[int]) -> np.ndarray:
    """Return the numbers that the levels stand for, float32 of this shape. ValueError: levels of another count."""
    count = math.prod(shape)
    if len(packed) != -(-count * bits // 8):
        raise ValueError(f"wanted {count} levels of {bits} bits, got {len(packed)} bytes")
    bits_cb = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    levels = (bits_cb.astype(np.int64) << np.arange(bits)).sum(1)
    low, high = limits.astype(np.float64)
    return (low + levels * ((high - low) / _top(bits))).astype(np.float32).reshape(shape)


def _top(bits: int) -> int:
    """The highest level."""
    return (1 << bits) - 1
