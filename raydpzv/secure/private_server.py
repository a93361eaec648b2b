"""The server's side of the private weighting protocol: message in, message out
(docs/methods/private_weighting.md).

It owns the Paillier key and opens, in each round, the noised weighted sum over all silos. Users'
totals it sees blinded.
"""

# U users, S silos, D values

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raydpzv.errors import RunError
from raydpzv.secure.arithmetic import inverse
from raydpzv.secure.paillier import new_key
from raydpzv.secure.residues import Residues, as_bytes, as_integers
from raydpzv.secure.secret import Secret
from raydpzv.secure.set_up import Phases, all_of, relayed
from raydpzv.secure.weighting import Weighting
from raydpzv.wire.messages import Acknowledged
from raydpzv.wire.secure_sums import (
    BlindedCounts,
    EncryptedInverses,
    EncryptedWeights,
    Modulus,
    PackedSum,
    SampledWeights,
    SealedSeed,
    SealedSeeds,
    ShiftedWeights,
)


class PrivateServer(Secret):
    """Sets the protocol up and opens sums. sampling: users are sampled each round, and silos must
    not see who.
    """

    def __init__(self, weighting: Weighting, *, sampling: bool = False) -> None:
        self._weighting, self._sampling = weighting, sampling
        self._packing = weighting.packing
        self._key = new_key(weighting.key_bits)
        self._shifted: list[int] = []

    def phases(self) -> Phases:
        """Return the phases of a set-up: four messages to each silo, five where nobody is
        sampled.
        """
        silos, public = self._weighting.silos, self._key.public
        modulus = Modulus(as_bytes([public.modulus], public.width)[0])
        keys = yield [modulus] * silos
        seeds = yield [relayed(keys)] * silos
        sealed = all_of(SealedSeeds, seeds)[0].values
        counts = yield [SealedSeed(seed) for seed in (np.zeros(0, np.uint8), *sealed)]
        inverses = self._inverses(all_of(BlindedCounts, counts))
        shares = [self._weighting.share(silo) for silo in range(silos)]
        shifted = yield [
            EncryptedInverses(self._encrypted([inverses[u] for u in share])) for share in shares
        ]
        self._shifted = [0] * self._weighting.users
        for share, body in zip(shares, all_of(ShiftedWeights, shifted), strict=True):
            for u, ciphertext in zip(share, as_integers(body.values), strict=True):
                self._shifted[u] = self._key.decrypt(ciphertext)
        if not self._sampling:
            done = yield [EncryptedWeights(self._encrypted(self._shifted))] * silos
            all_of(Acknowledged, done)

    def sampled(self, coins_U: npt.NDArray[np.bool_]) -> SampledWeights:
        """Return the round's weights and coins, encrypted; coins: who is in, bool [U], known to the
        server alone.
        """
        coins = [int(coin) for coin in coins_U.tolist()]
        weights = [coin * shifted for coin, shifted in zip(coins, self._shifted, strict=True)]
        return SampledWeights(self._encrypted(weights), self._encrypted(coins))

    def total(self, sums: Sequence[PackedSum]) -> npt.NDArray[np.float64]:
        """Return the noised weighted sum of one attempt's silos, in units of C': float64 [D]."""
        return self._weighting.decoded(self.opened(sums), len(sums))

    def opened(self, sums: Sequence[PackedSum]) -> list[int]:
        """Return the integers that the server opens: Σ_s Σ_u (Λ / N_u) n_su E_su + Λ g_s + v_s, D
        of them.
        """
        public = self._key.public
        columns = zip(*(as_integers(packed.values) for packed in sums), strict=True)
        plaintexts = [self._key.decrypt(public.joined(*column)) for column in columns]
        return self._packing.unpacked(plaintexts, self._weighting.values)

    def _inverses(self, counts: Sequence[BlindedCounts]) -> list[int]:
        """1 / (r_u N_u) mod n of all users."""
        modulus, found = self._key.public.modulus, []
        for u, masked in enumerate(
            zip(*(as_integers(body.values) for body in counts), strict=True)
        ):
            blinded = sum(masked) % modulus
            if not blinded:
                raise RunError(
                    f"user {u} has no records in any silo: wanted a list of users who have some; "
                    "leave it out"
                )
            found.append(inverse(blinded, modulus))
        return found

    def _encrypted(self, plaintexts: Sequence[int]) -> Residues:
        return as_bytes(
            [self._key.encrypt(plain) for plain in plaintexts], self._key.public.ciphertext_width
        )
