"""Who holds what: held against the laws' probabilities, counted one by one, and against what a
split must keep.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raydpzv.data.horizontal import Partition
from raydpzv.data.users import Known, UserParts, share_users
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.keys import Key
from raydpzv.settings.sections_horizontal import UsersSection


def labels_of(rows: int, classes: int = 10) -> np.ndarray:
    return Key(5).generator().integers(0, classes, rows)


def pairs_of(parts: UserParts) -> dict[tuple[int, int], list[int]]:
    """Every pair's rows, by silo and user."""
    found = {}
    for silo in range(parts.clients):
        pairs = parts.pairs(silo)
        assert (np.diff(pairs.users) > 0).all()
        found |= {(silo, int(user)): pairs.of(i).tolist() for i, user in enumerate(pairs.users)}
    return found


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["uniform", "zipf"]),
    st.sampled_from(["uniform", "zipf", "main"]),
    st.integers(1, 6),
    st.integers(1, 30),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 99),
)
def test_every_record_has_one_user_and_one_silo(how, silos, clients, count, least, limited, seed):
    labels = labels_of(400, 4)
    centres = (
        Key(seed).generator().permutation(np.arange(400) % clients) if silos == "main" else None
    )
    labels_each = 3 if limited and silos != "main" and count > 20 else None
    law = UsersSection(
        count=count, how=how, silos=silos, silo_alpha=0.5, labels=labels_each, least=least
    )
    parts = share_users(Known(labels, silos=centres), clients, law, Key(seed))
    pairs = pairs_of(parts)
    assert sorted(row for rows in pairs.values() for row in rows) == list(range(400))
    assert all(rows == sorted(rows) and len(rows) >= least for rows in pairs.values())
    assert sorted({user for _, user in pairs}) == list(range(parts.users)), (
        "users without records are none"
    )
    assert parts.users <= count
    counts_SU = parts.counts()
    assert {pair: len(rows) for pair, rows in pairs.items()} == {
        (int(s), int(u)): int(counts_SU[s, u]) for s, u in np.argwhere(counts_SU)
    }
    for silo in range(clients):
        mine = sorted(row for (s, _), rows in pairs.items() if s == silo for row in rows)
        assert parts.rows(silo).tolist() == mine
        assert centres is None or set(centres[mine]) == {silo}
    assert parts.sizes.tolist() == [len(parts.rows(silo)) for silo in range(clients)]
    if labels_each:
        of_user = [
            set(labels[[*rows]]) for user in range(parts.users) for rows in [rows_of(pairs, user)]
        ]
        assert max(map(len, of_user)) <= labels_each


def rows_of(pairs: dict[tuple[int, int], list[int]], user: int) -> list[int]:
    return [row for (_, u), rows in pairs.items() if u == user for row in rows]


def test_it_is_a_partition_of_clients_and_depends_on_the_key_alone():
    def ids(key: Key) -> np.ndarray:
        parts: Partition = share_users(Known(labels_of(300)), 5, UsersSection(count=20), key)
        assert parts.nbytes > 0
        assert parts.clients == 5
        return parts.ids

    assert np.array_equal(ids(Key(1)), ids(Key(1)))
    assert not np.array_equal(ids(Key(1)), ids(Key(2)))


def test_there_is_no_silo_beyond_the_last():
    with pytest.raises(InputError, match=r"choose one of 0\.\.4"):
        share_users(Known(labels_of(300)), 5, UsersSection(count=20), Key(1)).pairs(5)


@pytest.mark.parametrize(("how", "exponent"), [("uniform", 0.0), ("zipf", 0.5), ("zipf", 1.5)])
def test_users_have_the_shares_of_their_law(how, exponent):
    law = UsersSection(count=20, how=how, alpha=exponent or 0.7, silos="uniform")
    counts_SU = share_users(Known(labels_of(20_000)), 3, law, Key(3)).counts()

    def p_value(power: float) -> float:
        p_U = np.arange(1, 21) ** -power
        return stats.chisquare(counts_SU.sum(0), 20_000 * p_U / p_U.sum()).pvalue

    assert 0.001 < p_value(exponent) < 0.999
    assert p_value(exponent + 0.2) < 1e-6, "the test tells laws apart"
    assert 0.001 < stats.chisquare(counts_SU.sum(1)).pvalue < 0.999, "silos alike"


