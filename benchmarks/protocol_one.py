"""Uldp-FL's Protocol 1 as printed (Kato et al. 2023, Section 4): what `private_weighting.py`
compares with.

Written from the paper, on the same arithmetic, masks and owner's encryption as ours: what differs
is the protocol. One ciphertext for each value, one exponent of full size for each user and value.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np

from raydpzv.secure.agreement import KeyPair
from raydpzv.secure.arithmetic import inverse, powmod, product
from raydpzv.secure.masks import Masks
from raydpzv.secure.paillier import PublicKey, new_key
from raydpzv.secure.residues import uniform

N_MAX, PRECISION = 2000, 1e-10
"""The paper's upper bound on a user's records, and its precision parameter P."""


def encoded(x: float) -> int:
    """Encode of Algorithm 5, before its reduction modulo n."""
    return int(x / PRECISION)


class Server:
    """The server; counts, of step 1 (e), arrive masked."""

    def __init__(self, bits: int, multiple: int) -> None:
        self.key, self._multiple = new_key(bits), multiple
        self._inverses: list[int] = []

    def invert(self, masked: Sequence[Sequence[int]]) -> None:
        """Step 1 (f): B_inv(N_u) from the silos' doubly blinded histograms [S][U]."""
        modulus = self.key.public.modulus
        self._inverses = [
            inverse(sum(of_user) % modulus, modulus) for of_user in zip(*masked, strict=True)
        ]

    def encrypted(self, coins_U: np.ndarray) -> list[int]:
        """Step 2 (a): Enc(B_inv(N_u)) of the users in the sample, Enc(0) of the others."""
        return [
            self.key.encrypt(coin * blinded)
            for coin, blinded in zip(coins_U.astype(int).tolist(), self._inverses, strict=True)
        ]

    def total(self, uploads: Sequence[Sequence[int]]) -> np.ndarray:
        """Step 2 (c): the sum over silos, decrypted and decoded, float64 [D]."""
        opened = [
            self.key.decrypt(self.key.public.joined(*column))
            for column in zip(*uploads, strict=True)
        ]
        return np.array([value / self._multiple * PRECISION for value in opened])


class Silo:
    """A silo with its counts int64 [U], and the r_u that all silos have."""

    def __init__(
        self,
        counts_U: np.ndarray,
        public: PublicKey,
        multiple: int,
        masks: Masks,
        blinds: list[int],
    ) -> None:
        self._counts, self._public, self._multiple = counts_U, public, multiple
        self._masks, self._blinds = masks, blinds

    def histogram(self, silos: Sequence[int]) -> list[int]:
        """Steps 1 (d), (e): r_u n_su plus masks."""
        hiding = self._masks.residues(silos, len(self._counts), self._public.modulus, "counts")
        blinded = zip(self._blinds, self._counts.tolist(), hiding, strict=True)
        return [(blind * count + mask) % self._public.modulus for blind, count, mask in blinded]

    def upload(
        self,
        weights: Sequence[int],
        deltas_UD: np.ndarray,
        noise_D: np.ndarray,
        silos: Sequence[int],
        round: int,
    ) -> list[int]:
        """Steps 2 (b), (c): D ciphertexts of the weighted sum, noised and masked."""
        public = self._public
        masks = self._masks.residues(silos, len(noise_D), public.modulus, "sum", round)
        found = []
        for j, mask in enumerate(masks):
            total = public.bare(encoded(noise_D[j]) * self._multiple + mask)
            for u, weight in enumerate(weights):
                factor = (
                    encoded(deltas_UD[u, j])
                    * int(self._counts[u])
                    * self._blinds[u]
                    * self._multiple
                )
                total = product(
                    total, powmod(weight, factor % public.modulus, public.square), public.square
                )
            found.append(total)
        return found


def set_up(counts_SU: np.ndarray, bits: int, n_max: int = N_MAX) -> tuple[Server, list[Silo]]:
    """Return all parties after step 1; keys are agreed on, and R is sent, as ours are."""
    multiple, silos = math.lcm(*range(1, n_max + 1)), range(len(counts_SU))
    server, pairs = Server(bits, multiple), [KeyPair() for _ in silos]
    public, publics = server.key.public, [pair.public for pair in pairs]
    blinds = uniform(public.modulus, counts_SU.shape[1], os.urandom)
    masks = [Masks(s, pair.pair_keys(s, publics, b"")) for s, pair in enumerate(pairs)]
    parties = [Silo(counts_SU[s], public, multiple, masks[s], blinds) for s in silos]
    server.invert([party.histogram(silos) for party in parties])
    return server, parties
