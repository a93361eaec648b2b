"""Sums over users: how far one user moves them, and that nobody else's integers know of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from raydpzv.methods.horizontal.uldp_zo import UldpZoConfig
from raydpzv.methods.horizontal.user_sums import UserSums, users_coins, weighted
from tests.helpers import seed_parties as toy
from tests.helpers import uldp_zo_parties as small

D = 16
WEIGHTS = {
    "uniform": small.config(weights="uniform"),
    "records": small.config(),
    "capped": small.config(count_cap=2),
}


def vectors(silo: int) -> np.ndarray:
    """Every pair of a silo pulls the same way with all it has: the worst that the clip lets through."""
    return np.full((len(small.PARTS.pairs(silo)), D), 1e6, np.float32)


def moved(sums: UserSums, user: int) -> float:
    """How far the sum over all silos moves if a user's terms are zero, as an exact Euclidean norm."""
    total = np.zeros(D, np.int64)
    for silo in range(small.SILOS):
        places = np.arange(len(small.PARTS.pairs(silo)))
        kept = places[small.PARTS.pairs(silo).users != user]
        drawn = vectors(silo)
        total += sums.summed(silo, places, drawn)[0] - sums.summed(silo, kept, drawn[kept])[0]
    return math.sqrt(sum(int(x) ** 2 for x in total))


@pytest.mark.parametrize("name", WEIGHTS)
def test_no_user_moves_a_release_by_more_than_its_bound(name: str) -> None:
    how = WEIGHTS[name]
    noise = small.noise(how)
    found = [moved(UserSums(small.PARTS, how, noise), user) for user in range(small.USERS)]
    assert max(found) <= noise.release.sensitivity
    assert max(found) > 0.99 * noise.release.sensitivity  # a user with records everywhere reaches it


def test_weights_above_one_and_a_clip_of_each_scalar_break_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controls."""
    how = small.config()
    noise = small.noise(how)
    sums = UserSums(small.PARTS, how, noise)
    sums._totals_U = sums._totals_U - 1
    assert max(moved(sums, user) for user in range(small.USERS)) > noise.release.sensitivity
    limit, clip = noise.release.limit, noise.release.clip
    monkeypatch.setattr(
        "raydpzv.methods.horizontal.user_sums.user_integers",
        lambda v, **_: ((np.clip(v, -clip, clip) * limit / clip).astype(np.int64), 0),
    )
    sums = UserSums(small.PARTS, how, noise)
    largest = max(moved(sums, user) for user in range(small.USERS))
    assert largest > 0.99 * math.sqrt(D) * noise.release.sensitivity


def test_weights_are_those_of_the_records_and_cut_towards_zero() -> None:
    integers = np.array([[7, -7], [10, -1]])
    found = weighted(integers, np.array([2, 1]), np.array([3, 4]))
    assert found.tolist() == [[4, -4], [2, 0]]
    sums = UserSums(small.PARTS, small.config(count_cap=2), small.noise(small.config()))
    counts_SU = np.minimum(small.PARTS.counts(), 2)
    assert sums._totals_U.tolist() == counts_SU.sum(0).tolist()


def test_a_users_coin_is_the_same_in_all_silos_and_another_in_each_release() -> None:
    how = UldpZoConfig(sampling=0.4)
    noise = small.noise(how)
    sums = UserSums(small.PARTS, how, noise)
    for release in range(20):
        coins_U = users_coins(noise, 0.4, release)
        for silo in range(small.SILOS):
            users = small.PARTS.pairs(silo).users
            assert set(users[sums.present(silo, release)]) == set(users) & set(np.flatnonzero(coins_U))
    drawn = np.concatenate([users_coins(noise, 0.4, release) for release in range(2000)])
    assert abs(drawn.mean() - 0.4) < 5 * math.sqrt(0.24 / len(drawn))
    assert users_coins(noise, 1.0, 3).all()


def test_a_part_is_the_sum_and_the_silos_share_of_the_noise() -> None:
    how = small.config(weights="uniform")
    given = np.ones((2, D), np.float32)
    quiet, loud = (UserSums(small.PARTS, how, small.noise(how, z)) for z in (0.0, 4.0))
    places = np.arange(2)
    plain, noised = quiet.released(1, 5, places, given), loud.released(1, 5, places, given)
    assert plain.releases == ()
    assert plain.values.tolist() == quiet.summed(1, places, given)[0].tolist()
    share, receipt = small.noise(how, 4.0).share(D, small.SILOS, (1, 5, 0), pairs=2, nonfinite=0)
    assert (noised.values - plain.values).tolist() == share.tolist()
    assert [release.receipt for release in noised.releases] == [receipt]
    assert noised.values.tolist() != loud.released(1, 6, places, given).values.tolist()
    given[1, 3] = np.nan
    assert loud.released(1, 5, places, given).releases[0].receipt.nonfinite == 1
    assert toy.bits(quiet.summed(1, places, given)[0]) == toy.bits(quiet.summed(1, places[:1], given[:1])[0])
