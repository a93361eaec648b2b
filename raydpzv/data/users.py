"""Users and silos of records: every record belongs to a user and lies in a silo (a client); a user
has several silos.

record -> user   uniform: i.i.d.; zipf: i.i.d. with p_u ∝ (u + 1)^-alpha
record -> silo   uniform: i.i.d.; zipf: each user has a random order of the silos, i.i.d. with p ∝
rank^-silo_alpha;
                 main: the data say it, and each user has a main silo for .8 of its records, the
                 others alike for the rest; a user who finds a silo full takes the next
column           as the data say it

Source: Kato et al., "Uldp-FL" (2023), Section 5.1. Users that get no record are none: they are left
out. Where a user's records in a silo must be several, records are shared out in packs of as many.
"""

# N records, S silos, U users, L labels of a user, C classes that occur, P packs

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from raydpzv.data.horizontal import check_client, owners_of
from raydpzv.errors import DataError, SpecError
from raydpzv.keys import Key

if TYPE_CHECKING:
    from raydpzv.settings.sections_horizontal import UsersSection

_MAIN_SHARE = 0.8
"""Share of a user's records that its main silo gets."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """A silo's users that have records there, ascending, int64 [n]; user i has rows[offsets[i] :
    offsets[i + 1]].
    """

    users: np.ndarray
    offsets: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.users)

    @property
    def counts(self) -> np.ndarray:
        """Records of each of these users here, int64 [n]."""
        return np.diff(self.offsets)

    def of(self, place: int) -> np.ndarray:
        """Return the row numbers of the user at a place, ascending."""
        return self.rows[self.offsets[place] : self.offsets[place + 1]]


@dataclass(frozen=True, eq=False)
class UserParts:
    """The user and the silo of every record: 8 bytes a record and 24 bytes a pair. Its clients are
    the silos.

    users: U, those who have records. ids: row numbers [N] by silo, by user within a silo, then
    ascending. starts: first pair of every silo, [S + 1]; owners: every pair's user; offsets: where
    its rows begin in ids, [pairs + 1].
    """

    users: int
    ids: np.ndarray
    starts: np.ndarray
    owners: np.ndarray
    offsets: np.ndarray

    @property
    def clients(self) -> int:
        """S."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Records of every silo, int64 [S]."""
        return np.diff(self.offsets[self.starts])

    @property
    def nbytes(self) -> int:
        return sum(kept.nbytes for kept in (self.ids, self.starts, self.owners, self.offsets))

    def rows(self, client: int) -> np.ndarray:
        return np.sort(self.pairs(client).rows)

    def pairs(self, silo: int) -> Pairs:
        """Return the silo's users and their rows: views. Raises InputError if there is no such
        silo.
        """
        check_client(silo, self.clients)
        first, last = self.starts[silo : silo + 2]
        offsets = self.offsets[first : last + 1]
        return Pairs(
            self.owners[first:last], offsets - offsets[0], self.ids[offsets[0] : offsets[-1]]
        )

    def counts(self) -> np.ndarray:
        """Return n_su, int64 [S, U]."""
        counts_SU = np.zeros((self.clients, self.users), np.int64)
        silos = np.repeat(np.arange(self.clients), np.diff(self.starts))
        counts_SU[silos, self.owners] = np.diff(self.offsets)
        return counts_SU

    def among(self, own: Sequence[int], rows: np.ndarray) -> UserParts:
        """Return the same with places in `rows` [n], the own silos' row numbers, ascending; those
        of others are 0.
        """
        places = np.zeros_like(self.ids)
        for silo in own:
            first, last = self.offsets[self.starts[silo : silo + 2]]
            places[first:last] = np.searchsorted(rows, self.ids[first:last])
        return replace(self, ids=places)

    def alone(self, own: Sequence[int]) -> UserParts:
        """Return the own silos as they are, and in each of the others one record of every user."""
        one = np.arange(self.users + 1)
        others = Pairs(one[:-1], one, np.zeros(self.users, np.int64))
        pairs = [self.pairs(silo) if silo in own else others for silo in range(self.clients)]
        return UserParts(
            self.users,
            np.concatenate([p.rows for p in pairs]),
            np.cumsum([0, *map(len, pairs)]),
            np.concatenate([p.users for p in pairs]),
            np.append(0, np.cumsum(np.concatenate([p.counts for p in pairs]))),
        )

    def most_records(self, group: int | Literal["max", "median"]) -> int:
        """Return how many records of a user may be used, k, which "max" and "median" read off the
        users' numbers.
        """
        if isinstance(group, int):
            return group
        counts_U = self.counts().sum(0)
        return int(counts_U.max() if group == "max" else np.median(counts_U))

    def at_most(self, most: int, key: Key) -> UserParts:
        """Return the parts with at most so many records of each user: those of its silos in turn,
        drawn by the key.

        The draw of a record has its user, its silo and its place among that pair's records for an
        address: other users' records do not change it, nor does it need the rows of other silos.
        """
        counts = np.diff(self.offsets)
        pair_N = np.repeat(np.arange(len(counts)), counts)
        user_N, silo_N = self.owners[pair_N], np.searchsorted(self.starts, pair_N, side="right") - 1
        turn_N = np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], counts)
        # the places first: a pair with more records leaves the draws of all others as they are
        drawn = (key / "records").generator().random((counts.max(), self.users, self.clients))
        ids = self.ids[np.lexsort((drawn[turn_N, user_N, silo_N], pair_N))]
        luck_N = (key / "silos").generator().random((self.users, self.clients))[user_N, silo_N]
        order = np.lexsort((luck_N, turn_N, user_N))
        firsts = np.searchsorted(user_N[order], user_N)
        place_N = np.empty(len(ids), np.int64)
        place_N[order] = np.arange(len(ids))
        kept = place_N - firsts < most
        return _parts(user_N[kept], silo_N[kept], self.clients, ids[kept])


