from collections.abc import Iterable

import numpy as np
import pytest

from raydpzv.errors import RunError
from raydpzv.keys import Key
from raydpzv.secure.paillier import PublicKey
from raydpzv.secure.private_silo import PrivateSilo
from raydpzv.secure.residues import as_integers
from raydpzv.secure.weighting import Weighting
from raydpzv.wire.secure_sums import KeysLost, PackedSum
from tests.helpers.private_weights import (
    Parties,
    drawn_counts,
    fixed_agreement,
    no_dither,
    packed,
    parties,
)

SMALL = Weighting(silos=3, users=5, cap=3, key_bits=256, value_bits=8, values=7, multiplier=2.0)


def small(*, sampling: bool = False) -> Parties:
    return parties(SMALL, drawn_counts(3, 5, 4, Key(2).generator()), sampling=sampling)


def zeros(played: Parties, silo: int, round: int) -> PackedSum:
    """A round's upload of a silo that has nothing but zeros and no noise."""
    nothing = np.zeros_like(played.values(silo, Key(0).generator()))
    noise = np.zeros(SMALL.values, np.int64)
    (found,) = packed(
        [played.silos[silo].upload([nothing], noise, played.everybody(round), dither=no_dither)]
    )
    return found


def shown(played: Parties, upload: PackedSum) -> list[int]:
    """What the owner of the key reads of a ciphertext's randomness: c mod n is ρ^n mod n, and 1
    where there is none.
    """
    return [c % int(played.server._key.public.modulus) for c in as_integers(upload.values)]


def test_a_value_that_is_zero_for_all_users_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    played = small()
    assert 1 not in shown(played, zeros(played, 0, 1))
    monkeypatch.setattr(
        PublicKey, "zero", lambda self: 1
    )  # the control: nothing fresh on the ciphertexts
    assert set(shown(played, zeros(played, 0, 2))) == {1}
    values = played.values(0, Key(0).generator())
    other = played.silos[0].upload(
        [values], np.zeros(7, np.int64), played.everybody(3), dither=no_dither
    )
    assert 1 not in shown(played, packed([other])[0])


def opened_alone(played: Parties, rounds: Iterable[int]) -> np.ndarray:
    """What the server decrypts of one silo, as shares of n from -1/2 to 1/2."""
    key = played.server._key
    found = [key.decrypt(c) for r in rounds for c in as_integers(zeros(played, 1, r).values)]
    return np.array([plain / int(key.public.modulus) for plain in found])


def distance(shares: np.ndarray) -> float:
    """Kolmogorov's distance to the uniform law on (-1/2, 1/2), times √N: above 1.95 once in a
    thousand draws.
    """
    steps = np.arange(len(shares)) / len(shares) - 0.5
    return float(np.abs(np.sort(shares) - steps).max() * np.sqrt(len(shares)))


def test_what_the_server_opens_of_one_silo_is_uniform() -> None:
    with fixed_agreement():
        played = small()
    assert distance(opened_alone(played, range(1, 301))) < 1.95


def test_the_control_shows_what_is_not_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    played = small()
    masks = played.silos[1]._masks
    assert masks is not None
    monkeypatch.setattr(masks, "residues", lambda silos, count, *address: [0] * count)
    assert distance(opened_alone(played, range(1, 51))) > 3


def test_it_says_what_is_missing() -> None:
    played, alone = small(), PrivateSilo(0, SMALL, np.ones(5, np.int64))
    values, noise = played.values(0, Key(1).generator()), np.zeros(7, np.int64)
    assert isinstance(alone.upload([values], noise, played.everybody()), KeysLost)
    with pytest.raises(
        RunError, match=f"has {len(values)} users and got values of {len(values) - 1}"
    ):
        played.silos[0].upload([values[1:]], noise, played.everybody(1))
    with pytest.raises(RunError, match="wanted values within ±255"):
        played.silos[0].upload([values + 512], noise, played.everybody(2))
    with pytest.raises(RunError, match="wanted the round's sampled ones"):
        small(sampling=True).silos[0].upload([values], noise, played.everybody(3))
    with pytest.raises(RunError, match="begin another attempt"):
        played.silos[0].upload([values], noise, played.everybody(2))
