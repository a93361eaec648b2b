"""Randomness addressed by purpose.

A `Key` is the address of a random stream: `Key(seed) / "direction" / client / step`. What is drawn
depends on the address alone, so that order, retries, hosts and machines cannot move a draw. There
is no global generator. Differential-privacy noise is the exception and never comes from here (see
`raydpzv.privacy.mechanisms`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from raydpzv.errors import InputError

PARTY_BITS, STEP_BITS, PERTURBATION_BITS = 22, 32, 10
_PARTIES, _STEPS, _PERTURBATIONS = 1 << PARTY_BITS, 1 << STEP_BITS, 1 << PERTURBATION_BITS
_SEEDS_TOGETHER = 64
SERVER_PARTY = (1 << PARTY_BITS) - 1
"""The server's number as a party of direction seeds: the last one, which no client can have."""


@dataclass(frozen=True)
class Key:
    """The address of a random stream: a run's seed and a path of names and numbers.

    Two different paths give unrelated streams: the path is encoded injectively (type, length,
    content) and hashed with BLAKE2b.
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

    @cached_property
    def direction_words(self) -> tuple[int, int]:
        """The two key words of direction seeds; kept, since every update asks for those of its
        run.
        """
        return _words(self / "direction")

    def generator(self) -> np.random.Generator:
        """Return a numpy generator (Philox, keyed by this address) at the start of its stream."""
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self.digest(16), "little")))


def direction_seed(key: Key, party: int, step: int, perturbation: int = 0) -> int:
    """Return the 64-bit seed of one perturbation's direction.

    The triple is packed into 64 bits and passed through a keyed bijection (splitmix64's finaliser
    between two key words), so that within a run two different triples cannot give the same seed: no
    collision is possible, where hashing would only make it unlikely.
    """
    if not (0 <= party < _PARTIES and 0 <= step < _STEPS and 0 <= perturbation < _PERTURBATIONS):
        raise _no_direction(party, step, perturbation)
    before, after = key.direction_words
    packed = (party << (STEP_BITS + PERTURBATION_BITS)) | (step << PERTURBATION_BITS) | perturbation
    return _splitmix(packed ^ before) ^ after


class DirectionSeeds:
    """`direction_seed` of a run's directions 0..P-1, for the steps of a party one after the other.

    Seeds of many steps are made at once, in a tenth of the time that they take one by one, and kept
    for the block of steps that each party is in.
    """

    def __init__(self, key: Key, perturbations: int) -> None:
        self._words, self._perturbations = key.direction_words, perturbations
        self._blocks: dict[int, tuple[int, npt.NDArray[np.uint64]]] = {}

    def of(self, party: int, step: int) -> npt.NDArray[np.uint64]:
        """Return the seeds of a step's directions, uint64 [P]: a view of what is kept."""
        block, place = divmod(step, _SEEDS_TOGETHER)
        kept = self._blocks.get(party)
        if kept is None or kept[0] != block:
            kept = self._blocks[party] = block, self._made(party, block * _SEEDS_TOGETHER)
        return kept[1][place]

    def _made(self, party: int, first: int) -> npt.NDArray[np.uint64]:
        last = self._perturbations - 1
        if not (0 <= party < _PARTIES and 0 <= first < _STEPS and last < _PERTURBATIONS):
            raise _no_direction(party, first, last)
        steps = np.arange(first, first + _SEEDS_TOGETHER, dtype=np.uint64)[:, None]
        return direction_seeds(
            self._words, party, steps, np.arange(self._perturbations, dtype=np.uint64)
        )


def direction_seeds(
    words: tuple[int, int],
    party: int,
    steps: npt.NDArray[np.uint64],
    perturbations: npt.NDArray[np.uint64],
) -> npt.NDArray[np.uint64]:
    """Return `direction_seed` of many steps and perturbations, given the run's two key words;
    arrays broadcast.
    """
    packed = np.uint64(party << STEP_BITS) | steps
    before, after = (np.uint64(word) for word in words)
    return _splitmix_of((packed << np.uint64(PERTURBATION_BITS) | perturbations) ^ before) ^ after


def _no_direction(party: int, step: int, perturbation: int) -> InputError:
    given = (
        (party, PARTY_BITS, "party"),
        (step, STEP_BITS, "step"),
        (perturbation, PERTURBATION_BITS, "perturbation"),
    )
    value, bits, name = next(limit for limit in given if not 0 <= limit[0] < 1 << limit[1])
    return InputError(f"{name} {value} is outside 0..2^{bits}-1: no direction seed for it")