@dataclass(frozen=True, eq=False)
class Known:
    """Facts about the records: labels, whole numbers [N]; users and silos [N], numbered from 0, or
    None.
    """

    labels: np.ndarray
    users: np.ndarray | None = None
    silos: np.ndarray | None = None


def share_users(known: Known, silos: int, law: UsersSection, key: Key) -> UserParts:
    """Return every record's user and silo. Depends on the arguments alone.

    Raises SpecError for settings that cannot be, DataError for pairs that have too few records
    where the data say whose they are.
    """
    _check(known, silos, law)
    generator = (key / "users").generator()
    packs = _packed(known, law, generator)
    user_P = _users(packs, law, generator)
    silo_P = _silos(packs, user_P, silos, law, generator)
    found = _parts(user_P[packs.of_row], silo_P[packs.of_row], silos, np.arange(len(known.labels)))
    _check_found(found, law)
    return found


@dataclass(frozen=True, eq=False)
class Packs:
    """Records that stay together: each record's pack, [N], and each pack's class, user and silo,
    [P], where one counts.

    Numbers of users and silos are those of the data, numbered from 0, or None.
    """

    of_row: np.ndarray
    classes: np.ndarray
    users: np.ndarray | None
    silos: np.ndarray | None

    def __len__(self) -> int:
        return len(self.classes)


