"""Pairwise masks: what each silo adds to its values, so that their sum over all silos is the
values' own sum.

For silos i < j, i adds the stream of their pair and j subtracts it. Streams are addressed by
purpose, round and attempt; the set of silos that take part is fixed before, and without one of them
nothing cancels.
"""

# N values

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from raydpzv.secure.agreement import derived, keystream
from raydpzv.secure.residues import uniform
from raydpzv.secure.secret import Secret


class Masks(Secret):
    """One silo's masks; keys: shared with each of the others."""

    def __init__(self, silo: int, keys: Mapping[int, bytes]) -> None:
        self._silo, self._keys = silo, keys

    def key(self, other: int, purpose: str) -> bytes:
        """Return the key for another purpose that the silo shares with one other."""
        return derived(self._keys[other], purpose)

    def words(
        self, silos: Sequence[int], count: int, purpose: str, *address: int
    ) -> npt.NDArray[np.uint64]:
        """Return what this silo adds among these silos, modulo 2^64: uint64 [N]."""
        mask = np.zeros(count, np.uint64)
        for sign, key in self._streams(silos, purpose, address):
            stream = np.frombuffer(keystream(key, 8 * count), "<u8")
            mask += stream if sign > 0 else -stream
        return mask

    def residues(
        self, silos: Sequence[int], count: int, modulus: int, purpose: str, *address: int
    ) -> list[int]:
        """Return what this silo adds among these silos, modulo n: N numbers that are not
        reduced.
        """
        masks = [0] * count
        for sign, key in self._streams(silos, purpose, address):
            for i, draw in enumerate(uniform(modulus, count, partial(keystream, key))):
                masks[i] += sign * draw
        return masks

    def _streams(
        self, silos: Sequence[int], purpose: str, address: tuple[int, ...]
    ) -> Iterator[tuple[int, bytes]]:
        """The sign and the stream's key for each of the others."""
        return (
            (1 if other > self._silo else -1, derived(self._keys[other], purpose, *address))
            for other in silos
            if other != self._silo
        )
