"""ULDP-ZO: its rounds written down a second time in numpy, what one user can move, and what is told
twice.
"""

# K local steps, P perturbations, n pairs

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from raydpzv.engine.compiled_objective import CompiledObjective
from raydpzv.engine.dense import dense_whole
from raydpzv.engine.objective import Objective
from raydpzv.engine.row_readers import KeptRows
from raydpzv.errors import ReplayMismatch
from raydpzv.ledger.entries import SHARED
from raydpzv.methods.descriptor import ClientGroupParts
from raydpzv.methods.horizontal.seeded import client_seeds, round_seeds
from raydpzv.methods.horizontal.uldp_zo import PairWork, UldpZoConfig, uldp_zo_settings
from raydpzv.methods.horizontal.user_sums import UserSums
from raydpzv.methods.replica import Replica
from raydpzv.methods.roles import Order
from raydpzv.privacy.user_release import user_integers
from raydpzv.wire.secure_sums import UserSum
from raydpzv.wire.seeds import CatchUp, SeededScalars
from raydpzv.zo import philox
from raydpzv.zo.update import Step
from tests.helpers import seed_parties as toy
from tests.helpers import uldp_zo_parties as small
from tests.helpers.user_parties import without

NO_SEEDS, NO_SCALARS = np.zeros(0, np.uint64), np.zeros(0, np.float32)
HOW = {
    "one step": small.config(),
    "uniform": small.config(weights="uniform"),
    "sampled": small.config(sampling=0.6, count_cap=2, value_bits=9),
    "three steps": small.config(local_steps=3, perturbations=2),
}


def settings(how: UldpZoConfig) -> Any:
    return uldp_zo_settings(how, toy.KEY)


def replica(how: UldpZoConfig) -> Replica:
    return toy.replica(settings(how))


def loss(x: np.ndarray, rows: np.ndarray) -> float:
    """The two-layer model's mean cross-entropy, float64."""
    hidden = 4 * toy.FEATURES
    w, b, v, c = np.split(x.astype(np.float64), [hidden, hidden + 4, hidden + 4 + 4 * toy.CLASSES])
    h = np.maximum(toy.X.numpy()[rows] @ w.reshape(4, -1).T + b, 0)
    scores = log_softmax(h @ v.reshape(toy.CLASSES, -1).T + c, axis=1)
    return float(-scores[np.arange(len(rows)), toy.Y.numpy()[rows]].mean())


