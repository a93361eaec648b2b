"""A silo's side of the private weighting protocol: message in, message out
(docs/methods/private_weighting.md).

It knows its own counts, the silos' common seed R and what follows from it: for every user u a unit
r_u and an integer a_u that blind the user's total towards the server. It never sees a total or a
weight.
"""

# U users, P pairs of this silo, D values

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial

import numpy as np
import numpy.typing as npt

from raydpzv.errors import RunError
from raydpzv.secure.agreement import KEY_BYTES, SEALED_BYTES, derived, keystream, seal, unseal
from raydpzv.secure.arithmetic import inverse, powmod, product
from raydpzv.secure.attempts import Attempt
from raydpzv.secure.masks import Masks
from raydpzv.secure.multi_exponentiation import Bases, OddPowers
from raydpzv.secure.paillier import PublicKey
from raydpzv.secure.residues import RandomBytes, Residues, as_bytes, as_integers, uniform
from raydpzv.secure.secret import Secret
from raydpzv.secure.set_up import AgreeingSilo, Answers, all_of
from raydpzv.secure.weighting import Weighting
from raydpzv.wire.messages import Acknowledged
from raydpzv.wire.secure_sums import (
    BlindedCounts,
    EncryptedInverses,
    EncryptedWeights,
    KeysLost,
    Modulus,
    PackedSum,
    SampledWeights,
    SealedSeed,
    SealedSeeds,
    ShiftedWeights,
)

Integers = npt.NDArray[np.int64]

DEALER = 0
"""The silo that draws the seed R for all."""


class PrivateSilo(AgreeingSilo):
    """A silo whose pairs are weighted by counts that it alone knows.

    counts: its records of each user, int64 [U]; those above the cap count as the cap.
    """

    def __init__(self, silo: int, weighting: Weighting, counts_U: Integers) -> None:
        super().__init__(silo, weighting.run)
        self._weighting = weighting
        self._counts = np.minimum(counts_U, weighting.cap)
        self._blinded: _Blinded | None = None

    def upload(
        self,
        values: Iterable[Integers],
        noise_D: Integers,
        attempt: Attempt,
        *,
        sampled: SampledWeights | None = None,
        dither: RandomBytes = os.urandom,
    ) -> PackedSum | KeysLost:
        """Return the silo's sum Σ_u (Λ / N_u) n_su E_su, encrypted, noised and masked.

        values: E, int64 [P, D] of the silo's users in ascending order, in blocks of any number of
        them; noise: g, the silo's share for this attempt, int64 [D]; sampled: the round's coins,
        where users are sampled; dither: source of the integers below Λ that are added to Λ g.
        Raises RunError for values of too few users, or outside ±C'.
        """
        masks = self._masks_for(attempt)
        if masks is None or self._blinded is None:
            return KeysLost()
        key, packing, multiple = (
            self._blinded.key,
            self._weighting.packing,
            self._weighting.multiple,
        )
        sums = self._weighted(values, self._blinded.weights(sampled), len(noise_D))
        dithers = uniform(multiple, len(noise_D), dither)
        noise = packing.packed(
            [multiple * g + v for g, v in zip(noise_D.tolist(), dithers, strict=True)]
        )
        hiding = masks.residues(
            attempt.silos, len(sums), key.modulus, "sum", attempt.round, attempt.number
        )
        return PackedSum(
            as_bytes(
                [
                    key.joined(total, key.bare(plain + mask), key.zero())
                    for total, plain, mask in zip(sums, noise, hiding, strict=True)
                ],
                key.ciphertext_width,
            )
        )

    def _weighted(self, values: Iterable[Integers], weights: Bases, count: int) -> list[int]:
        """Ciphertexts of the silo's own packed sums, with nothing yet to hide how they came
        about.
        """
        packing, bits = (
            self._weighting.packing,
            (self._weighting.cap * self._weighting.limit).bit_length(),
        )
        counts_P = self._counts[self._counts > 0]
        slices = packing.slices(count)
        sums, start = [1] * len(slices), 0
        for values_BD in values:
            block = slice(start, start + len(values_BD))
            if np.abs(values_BD).max(initial=0) > self._weighting.limit:
                raise RunError(
                    f"silo {self._silo} wanted values within ±{self._weighting.limit} and got "
                    "larger ones, which would run into one another: clip them"
                )
            powers = OddPowers(weights[block], bits, count)
            weighted_BD = counts_P[block, None] * values_BD
            for i, columns in enumerate(slices):
                power = powers.product(weighted_BD[:, columns], packing.slot)
                sums[i] = product(sums[i], power, weights.modulus)
            start = block.stop
        if start != len(counts_P):
            raise RunError(
                f"silo {self._silo} has {len(counts_P)} users and got values of {start}: wanted a "
                "row for each"
            )
        return sums

    def _set_up(self, begin: Modulus) -> Answers:
        self._blinded = None
        key = PublicKey(*as_integers(begin.value[None]))
        masks = yield from self._agreed()
        seed = os.urandom(KEY_BYTES)
        given = yield SealedSeeds(self._sealed(seed, masks))
        (sealed,) = all_of(SealedSeed, [given])
        if self._silo != DEALER:
            seed = unseal(masks.key(DEALER, "seed"), sealed.value.tobytes())
        blinded = _Blinded(key, seed, self._weighting, np.flatnonzero(self._counts))
        given = yield BlindedCounts(blinded.counts(self._counts, masks))
        (inverses,) = all_of(EncryptedInverses, [given])
        self._masks, self._blinded = masks, blinded
        given = yield ShiftedWeights(
            blinded.shifted(inverses.values, self._weighting.share(self._silo))
        )
        (weights,) = all_of(EncryptedWeights, [given])
        blinded.store(weights)
        yield Acknowledged()

    def _sealed(self, seed: bytes, masks: Masks) -> Residues:
        """The seed for each silo but the dealer, uint8 [S - 1, 60]; nothing from the others."""
        others = range(1, self._weighting.silos) if self._silo == DEALER else ()
        data = b"".join(seal(masks.key(other, "seed"), seed) for other in others)
        return np.frombuffer(data, np.uint8).reshape(-1, SEALED_BYTES)


