"""The private weighting protocol played to its end by a server and silos in one process, with small
keys.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from raydpzv.keys import Key
from raydpzv.secure import agreement
from raydpzv.secure.attempts import Attempt
from raydpzv.secure.private_server import PrivateServer
from raydpzv.secure.private_silo import PrivateSilo
from raydpzv.secure.set_up import AgreeingSilo, SetUp
from raydpzv.secure.weighting import Weighting
from raydpzv.wire.messages import Body
from raydpzv.wire.secure_sums import PackedSum


@dataclass(frozen=True)
class Parties:
    """Both sides; counts: n_su, int64 [S, U]; messages: of the set-up, (silo, down, up)."""

    weighting: Weighting
    counts: np.ndarray
    server: PrivateServer
    silos: list[PrivateSilo]
    messages: list[tuple[int, Body, Body]]

    def everybody(self, round: int = 1, number: int = 0) -> Attempt:
        return Attempt(round, number, tuple(range(self.weighting.silos)))

    def values(self, silo: int, generator: np.random.Generator) -> np.ndarray:
        """Any integers that fit, for the silo's users: int64 [P, D]."""
        limit = self.weighting.limit
        shape = int((self.counts[silo] > 0).sum()), self.weighting.values
        return generator.integers(-limit, limit, shape, endpoint=True)

    def plain_sum(
        self, values: Sequence[np.ndarray], coins_U: np.ndarray, silos: Sequence[int]
    ) -> list[int]:
        """Σ_s Σ_u κ_u (Λ / N_u) n_su E_su in Python's integers, from all counts: D of them."""
        counts = np.minimum(self.counts, self.weighting.cap)
        found = [0] * self.weighting.values
        for s in silos:
            for i, u in enumerate(np.flatnonzero(counts[s])):
                factor = int(coins_U[u]) * self.weighting.multiple * int(counts[s, u])
                assert factor % int(counts[:, u].sum()) == 0
                for j, value in enumerate(values[s][i].tolist()):
                    found[j] += factor // int(counts[:, u].sum()) * value
        return found


def play(set_up: SetUp, silos: Sequence[AgreeingSilo]) -> list[tuple[int, Body, Body]]:
    """Go through a set-up; returns its messages."""
    told, messages = [], set_up.begin()
    while messages is not None:
        answers = [silo.receive(body) for silo, body in zip(silos, messages, strict=True)]
        told += list(zip(range(len(silos)), messages, answers, strict=True))
        messages = set_up.receive(answers)
    return told


def parties(weighting: Weighting, counts: np.ndarray, *, sampling: bool = False) -> Parties:
    """Return both sides, set up."""
    server = PrivateServer(weighting, sampling=sampling)
    silos = [PrivateSilo(s, weighting, counts[s]) for s in range(weighting.silos)]
    return Parties(weighting, counts, server, silos, play(SetUp(server.phases), silos))


def drawn_counts(silos: int, users: int, most: int, generator: np.random.Generator) -> np.ndarray:
    """Counts from 0 to `most`, at least one a user: int64 [S, U]."""
    counts = generator.integers(0, most, (silos, users), endpoint=True)
    counts[0] += counts.sum(0) == 0
    return counts


def packed(bodies: Sequence[Body]) -> list[PackedSum]:
    found = [body for body in bodies if isinstance(body, PackedSum)]
    assert len(found) == len(bodies)
    return found


def no_dither(size: int) -> bytes:
    return bytes(size)


@contextmanager
def fixed_agreement() -> Iterator[None]:
    """X25519 keys, and so masks, that are the same in every run: for tests of a law."""
    stream = (Key(3) / "agreement").generator()

    class Fixed:
        @staticmethod
        def generate() -> X25519PrivateKey:
            return X25519PrivateKey.from_private_bytes(stream.bytes(32))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "X25519PrivateKey", Fixed)
        yield