def test_a_users_silos_have_the_shares_of_their_ranks():
    """α = 2, S = 5: .683 .171 .076 .043 .027, the silos of each user in an order of its own."""
    law = UsersSection(count=40, how="uniform", silo_alpha=2.0)
    counts_SU = share_users(Known(labels_of(40_000)), 5, law, Key(3)).counts()
    ranked = np.sort(counts_SU, axis=0)[::-1].sum(1) / 40_000
    assert ranked == pytest.approx([0.683, 0.171, 0.076, 0.043, 0.027], abs=0.006)
    favourites = np.bincount(counts_SU.argmax(0), minlength=5)
    assert favourites.min() >= 3, "no silo is everybody's first"


def test_main_silos_hold_most_of_a_users_records_as_far_as_there_is_room():
    """Silos of 4 x 500: room for most wishes; one of 1,850 and three of 50: the rest spills into
    it.
    """
    even, uneven = np.arange(2000) % 4, np.minimum(np.arange(2000) // 50, 3)

    def main_share(centres: np.ndarray, silos: str = "main") -> float:
        law = UsersSection(count=100, silos=silos)
        counts_SU = share_users(Known(labels_of(2000), silos=centres), 4, law, Key(2)).counts()
        assert counts_SU.sum(1).tolist() == np.bincount(centres).tolist()
        assert counts_SU.sum(0).min() >= 1
        return float(counts_SU.max(0).sum() / 2000)

    assert 0.7 < main_share(even) < 0.85
    assert main_share(even, "column") < 0.4, "users whose records lie anywhere"
    assert main_share(uneven) > 0.9, "all but 150 records lie in one silo"


def test_what_is_left_of_a_class_is_shared_out_and_never_piled_on_one_user():
    """Nine of ten records are of class 0: users that have it share what nobody asked for."""
    labels = np.where(np.arange(5000) % 10, 0, np.arange(5000) % 7)
    counts_SU = share_users(
        Known(labels), 4, UsersSection(count=100, how="uniform", labels=2), Key(4)
    ).counts()
    assert counts_SU.sum(0).max() < 0.06 * 5000


def test_columns_say_whose_a_record_is():
    users, silos = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 1, 0, 0])
    law = UsersSection(count=None, how="column", silos="column")
    parts = share_users(Known(labels_of(6), users, silos), 2, law, Key(0))
    assert pairs_of(parts) == {(0, 0): [0], (1, 0): [1], (1, 1): [2, 3], (0, 2): [4, 5]}
    with pytest.raises(DataError, match="silo 0 has 1 of user 0"):
        share_users(
            Known(labels_of(6), users, silos),
            2,
            UsersSection(count=None, how="column", silos="column", least=2),
            Key(0),
        )


REFUSED = [
    (UsersSection(count=301), "users.count: wanted at most 300"),
    (UsersSection(count=151, least=2), "users.count: wanted at most 150"),
    (UsersSection(count=None), "users.count: wanted with"),
    (UsersSection(count=10, how="column"), "users.count: wanted with"),
    (UsersSection(count=None, how="column"), "name their user"),
    (UsersSection(count=10, silos="main"), "name their silo"),
    (UsersSection(count=10, silos="column"), "name their silo"),
    (UsersSection(count=10, labels=11), "users.labels: wanted at most 10"),
    (UsersSection(count=2, labels=2), "no user drew the class"),
]


@pytest.mark.parametrize(("law", "words"), REFUSED)
def test_what_cannot_be_is_refused(law, words):
    with pytest.raises(SpecError, match=words):
        share_users(Known(labels_of(300)), 5, law, Key(0))


def test_silos_of_the_data_want_their_number_and_their_own_kind_of_users():
    known = Known(labels_of(300), silos=np.arange(300) % 4)
    with pytest.raises(SpecError, match=r"split\.clients: wanted 4, the silos of the data, got 5"):
        share_users(known, 5, UsersSection(count=10, silos="main"), Key(0))
    with pytest.raises(SpecError, match=r"users\.labels: goes with"):
        share_users(known, 4, UsersSection(count=10, silos="main", labels=2), Key(0))


def test_an_empty_silo_is_refused():
    with pytest.raises(SpecError, match="has no record"):
        share_users(Known(labels_of(20)), 15, UsersSection(count=2), Key(0))
