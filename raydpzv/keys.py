"""Randomness addressed by purpose.

A `Key` is the address of a random stream: `Key(seed) / "direction" / client / step`. What is drawn depends on
the address alone, so that order, retries, hosts and machines cannot move a draw. There is no global generator.
Differential-privacy noise is the exception and never comes from here (see `raydpzv.privacy.mechanisms`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from raydpzv.errors import InputError

_MASK = (1 << 64) - 1
PARTY_BITS, STEP_BITS, PERTURBATION_BITS = 22, 32, 10
SERVER_PARTY = (1 << PARTY_BITS) - 1
"""The server's number as a party of direction seeds: the last one, which no client can have."""


@dataclass(frozen=True)
class Key:
    """The address of a random stream: a run's seed and a path of names and numbers.

    Two different paths give unrelated streams: the path is encoded injectively (type, length, content) and
    hashed with BLAKE2b.
    """

    seed: int
    path: tuple[str | int, ...] = ()

    def __truediv__(self, part: str | int) -> Key:
        if isinstance(part, bool) or not isinstance(part, str | int | np.integer):
            raise TypeError(f"a key's path has names and whole numbers, not {part!r}")
        return Key(self.seed, (*self.path, part if isinstance(part, str) else int(part)))

    def digest(self, size: int = 16) -> bytes:
        """Return `size` bytes (at most 64) that only this address gives."""
        state = hashlib.blake2b(digest_size=size, person=b"raydpzv key 1")
        for part in (self.seed, *self.path):
            data = part.encode() if isinstance(part, str) else str(part).encode()
            tag = b"s" if isinstance(part, str) else b"i"
            state.update(tag + len(data).to_bytes(8, "little") + data)
        return state.digest()

    def seed64(self) -> int:
        """Return a 64-bit seed for the direction generator."""
        return int.from_bytes(self.digest(8), "little")

    def generator(self) -> np.random.Generator:
        """Return a numpy generator (Philox, keyed by this address) at the start of its stream."""
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self.digest(16), "little")))


def direction_seed(key: Key, party: int, step: int, perturbation: int = 0) -> int:
    """Return the 64-bit seed of one perturbation's direction.

    The triple is packed into 64 bits and passed through a keyed bijection (splitmix64's finaliser between two
    key words), so that within a run two different triples cannot give the same seed: no collision is possible,
    where hashing would only make it unlikely.
    """
    for value, bits, name in (
        (party, PARTY_BITS, "party"),
        (step, STEP_BITS, "step"),
        (perturbation, PERTURBATION_BITS, "perturbation"),
    ):
        if not 0 <= value < 1 << bits:
            raise InputError(f"{name} {value} is outside 0..2^{bits}-1: no direction seed for it")
    before, after = _words(key / "direction")
    packed = (party << (STEP_BITS + PERTURBATION_BITS)) | (step << PERTURBATION_BITS) | perturbation
    return _splitmix(packed ^ before) ^ after


def shifted(secret: Key, seeds: np.ndarray) -> np.ndarray:
    """Return the seeds moved by a bijection that only holders of the secret know, uint64 of the same shape.

    DeComFL A.3 (private seed shift). Different seeds stay different.
    """
    before, after = _words(secret)
    moved = [_splitmix(int(seed) ^ before) ^ after for seed in np.ravel(seeds)]
    return np.array(moved, np.uint64).reshape(np.shape(seeds))


@lru_cache(maxsize=16)
def _words(key: Key) -> tuple[int, int]:
    """The two key words of a bijection; kept, since a run asks for those of one key again and again."""
    words = key.digest(16)
    return int.from_bytes(words[:8], "little"), int.from_bytes(words[8:], "little")


def _splitmix(x: int) -> int:
    """Splitmix64's finaliser: a bijection on 64-bit words."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