class _Blinded(Secret):
    """What a silo does to users' totals that it must not see, and that the server must see blinded
    alone.

    r_u, uniform modulo n, and a_u, uniform in [0, 2^(|Λ| + 128)), follow from the seed and are the
    same in all silos.
    users: the silo's own, int64 [P].
    """

    def __init__(
        self, key: PublicKey, seed: bytes, weighting: Weighting, users_P: Integers
    ) -> None:
        def stream(purpose: str) -> RandomBytes:
            return partial(keystream, derived(seed, purpose))

        self.key, self._weighting, self._users = key, weighting, users_P
        self._units = uniform(key.modulus, weighting.users, stream("unit"))
        self._shifts = uniform(weighting.shift_limit, weighting.users, stream("shift"))
        self._weights: Bases | None = None

    def counts(self, counts_U: Integers, masks: Masks) -> Residues:
        """Return r_u n_su plus masks, modulo n: uint8 [U, w]."""
        key = self.key
        hiding = masks.residues(range(self._weighting.silos), len(counts_U), key.modulus, "counts")
        blinded = zip(self._units, counts_U.tolist(), hiding, strict=True)
        return as_bytes(
            [(unit * count + mask) % key.modulus for unit, count, mask in blinded], key.width
        )

    def shifted(self, inverses: Residues, share: range) -> Residues:
        """Return Enc(Λ / N_u + a_u) of a share of the users, uint8 [U / S, 2w], from their Enc(1 /
        (r_u N_u)).
        """
        key = self.key
        found = []
        for u, ciphertext in zip(share, as_integers(inverses), strict=True):
            factor = self._units[u] * self._weighting.multiple % key.modulus
            weight = powmod(ciphertext, factor, key.square)
            found.append(key.joined(weight, key.bare(self._shifts[u]), key.zero()))
        return as_bytes(found, key.ciphertext_width)

    def store(self, sent: EncryptedWeights) -> None:
        """Take the weights that count in every round."""
        key, own = (
            self.key,
            zip(as_integers(sent.values[self._users]), self._own_shifts(), strict=True),
        )
        self._weights = Bases.of(
            [key.joined(weight, key.bare(-shift)) for weight, shift in own], key.square
        )

    def weights(self, sampled: SampledWeights | None) -> Bases:
        """Return Enc(Λ / N_u) of the silo's users, of those whom the round's coins leave out
        Enc(0).
        """
        if sampled is None:
            if self._weights is None:
                raise RunError(
                    "no weights were sent at the set-up: wanted the round's sampled ones"
                )
            return self._weights
        key = self.key
        weights, coins = (
            as_integers(sent[self._users]) for sent in (sampled.weights, sampled.coins)
        )
        found = [
            key.joined(weight, powmod(inverse(coin, key.square), shift, key.square))
            for weight, coin, shift in zip(weights, coins, self._own_shifts(), strict=True)
        ]
        return Bases.of(found, key.square)

    def _own_shifts(self) -> list[int]:
        return [self._shifts[u] for u in self._users.tolist()]
