"""Messages of silos' sums over their users: in the open, masked, or by weights that nobody learns;
and their keys.

U users, S silos, A of them taking part, D values; a residue modulo n has w bytes (|n| / 8), a
ciphertext 2w.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from raydpzv.wire.messages import Body
from raydpzv.wire.seeds import CatchUp
from raydpzv.wire.weights import Weights


class Modulus(Body):
    """Begin with new keys; the server's public key n, uint8 [w], or nothing where sums are masked
    alone.
    """

    value: np.ndarray


class AgreementKey(Body):
    """A silo's public X25519 key, uint8 [32]."""

    value: np.ndarray


class AgreementKeys(Body):
    """The public X25519 keys of all silos, uint8 [S, 32]."""

    values: np.ndarray


class SealedSeeds(Body):
    """The silos' common seed, sealed for each silo but the first: uint8 [S - 1, 60]; from the
    others, nothing.
    """

    values: np.ndarray


class SealedSeed(Body):
    """The same for one silo, uint8 [60]; for the first silo, which drew it, nothing."""

    value: np.ndarray


class BlindedCounts(Body):
    """A silo's r_u n_su plus masks modulo n, uint8 [U, w]."""

    values: np.ndarray


class EncryptedInverses(Body):
    """Enc(1 / (r_u N_u)) of a silo's share of the users, uint8 [U / S, 2w]."""

    values: np.ndarray


class ShiftedWeights(Body):
    """Enc(Λ / N_u + a_u) of a silo's share of the users, uint8 [U / S, 2w]."""

    values: np.ndarray


class EncryptedWeights(Body):
    """Enc(Λ / N_u + a_u) of all users, uint8 [U, 2w]: once, where nobody is sampled."""

    values: np.ndarray


class SampledWeights(Body):
    """Enc(κ_u (Λ / N_u + a_u)) and Enc(κ_u) for the round's coins κ_u, uint8 [U, 2w] each."""

    weights: np.ndarray
    coins: np.ndarray


class SampledModel(Weights):
    """The model that silos start from, float32 [d], with the `SampledWeights` of the round, uint8
    [U, 2w] each.
    """

    weights: np.ndarray
    coins: np.ndarray


class SampledCatchUp(CatchUp):
    """What silos missed and the seeds to try, with the `SampledWeights` of the round, uint8 [U, 2w]
    each.
    """

    weights: np.ndarray
    coins: np.ndarray


class AttemptModel(Weights):
    """The model that silos start from in an attempt: its number, int32 [1], and who takes part,
    int32 [A].
    """

    number: np.ndarray
    silos: np.ndarray


class AttemptCatchUp(CatchUp):
    """What silos missed and the seeds to try in an attempt: its number, int32 [1], and who takes
    part, int32 [A].
    """

    number: np.ndarray
    silos: np.ndarray


class SampledAttemptModel(SampledModel):
    """A `SampledModel` of an attempt: its number, int32 [1], and who takes part, int32 [A]."""

    number: np.ndarray
    silos: np.ndarray


class SampledAttemptCatchUp(SampledCatchUp):
    """A `SampledCatchUp` of an attempt: its number, int32 [1], and who takes part, int32 [A]."""

    number: np.ndarray
    silos: np.ndarray


class DroppedOut(Body):
    """Nothing came of the silo in the attempt: what the server knows when it has waited long
    enough. Empty.
    """


class LateUpload(Body):
    """Send what did not come through: the simulator's, for an upload that comes when its attempt is
    given up. Empty.
    """

    metered: ClassVar[bool] = False


class UserSum(Body):
    """A silo's sum over its users in units of the grid, with its share of the noise, int64 [D]."""

    values: np.ndarray


class MaskedSum(Body):
    """A silo's noised sum plus its masks modulo 2^64, uint64 [D]."""

    values: np.ndarray


class PackedSum(Body):
    """A silo's weighted, noised and masked sum, m values to a ciphertext: uint8 [⌈D / m⌉, 2w]."""

    values: np.ndarray


class KeysLost(Body):
    """The silo has no keys of this setting-up, as after its process was lost: set the protocol up
    again. Empty.
    """


SET_UP = (Modulus, AgreementKeys, SealedSeed, EncryptedInverses, EncryptedWeights)
"""What the server sends before the first round."""
