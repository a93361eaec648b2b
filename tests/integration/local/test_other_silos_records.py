"""One silo looks at a user's records in the others: two federations, with these and without, to the
pre-noise sum.

What the looking silo holds itself does not change, but what it sends does: its weight of the user
grows to 1, or more of its records are among the user's k. A row's noise is held against the move
that is seen.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import raydpzv
from raydpzv.data.users import UserParts
from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from raydpzv.keys import Key
from raydpzv.methods.horizontal import user_sums
from raydpzv.methods.roles import Order
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.privacy.users import UserReleasePlan
from tests.helpers.user_parties import without


def prepared(*changes: str) -> PreparedHorizontal:
    """The scenario's run, on seeded noise, so that its released models are the same every time."""
    found = prepare_horizontal(raydpzv.load("digits_users", changes))
    noise = dataclasses.replace(found.privacy.noise, seeded=True)
    return dataclasses.replace(found, privacy=dataclasses.replace(found.privacy, noise=noise))


def silent(made: PreparedHorizontal, held: UserParts) -> PreparedHorizontal:
    """The same run on another federation, each release as it is before its noise."""
    release = dataclasses.replace(made.privacy.noise.release, multiplier=0.0)
    noise = dataclasses.replace(made.privacy.noise, release=release)
    return dataclasses.replace(
        made, parts=held, privacy=dataclasses.replace(made.privacy, noise=noise)
    )


def orders_after(made: PreparedHorizontal, rounds: int) -> list[Order]:
    """The orders of a later round, with the model that these rounds released."""
    server, group = made.server(), made.client_group()
    orders = server.first_orders()
    for _ in range(rounds):
        orders = [
            order for upload in list(group.process(orders)) for order in server.receive(upload)
        ]
    return orders


def sums(made: PreparedHorizontal, held: UserParts, orders: list[Order]) -> np.ndarray:
    """What each silo of a federation sends in a round but for its noise, int64 [S, D]; the model is
    forced.
    """
    group = silent(made, held).client_group()
    uploads = {upload.client: upload.body.values for upload in group.process(orders)}
    return np.stack([uploads[silo] for silo in range(held.clients)])


def moves(
    made: PreparedHorizontal,
    held: UserParts,
    orders: list[Order],
    weights: str,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[tuple[int, int], float]:
    """By pair (silo, user), how far the total of all silos moves, in C, by hand from the vectors
    that they made.
    """
    vectors: list[np.ndarray] = []
    real = user_sums.user_integers

    def kept(given: np.ndarray, **terms: Any) -> tuple[np.ndarray, int]:
        found = real(given, **terms)
        vectors.append(found[0])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(user_sums, "user_integers", kept)
        sums(made, held, orders)
    silos = np.repeat(np.arange(held.clients), np.diff(held.starts))
    of = {
        pair: vector / (2**16 - 1)
        for pair, vector in zip(
            zip(silos, held.owners, strict=True), np.concatenate(vectors), strict=True
        )
    }
    counts_SU, found = held.counts(), dict[tuple[int, int], float]()
    for silo, user in of:
        others = [s for s in range(held.clients) if s != silo and counts_SU[s, user]]
        if not others:
            continue
        share = counts_SU[:, user] / counts_SU[:, user].sum()
        if weights == "uniform":
            share = np.full(held.clients, 1 / held.clients)
        apart = sum(share[s] * of[s, user] for s in others)
        if weights == "records":
            apart = apart - share[others].sum() * of[silo, user]
        found[int(silo), int(user)] = float(np.linalg.norm(apart))
    return found


def of_client(setting: UserReleasePlan, relation: str = "add_remove") -> Any:
    return next(c for c in setting.claims() if (c.adversary, c.relation) == ("client", relation))


def seen(setting: UserReleasePlan, move: float) -> float:
    """ε of the pair itself: every release moves so far, and the noise is the other silos' share."""
    others = setting.multiplier * math.sqrt((setting.silos - 1) / setting.silos)
    return epsilon_of(math.sqrt(setting.releases) * move / others, setting.delta)


@pytest.mark.parametrize("weights", ["records", "uniform"])
def test_a_silos_row_bounds_what_the_others_records_move(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepared(f"method.weights={weights}")
    held, setting = made.parts, made.setting
    assert isinstance(held, UserParts)
    assert setting is not None
    orders = orders_after(made, 3)
    found = moves(made, held, orders, weights, monkeypatch)
    (silo, user), move = max(found.items(), key=lambda item: item[1])
    # the two tables through the program itself
    apart = (sums(made, held, orders) - sums(made, without(held, user, but=silo), orders)).sum(0)
    unit = (2**16 - 1) * (setting.silos if weights == "uniform" else 1)
    assert np.linalg.norm(apart) / unit == pytest.approx(move, abs=2e-3)
    row = of_client(setting)
    assert row.epsilon >= seen(setting, move)
    assert row.epsilon == of_client(setting, "replace").epsilon or weights == "uniform"
    if weights == "records":
        assert move > 1.3
        assert sum(m > 1 for m in found.values()) > 100
        by_one_clip = dataclasses.replace(setting, multiplier=2 * setting.multiplier)
        assert of_client(by_one_clip).epsilon < seen(setting, move), (
            "control: as if C were all that moves"
        )
    else:
        assert move <= (setting.silos - 1) / setting.silos


def test_a_silos_own_records_of_a_group_follow_the_others() -> None:
    held = prepared().parts
    assert isinstance(held, UserParts)
    key, k = Key(3), 4
    whole, most = held.at_most(k, key), 0

    def used(parts: UserParts, user: int, silo: int) -> set[int]:
        pairs = parts.pairs(silo)
        place = np.flatnonzero(pairs.users == user)
        return set(pairs.of(int(place[0])).tolist()) if place.size else set()

    for user in range(0, held.users, 7):
        for silo in np.flatnonzero(held.counts()[:, user]):
            fewer = without(held, user, but=int(silo)).at_most(k, key)
            for other in range(held.users):
                for where in range(held.clients):
                    if other != user:
                        assert used(fewer, other, where) == used(whole, other, where), (
                            "nobody else's change"
                        )
            changed = [used(whole, user, s) ^ used(fewer, user, s) for s in range(held.clients)]
            most = max(most, sum(map(len, changed)))
    assert k < most <= 2 * k, "more records than k are not among the same"