def _packed(known: Known, law: UsersSection, generator: np.random.Generator) -> Packs:
    """Put records that may go together into packs of `least`, some of them larger where it does not
    divide.
    """
    labels = known.labels if law.labels else np.zeros(len(known.labels), np.int64)
    group = labels.astype(np.int64)
    for column in (known.users, known.silos):
        group = group if column is None else group * (int(column.max()) + 1) + column
    group, counts = np.unique(group, return_inverse=True, return_counts=True)[1:]
    shuffled = generator.permutation(len(group))
    order = shuffled[np.argsort(group[shuffled], kind="stable")]
    place = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    several = np.maximum(counts // law.least, 1)  # a group that is too small for one pack is one
    inside = np.minimum(place // law.least, np.repeat(several, counts) - 1)
    of_row = np.empty(len(group), np.int64)
    of_row[order] = np.repeat(np.cumsum(several) - several, counts) + inside
    first = np.empty(int(several.sum()), np.int64)
    first[of_row[order]] = order
    return Packs(
        of_row,
        labels[first],
        *(None if c is None else c[first] for c in (known.users, known.silos)),
    )


def _users(packs: Packs, law: UsersSection, generator: np.random.Generator) -> np.ndarray:
    """Return each pack's user, int64 [P]: drawn with p_u ∝ (u + 1)^-alpha or alike, or as the data
    say it.
    """
    if law.how == "column":
        assert packs.users is not None
        return packs.users
    assert law.count is not None
    p_U = _zipf(law.count, law.alpha if law.how == "zipf" else 0.0)
    if packs.silos is not None and law.silos == "main":
        return _with_main_silos(packs.silos, p_U, generator)
    if law.labels is not None:
        return _with_labels(packs.classes, p_U, law.labels, generator)
    return generator.choice(len(p_U), len(packs), p=p_U)


def _silos(
    packs: Packs, user_P: np.ndarray, silos: int, law: UsersSection, generator: np.random.Generator
) -> np.ndarray:
    """Return each pack's silo, int64 [P]: alike, by rank in its user's own order of the silos, or
    as the data say.
    """
    if law.silos in ("main", "column"):
        assert packs.silos is not None
        return packs.silos
    if law.silos == "uniform":
        return generator.integers(0, silos, len(packs))
    order_US = generator.permuted(np.tile(np.arange(silos), (int(user_P.max()) + 1, 1)), axis=1)
    rank_P = generator.choice(silos, len(packs), p=_zipf(silos, law.silo_alpha))
    return order_US[user_P, rank_P]


def _zipf(count: int, alpha: float) -> np.ndarray:
    """p ∝ rank^-alpha, [count]."""
    weights = np.arange(1, count + 1) ** -alpha
    return weights / weights.sum()


def _with_main_silos(
    silo_P: np.ndarray, p_U: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Share out packs whose silos are known: one for everybody, the rest by p, most of them from a
    main silo.
    """
    users, silos = len(p_U), int(silo_P.max()) + 1
    rest = generator.choice(users, len(silo_P) - users, p=p_U)
    user_P = generator.permutation(np.concatenate((np.arange(users), rest)))
    main_U = generator.integers(0, silos, users)
    other = generator.integers(1, max(silos, 2), len(silo_P)) * (
        generator.random(len(silo_P)) >= _MAIN_SHARE
    )
    wish_P = (main_U[user_P] + other) % silos
    room_S = np.bincount(silo_P, minlength=silos)
    # what spills over in the first turn has found room in the second
    for silo in [*range(silos), *range(silos)]:
        wishing = np.flatnonzero(wish_P == silo)
        wish_P[wishing[room_S[silo] :]] = (silo + 1) % silos
    owner_P = np.empty(len(silo_P), np.int64)
    owner_P[np.argsort(silo_P, kind="stable")] = user_P[np.argsort(wish_P, kind="stable")]
    return owner_P


def _with_labels(
    class_P: np.ndarray, p_U: np.ndarray, labels: int, generator: np.random.Generator
) -> np.ndarray:
    """Share out packs so that no user has more than so many classes.

    Users ask for as many packs as p gives them, alike from their own classes; where a class is
    asked for too often, chance decides, and what is still needed is asked for again while the
    user's classes last. What nobody asked for goes, alike, to the users that have its class.
    """
    supply_C = np.bincount(class_P)
    users, classes = len(p_U), len(supply_C)
    own_UC = generator.permuted(np.tile(np.arange(classes) < labels, (users, 1)), axis=1)
    if (unclaimed := np.flatnonzero(~own_UC.any(0) & (supply_C > 0))).size:
        raise SpecError(
            f"users.labels: no user drew the class {unclaimed[0]} as one of its {labels}; raise "
            "users.labels or users.count"
        )
    need_U, left_C = generator.multinomial(len(class_P), p_U), supply_C.copy()
    counts_UC = np.zeros((users, classes), np.int64)
    while True:
        open_UC = own_UC & (left_C > 0)
        asking = np.flatnonzero((need_U > 0) & open_UC.any(1))
        if not asking.size:
            break
        open_uC = open_UC[asking]
        wishes = generator.multinomial(need_U[asking], open_uC / open_uC.sum(1, keepdims=True))
        for c in np.flatnonzero(wishes.sum(0) > left_C):
            wishes[:, c] = generator.multivariate_hypergeometric(
                wishes[:, c], left_C[c], method="marginals"
            )
        counts_UC[asking] += wishes
        need_U[asking] -= wishes.sum(1)
        left_C -= wishes.sum(0)
    for c in np.flatnonzero(left_C):
        counts_UC[:, c] += generator.multinomial(left_C[c], own_UC[:, c] / own_UC[:, c].sum())
    return owners_of(class_P, counts_UC, generator)


def _parts(user_N: np.ndarray, silo_N: np.ndarray, silos: int, rows: np.ndarray) -> UserParts:
    present, user_N = np.unique(user_N, return_inverse=True)
    users = len(present)
    pair_N = silo_N.astype(np.int64) * users + user_N
    ids = rows[np.lexsort((rows, pair_N))]
    pairs, counts = np.unique(pair_N, return_counts=True)
    arrays = (
        ids,
        np.searchsorted(pairs, np.arange(silos + 1) * users),
        pairs % users,
        np.concatenate(([0], np.cumsum(counts))),
    )
    for array in arrays:
        array.flags.writeable = False
    return UserParts(users, *arrays)


def _check(known: Known, silos: int, law: UsersSection) -> None:
    """Refuse settings that contradict one another or the data."""
    rows, classes = len(known.labels), len(np.unique(known.labels))
    if (law.how == "column") != (law.count is None):
        raise SpecError(
            'users.count: wanted with users.how = "uniform" or "zipf" and in no other case, got '
            f'{law.count} with "{law.how}"; give it or leave it out'
        )
    if law.count is not None and law.count * law.least > rows:
        raise SpecError(
            f"users.count: wanted at most {rows // law.least} ({rows} training records, "
            f"users.least = {law.least}), got {law.count}; use fewer users"
        )
    if law.how == "column" and known.users is None:
        raise SpecError(
            'users.how: "column" wants records that name their user; set users.columns or use '
            '"zipf"'
        )
    if law.silos in ("main", "column"):
        _check_silos(known, silos, law)
    if law.labels is None:
        return
    if law.labels > classes:
        raise SpecError(
            f"users.labels: wanted at most {classes}, the classes of the training records, got "
            f"{law.labels}"
        )
    if law.how == "column" or law.silos == "main":
        raise SpecError(
            "users.labels: goes with users that are drawn over all records, not with users.how = "
            '"column" or users.silos = "main"; leave it out'
        )


def _check_silos(known: Known, silos: int, law: UsersSection) -> None:
    if known.silos is None:
        raise SpecError(
            f'users.silos: "{law.silos}" wants records that name their silo; set users.columns, '
            'use a data set with centres, or "zipf"'
        )
    if (found := int(known.silos.max()) + 1) != silos:
        raise SpecError(f"split.clients: wanted {found}, the silos of the data, got {silos}")


def _check_found(found: UserParts, law: UsersSection) -> None:
    """Refuse a silo without records, and pairs with too few."""
    if (empty := np.flatnonzero(found.sizes == 0)).size:
        raise SpecError(
            f"split.clients: silo {empty[0]} of {found.clients} has no record; use fewer silos, or "
            "users.silos = "
            '"uniform"'
        )
    check_least(found, law.least)


def check_least(found: UserParts, least: int, why: str = "") -> None:
    """Raise DataError for a pair with fewer records than `least`; why: what wants as many, if not
    the scenario.
    """
    counts = np.diff(found.offsets)
    if (few := np.flatnonzero(counts < least)).size:
        silo = int(np.searchsorted(found.starts, few[0], side="right")) - 1
        what = (
            f"set users.least = {least}, or drop them"
            if why
            else "drop them, or use a smaller users.least"
        )
        raise DataError(
            f"users.least: wanted {least} records of each user in a silo where it has "
            f"any{why and ' '}{why}, but silo {silo} has {counts[few[0]]} of user "
            f"{found.owners[few[0]]}; {what}"
        )
