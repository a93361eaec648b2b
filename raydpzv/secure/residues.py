"""Residues: as bytes on the wire, and drawn uniformly."""

# N residues, w bytes each

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

RandomBytes = Callable[[int], bytes]
"""As many random bytes as asked for."""

Residues = npt.NDArray[np.uint8]
"""Residues on the wire: uint8 [N, w], the lowest byte first."""

_SPARE = 17  # bytes more than the limit has: reducing moves the law by less than 2^-128


def width_of(limit: int) -> int:
    """Return the bytes of a residue below the limit, w."""
    return (int(limit) - 1).bit_length() + 7 >> 3


def as_bytes(residues: Iterable[int], width: int) -> Residues:
    """Return residues as bytes, uint8 [N, w]."""
    data = b"".join(int(residue).to_bytes(width, "little") for residue in residues)
    return np.frombuffer(data, np.uint8).reshape(-1, width)


def as_integers(residues: Residues) -> list[int]:
    """Return the residues that these bytes are."""
    return [int.from_bytes(row.tobytes(), "little") for row in residues]


def uniform(limit: int, count: int, source: RandomBytes) -> list[int]:
    """Return draws from {0, ..., limit - 1}, each within 2^-128 of uniform."""
    size = width_of(limit) + _SPARE
    data = source(size * count)
    return [
        int.from_bytes(data[at : at + size], "little") % limit
        for at in range(0, size * count, size)
    ]
