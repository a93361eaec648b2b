"""Integers of users' vectors: their norm, that they know nothing of one another; the silos' noise
shares.
"""

import math

import numpy as np
import pytest
from scipy import stats

from raydpzv.keys import Key
from raydpzv.privacy.user_release import UserNoiseParts, UserPlan, UserRelease, user_integers

KEY = Key(3)


def vectors(n: int = 40, d: int = 650) -> np.ndarray:
    drawn = (KEY / "vectors").generator().standard_normal((n, d)).astype(np.float32)
    return drawn * np.geomspace(1e-3, 1e30, n, dtype=np.float32)[:, None]


def noise(multiplier: float = 5.0, *, reach: int = 1, seeded: bool = True) -> UserNoiseParts:
    return UserNoiseParts(UserRelease(0.1, 8, multiplier, reach), 100, KEY, KEY, seeded)


@pytest.mark.parametrize("bits", [4, 12, 16])
def test_no_vector_is_longer_than_the_grid_and_long_ones_nearly_are(bits: int) -> None:
    found, nonfinite = user_integers(vectors(d=650), clip=0.1, bits=bits)
    squares = [sum(int(x) ** 2 for x in row) for row in found]
    limit = 2**bits - 1
    assert max(squares) <= limit**2
    assert nonfinite == 0
    assert bits < 16 or math.sqrt(max(squares)) > 0.999 * limit


def test_rounding_up_or_to_the_nearest_would_be_longer() -> None:
    """The control of the bound: it is the cut towards zero that keeps it."""
    flat = np.full((1, 6000), 1.0, np.float32)
    limit = 255
    value = limit / math.sqrt(6000)  # 3.29 a coordinate
    assert np.ceil(value) * math.sqrt(6000) > limit
    found, _ = user_integers(flat, clip=1.0, bits=8)
    assert set(found.ravel().tolist()) == {3}


@pytest.mark.parametrize("bits", [20, 28, 30])
def test_what_double_precision_rounds_away_makes_no_vector_longer(bits: int) -> None:
    """Of (C', 1) the norm is C' in double precision: divided by that alone, it would stay as it
    is.
    """
    limit = 2**bits - 1
    vector = np.array([[limit, 1.0]])
    found, _ = user_integers(vector, clip=1.0, bits=bits)
    assert sum(int(x) ** 2 for x in found[0]) <= limit**2
    assert found[0, 0] == limit - 1
    divided = (vector * (limit / np.linalg.norm(vector))).astype(np.int64)
    longer = sum(int(x) ** 2 for x in divided[0]) > limit**2
    assert longer == (bits > 20)


def test_short_vectors_keep_their_length() -> None:
    found, _ = user_integers(np.array([[0.03, -0.035]]), clip=0.1, bits=16)
    assert found.tolist() == [[int(0.3 * 65535), -int(0.35 * 65535)]]


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_counts_as_zero_and_is_counted(broken: float) -> None:
    given = vectors(5)
    given[2, 7] = broken
    found, nonfinite = user_integers(given, clip=0.1, bits=16)
    others = [0, 1, 3, 4]
    assert nonfinite == 1
    assert not found[2].any()
    assert np.array_equal(found[others], user_integers(given[others], clip=0.1, bits=16)[0])


def test_a_vectors_integers_do_not_depend_on_the_others() -> None:
    given = vectors(30, d=651)
    together, _ = user_integers(given, clip=0.1, bits=16)
    for row in range(30):
        alone, _ = user_integers(given[row : row + 1], clip=0.1, bits=16)
        fewer, _ = user_integers(np.delete(given, row, axis=0), clip=0.1, bits=16)
        assert np.array_equal(alone[0], together[row])
        assert np.array_equal(fewer, np.delete(together, row, axis=0))
    columns_first, _ = user_integers(np.asfortranarray(given), clip=0.1, bits=16)
    assert np.array_equal(columns_first, together)


@pytest.mark.parametrize("reach", [1, 5])
def test_units_are_worth_what_they_stand_for(reach: int) -> None:
    release = UserRelease(0.1, 8, 5.0, reach)
    assert release.sensitivity == reach * 255
    assert release.unit * release.sensitivity == pytest.approx(release.clip)
    assert release.deviation() * release.unit == pytest.approx(5.0 * 0.1)
    assert release.deviation(4) == release.deviation() / 2


@pytest.mark.parametrize("parties", [5, 3])
def test_the_shares_of_those_who_take_part_are_the_whole_noise(parties: int) -> None:
    """Controls: nine tenths of the noise, and a share for 5 silos where 3 took part."""
    parts, draws = noise(reach=5), 20_000
    total = sum(
        parts.share(draws, parties, (silo, 0, 0), pairs=1, nonfinite=0)[0]
        for silo in range(parties)
    )
    scale = parts.release.deviation()

    def p(deviation: float) -> float:
        return float(stats.kstest(total / deviation, "norm").pvalue)

    assert p(scale) > 1e-3
    assert p(0.9 * scale) < 1e-9
    assert p(1.1 * scale) < 1e-9
    assert parties == 5 or p(scale * math.sqrt(3 / 5)) < 1e-9


def test_no_two_shares_are_the_same_noise() -> None:
    for seeded in (True, False):
        parts = noise(seeded=seeded)
        places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
        shares = [parts.share(50, 1, at, pairs=1, nonfinite=0)[0] for at in places]
        assert len({s.tobytes() for s in shares}) == len(places)
        again = parts.share(50, 1, places[0], pairs=1, nonfinite=0)[0]
        assert np.array_equal(again, shares[0]) == seeded


def test_a_receipt_says_what_was_done() -> None:
    _, receipt = noise(seeded=False).share(3, 4, (0, 0, 0), pairs=17, nonfinite=2)
    assert receipt == ("discrete gaussian", "system", 5.0 * 255 / 2, 510.0, 255.0, 1, 17, 2)
    _, rounded = noise(seeded=False).share(3, 4, (0, 0, 0), pairs=17, nonfinite=2, beyond=5.0)
    assert rounded[2:5] == (5.0 * 260 / 2, 520.0, 260.0)


def test_without_noise_there_is_none() -> None:
    share, receipt = noise(0.0).share(3, 4, (0, 0, 0), pairs=17, nonfinite=2)
    assert share.tolist() == [0, 0, 0]
    assert receipt is None


def test_silos_draw_by_coins_of_users_or_of_records_alone() -> None:
    assert UserPlan(sampling=0.5).coins_shared
    assert UserPlan("group", rate=0.5).coins_shared
    assert not UserPlan().coins_shared
    assert not UserPlan(sampling=0.5, aggregation="private_weights").coins_shared