def step_seed(key: Key, party: int, step: int) -> int:
    """Return the 64-bit seed of a step, of which all its directions follow (`perturbation_seeds`).

    Its lower 10 bits are 0, its upper 54 those of (party, step) after a keyed bijection on 54 bits:
    two different steps of a run cannot have the same seed.
    """
    for value, bits, name in ((party, PARTY_BITS, "party"), (step, STEP_BITS, "step")):
        if not 0 <= value < 1 << bits:
            raise InputError(f"{name} {value} is outside 0..2^{bits}-1: no step seed for it")
    before, after = step_words(key)
    packed = (party << STEP_BITS) | step
    return (_splitmix(packed ^ before, PARTY_BITS + STEP_BITS) ^ after) << PERTURBATION_BITS


def step_words(key: Key) -> tuple[int, int]:
    """Return the two key words of a run's step seeds, of 54 bits."""
    before, after = _words(key / "step")
    return before >> PERTURBATION_BITS, after >> PERTURBATION_BITS


def step_seeds(
    words: tuple[int, int], party: int, steps: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Return `step_seed` of many steps, given the run's two key words."""
    before, after = (np.uint64(word) for word in words)
    packed = np.uint64(party << STEP_BITS) | steps
    return (_splitmix_of(packed ^ before, PARTY_BITS + STEP_BITS) ^ after) << np.uint64(
        PERTURBATION_BITS
    )


def perturbation_seeds(
    steps: npt.ArrayLike, perturbations: npt.ArrayLike
) -> npt.NDArray[np.uint64]:
    """Return the seeds of directions: those with these numbers (0 to 1023) in the steps with these
    seeds.

    Anyone who knows a step's seed knows its directions; no key is needed. A bijection of the step's
    seed, in whose lower 10 bits the number is put: different directions of a run have different
    seeds. Arrays broadcast.
    """
    numbers = np.asarray(perturbations, np.uint64)
    if numbers.size and numbers.max() >> np.uint64(PERTURBATION_BITS):
        raise InputError(
            f"perturbation {numbers.max()} is outside 0..2^{PERTURBATION_BITS}-1: no seed for it"
        )
    return _splitmix_of(np.asarray(steps, np.uint64) | numbers)


def pool_seeds(key: Key, count: int) -> npt.NDArray[np.uint64]:
    """Return the seeds of a run's pool, different ones, uint64 [count], ascending."""
    own = key / "pool"
    found = [direction_seed(own, SERVER_PARTY, number) for number in range(count)]
    return np.sort(np.array(found, np.uint64))


def shifted(secret: Key, seeds: np.ndarray) -> np.ndarray:
    """Return the seeds moved by a bijection that only holders of the secret know, uint64 of the
    same shape.

    DeComFL A.3 (private seed shift). Different seeds stay different.
    """
    before, after = _words(secret)
    moved = [_splitmix(int(seed) ^ before) ^ after for seed in np.ravel(seeds)]
    return np.array(moved, np.uint64).reshape(np.shape(seeds))


@lru_cache(maxsize=16)
def _words(key: Key) -> tuple[int, int]:
    """The two key words of a bijection; kept, since a run asks for those of one key again and
    again.
    """
    words = key.digest(16)
    return int.from_bytes(words[:8], "little"), int.from_bytes(words[8:], "little")


_GOLDEN, _ROUNDS, _LAST_SHIFT = (
    0x9E3779B97F4A7C15,
    ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)),
    31,
)


def _splitmix_of(x: npt.NDArray[np.uint64], bits: int = 64) -> npt.NDArray[np.uint64]:
    """`_splitmix` of many words."""
    mask = np.uint64((1 << bits) - 1)
    x = (x + np.uint64(_GOLDEN)) & mask
    for shift, factor in _ROUNDS:
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) & mask
    return x ^ (x >> np.uint64(_LAST_SHIFT))


def _splitmix(x: int, bits: int = 64) -> int:
    """Splitmix64's finaliser: a bijection on words of so many bits, since its factors are odd."""
    mask = (1 << bits) - 1
    x = (x + _GOLDEN) & mask
    for shift, factor in _ROUNDS:
        x = ((x ^ (x >> shift)) * factor) & mask
    return x ^ (x >> _LAST_SHIFT)