def trajectory(
    how: UldpZoConfig, x: np.ndarray, seeds_K: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """A pair's K·P central differences from the formula, float64."""
    found = []
    for seed in seeds_K.tolist():
        z_Pd = [
            philox.normals(s, 0, toy.D).astype(np.float64)
            for s in toy.directions(seed, how.perturbations)
        ]
        mu = how.smoothing
        g_P = [(loss(x + mu * z, rows) - loss(x - mu * z, rows)) / (2 * mu) for z in z_Pd]
        x = x - how.local_lr / how.perturbations * np.dot(g_P, z_Pd)
        found += g_P
    return np.array(found)


def released(
    how: UldpZoConfig, vectors: dict[tuple[int, int], np.ndarray], round: int
) -> list[float]:
    """The round's scalars Y / (qU) from the pairs' vectors, by the definitions and in whole numbers
    and fractions.
    """
    counts_SU = np.minimum(small.PARTS.counts(), how.count_cap or 10**9)
    coins = UserSums(small.PARTS, small.noise(how), how).drawn(round)
    limit = 2**how.value_bits - 1
    total = [Fraction(0)] * (how.local_steps * how.perturbations)
    for (silo, user), vector in vectors.items():
        if not coins[user]:
            continue
        norm = math.sqrt(sum(float(v) ** 2 for v in vector))
        weight = Fraction(int(counts_SU[silo, user]), int(counts_SU[:, user].sum()))
        for i, v in enumerate(vector.tolist()):
            e = int(v * min(1.0, small.CLIP / norm) / small.CLIP * limit * (1 - 2.0**-40))
            if how.weights == "records":
                total[i] += math.trunc(e * weight)
            else:
                total[i] += Fraction(e, small.SILOS)
    return [float(t * Fraction(small.CLIP) / limit) / (how.sampling * small.USERS) for t in total]


def everybody(
    how: UldpZoConfig, at: Replica, seeds_K: np.ndarray
) -> dict[tuple[int, int], np.ndarray]:
    """The program's vectors, by silo and user."""
    found = {}
    for silo in range(small.SILOS):
        pairs = small.PARTS.pairs(silo)
        rows = [pairs.of(i) for i in range(len(pairs))]
        vectors = small.work(how, small.ledger(how)).vectors(toy.objective(), at, seeds_K, rows)
        found |= {(silo, int(user)): v for user, v in zip(pairs.users, vectors, strict=True)}
    return found


@pytest.mark.parametrize("name", HOW)
def test_rounds_are_the_formulas(name: str) -> None:
    how = HOW[name]
    ledger = small.ledger(how)
    server, silos, at = small.server(how, ledger), small.silos(how, ledger), replica(how)
    slow, orders = toy.SlowModel(settings(how)), server.first_orders()
    for round in range(1, 4):
        seeds_K = round_seeds(settings(how), round)
        vectors = everybody(how, at, seeds_K)
        for (silo, user), vector in list(vectors.items())[::5]:
            pairs = small.PARTS.pairs(silo)
            rows = pairs.of(int(np.flatnonzero(pairs.users == user)[0]))
            expected = trajectory(how, at.x.numpy().astype(np.float64), seeds_K, rows)
            assert np.allclose(vector, expected, atol=2e-3, rtol=2e-3)
        orders = [o for upload in silos.process(orders) for o in server.receive(upload)]
        entered = ledger.since(round - 1, round)
        assert np.allclose(entered.scalar, released(how, vectors, round), rtol=1e-6, atol=1e-9)
        assert set(entered.party.tolist()) == {SHARED}
        at.go_to(round, ledger)
        slow.update(seeds_K, entered.scalar.reshape(how.local_steps, -1))
    assert toy.bits(slow.x) == toy.bits(at.x) == toy.bits(silos.state(3)[0])


def test_some_pairs_are_clipped_here_and_some_are_not() -> None:
    """What the test above would not see otherwise."""
    how = HOW["one step"]
    norms = [
        np.linalg.norm(v)
        for v in everybody(how, replica(how), round_seeds(settings(how), 1)).values()
    ]
    assert min(norms) < small.CLIP < np.median(norms)


# --- one user
# --------------------------------------------------------------------------------------------------


def compiled() -> Objective:
    network = dense_whole("mlp", (toy.FEATURES,), (4,), toy.CLASSES)
    assert network is not None
    return CompiledObjective(network, KeptRows(toy.X, toy.Y))


class Shared(PairWork):
    """The control: a silo's users walk along one trajectory, that of their mean."""

    def vectors(
        self,
        objective: Objective,
        replica: Replica,
        seeds_K: np.ndarray,
        rows: Sequence[np.ndarray],
    ) -> np.ndarray:
        together = np.sort(np.concatenate(rows))
        at, found = replica.twin(), []
        for seed in seeds_K:
            found.append(super().vectors(objective, at, np.array([seed]), rows))
            path = super().vectors(objective, at, np.array([seed]), [together])[0]
            at.apply_steps([Step(toy.directions(seed, len(path)), path, self._local_lr)])
        return np.concatenate(found, axis=1)


def integers(
    how: UldpZoConfig, parts: Any, make: Any = toy.objective, kind: type[PairWork] = PairWork
) -> dict[tuple[int, int], bytes]:
    """Every pair's whole numbers, made with whoever has records."""
    found, given = {}, small.noise(how)
    for silo in range(small.SILOS):
        pairs = parts.pairs(silo)
        of_all = ClientGroupParts([make()], parts, toy.KEY, updates=small.ledger(how), users=given)
        worker = kind(of_all, how)
        rows = [pairs.of(place) for place in range(len(pairs))]
        vectors = worker.vectors(make(), replica(how), round_seeds(settings(how), 1), rows)
        for place, user in enumerate(pairs.users.tolist()):
            (whole,), _ = user_integers(vectors[[place]], clip=small.CLIP, bits=how.value_bits)
            found[silo, user] = toy.bits(whole)
    return found


@pytest.mark.parametrize("make", [toy.objective, compiled])
@pytest.mark.parametrize("name", ["uniform", "three steps"])
def test_without_a_user_every_other_pairs_integers_have_the_same_bits(make: Any, name: str) -> None:
    how = HOW[name]
    whole = integers(how, small.PARTS, make)
    for user in range(small.USERS):
        left = integers(how, without(small.PARTS, user), make)
        # the totals of others' records are theirs alone
        assert left == {pair: bits for pair, bits in whole.items() if pair[1] != user}


def test_a_trajectory_shared_by_a_silo_moves_other_users() -> None:
    """The control: then removing one user moves others' vectors too, and the sum by more than its
    bound.
    """
    how = small.config(weights="uniform", local_steps=2, local_lr=30.0)
    limit = small.noise(how).release.sensitivity
    for kind, breaks in ((PairWork, False), (Shared, True)):
        whole, gaps = integers(how, small.PARTS, kind=kind), []
        for user in range(small.USERS):
            left = integers(how, without(small.PARTS, user), kind=kind)
            assert any(left[pair] != whole[pair] for pair in left) == breaks
            gaps.append(float(np.linalg.norm(total(whole) - total(left))))
        assert (max(gaps) > limit) == breaks


def total(found: dict[tuple[int, int], bytes]) -> np.ndarray:
    return np.sum([np.frombuffer(bits, np.int64) for bits in found.values()], axis=0)


def test_what_is_not_finite_counts_as_nothing() -> None:
    how = small.config(local_steps=2)
    at = replica(how)
    at.x[:] = torch.nan
    order = Order(0, CatchUp(NO_SEEDS, NO_SCALARS, round_seeds(settings(how), 1)), 1)
    (upload,) = small.work(how, small.ledger(how), multiplier=2.0).work([order], at)
    share = small.noise(how, 2.0).share(8, small.SILOS, (0, 1, 0), pairs=0, nonfinite=0)[0]
    assert upload.body.values.tolist() == share.tolist()  # type: ignore[attr-defined]
    assert upload.releases[0].receipt.nonfinite == len(small.PARTS.pairs(0))


# --- asynchronous
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local_steps", [1, 2])
def test_a_silo_that_wakes_releases_its_own_sum(local_steps: int) -> None:
    how = small.config(asynchronous=True, weights="uniform", local_steps=local_steps)
    ledger = small.ledger(how)
    server, silos = small.pull_server(how, ledger), small.silos(how, ledger, multiplier=3.0)
    given = small.noise(how, 3.0)
    for round, silo in enumerate([1, 0, 0, 2], 1):
        order = server.wake(silo)
        at = replica(how)
        at.go_to(round - 1, ledger)
        (upload,) = silos.process([order])
        vectors = everybody(how, at, client_seeds(settings(how), silo, round - 1))
        mine = np.array([v for (s, _), v in vectors.items() if s == silo])
        total = user_integers(mine, clip=small.CLIP, bits=16)[0].sum(0)
        noise, _ = given.share(len(total), small.SILOS, (silo, round, 0), pairs=0, nonfinite=0)
        worth = small.CLIP / (small.SILOS * (2**16 - 1)) / small.USERS
        assert np.allclose(upload.body.values.ravel(), (total + noise) * worth, rtol=1e-6)  # type: ignore[attr-defined]
        assert upload.body.wire_bytes == order.upload_bytes
        server.receive(upload)
        entered = ledger.since(round - 1, round)
        assert toy.bits(entered.scalar) == toy.bits(upload.body.values)  # type: ignore[attr-defined]
        assert (set(entered.party), set(entered.read)) == ({silo}, {round - 1})


# --- going on
# --------------------------------------------------------------------------------------------------


def play(how: UldpZoConfig, ledger: Any, count: int, recorded: int = 0) -> list[Any]:
    """Rounds with noise that nobody can draw again; return what the silos sent."""
    server = small.server(how, ledger)
    silos = small.silos(how, ledger, multiplier=3.0, seeded=False, recorded=recorded)
    orders, sent = server.first_orders(), []
    for _ in range(count):
        uploads = silos.process(orders)
        sent += uploads
        orders = [o for upload in uploads for o in server.receive(upload)]
    return sent


def test_a_round_that_was_released_is_made_again_without_telling_anything_new() -> None:
    how = small.config()
    ledger, fresh = small.ledger(how), small.ledger(how)
    play(how, ledger, 3)
    was = ledger.digest
    again = play(how, ledger, 3, recorded=3)
    assert ledger.digest == was
    assert not any(upload.body.values.any() for upload in again)
    assert all(isinstance(upload.body, UserSum) and upload.releases for upload in again)
    sent = play(how, ledger, 5, recorded=3)
    assert [bool(u.body.values.any()) for u in sent] == [False] * 9 + [True] * 6
    play(how, fresh, 3)
    assert fresh.digest != was  # the control: new noise is another release


def test_a_silos_own_release_is_told_again_as_it_was() -> None:
    how = small.config(asynchronous=True, weights="uniform")
    ledger, first, digests = small.ledger(how), [], []
    for recorded in (0, 3):
        server = small.pull_server(how, ledger)
        silos = small.silos(how, ledger, multiplier=3.0, seeded=False, recorded=recorded)
        for silo in (1, 0, 1):
            (upload,) = silos.process([server.wake(silo)])
            server.receive(upload)
            first.append(toy.bits(upload.body.values))  # type: ignore[attr-defined]
        digests.append(ledger.digest)
    assert first[:3] == first[3:]
    assert digests[0] == digests[1]
    server = small.pull_server(how, ledger)
    server.wake(2)
    other = SeededScalars(client_seeds(settings(how), 2, 0), np.zeros((1, 4), np.float32))
    with pytest.raises(ReplayMismatch, match="update 1: its party is not what the ledger has"):
        server.receive(upload._replace(client=2, body=other))
