"""Methods that send sums over users: rounds written out in numpy, sensitivity, and bits that no
other user moves.
"""

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from raydpzv.data.users import Known, Pairs, UserParts, share_users
from raydpzv.engine.compiled_objective import CompiledObjective
from raydpzv.engine.dense import dense_whole
from raydpzv.engine.row_readers import KeptRows
from raydpzv.errors import Diverged, SpecError
from raydpzv.methods.descriptor import ClientGroupParts
from raydpzv.methods.horizontal import user_sums
from raydpzv.methods.horizontal.local_epochs import LocalEpochs, epochs
from raydpzv.methods.horizontal.uldp_avg import ULDP_AVG
from raydpzv.methods.horizontal.uldp_group import ULDP_GROUP
from raydpzv.methods.horizontal.uldp_naive import ULDP_NAIVE
from raydpzv.methods.horizontal.uldp_sgd import ULDP_SGD
from raydpzv.methods.horizontal.user_sums import UserSums
from raydpzv.methods.roles import Order, Upload
from raydpzv.privacy.user_release import user_integers
from raydpzv.settings.sections_horizontal import UsersSection
from raydpzv.wire.weights import Update, Weights
from tests.helpers.user_parties import (
    KEY,
    SILOS,
    SIZE,
    START,
    USERS,
    Round,
    X,
    Y,
    clipped,
    gradient,
    noise,
    objective,
    parts,
    without,
)

CLIP = 0.5
ROUNDING = 1e-6 + 2 * 2 * SILOS * CLIP / (2**16 - 1)
"""Two truncations of each pair, a pair per user and silo, and a step size of 2."""
WEIGHTS = pytest.mark.parametrize("weights", ["uniform", "records"])
SUMS = [(ULDP_SGD, {}), (ULDP_AVG, {"local_epochs": 3, "lr": 0.4, "batch": 4})]
EACH = pytest.mark.parametrize(("method", "settings"), SUMS, ids=["sgd", "avg"])


def descended(x_d: np.ndarray, rows: np.ndarray, steps: int, lr: float) -> np.ndarray:
    x = x_d.copy()
    for _ in range(steps):
        x -= lr * gradient(x, rows)
    return x - x_d


def weighed_mean(
    held: UserParts, vectors: dict[tuple[int, int], np.ndarray], weights: str, cap: int
) -> np.ndarray:
    """(1/U) Σ_su w_su clip(v_su), written out."""
    counts = np.minimum(held.counts(), cap)
    total = np.zeros(SIZE)
    for (silo, user), vector in vectors.items():
        w = 1 / SILOS if weights == "uniform" else counts[silo, user] / counts[:, user].sum()
        total += w * clipped(vector, CLIP)
    return total / USERS


def pairs_of(held: UserParts) -> dict[tuple[int, int], np.ndarray]:
    return {
        (silo, int(user)): pairs.of(i)
        for silo in range(SILOS)
        for pairs in [held.pairs(silo)]
        for i, user in enumerate(pairs.users)
    }


@WEIGHTS
@pytest.mark.parametrize("cap", [3, 10**6])
def test_a_round_of_uldp_sgd_is_its_rederivation(weights: str, cap: int) -> None:
    held, start = parts(), START.astype(np.float64)
    vectors = {pair: gradient(start, rows) for pair, rows in pairs_of(held).items()}
    expected = start - 2.0 * weighed_mean(held, vectors, weights, cap)
    found = Round(ULDP_SGD, noise(weights), weights=weights, count_cap=cap, server_lr=2.0)
    assert found.model == pytest.approx(expected, abs=ROUNDING)
    other = start + 2.0 * weighed_mean(held, vectors, weights, cap)
    assert np.abs(found.model - other).max() > 1e-2, "it descends"
    assert (
        np.linalg.norm([*vectors.values()], axis=1).min()
        < CLIP
        < np.linalg.norm([*vectors.values()], axis=1).max()
    )


@WEIGHTS
def test_a_round_of_uldp_avg_is_its_rederivation(weights: str) -> None:
    held, start = parts(), START.astype(np.float64)
    vectors = {pair: descended(start, rows, 4, 0.3) for pair, rows in pairs_of(held).items()}
    expected = start + 1.5 * weighed_mean(held, vectors, weights, 10**6)
    found = Round(
        ULDP_AVG, noise(weights), weights=weights, server_lr=1.5, local_epochs=4, lr=0.3, batch=999
    )
    assert found.model == pytest.approx(expected, abs=ROUNDING)


def test_a_round_of_uldp_naive_is_its_rederivation() -> None:
    held, start = parts(), START.astype(np.float64)
    updates = [clipped(descended(start, held.rows(silo), 4, 0.3), CLIP) for silo in range(SILOS)]
    found = Round(ULDP_NAIVE, noise("uniform"), server_lr=1.5, local_epochs=4, lr=0.3, batch=999)
    assert found.model == pytest.approx(start + 1.5 * np.mean(updates, axis=0), abs=ROUNDING)


def test_a_round_of_uldp_group_is_its_rederivation() -> None:
    """With γ = 1 every kept record is in every step; the sum of clipped gradients is divided by γ
    n_s.
    """
    held, start = parts(), START.astype(np.float64)
    kept = held.at_most(5, KEY / "records of a user")
    updates = []
    for silo in range(SILOS):
        x, rows = start.copy(), kept.rows(silo)
        for _ in range(3):
            x -= 0.4 * np.mean(
                [clipped(gradient(x, rows[[i]]), CLIP) for i in range(len(rows))], axis=0
            )
        updates.append(x - start)
    given = {"group": 5, "rate": 1.0, "local_epochs": 3, "lr": 0.4, "server_lr": 1.5}
    found = Round(ULDP_GROUP, noise("records"), **given)
    assert found.model == pytest.approx(start + 1.5 * np.mean(updates, axis=0), abs=ROUNDING)
    assert all(isinstance(upload.body, Update) for upload in found.uploads)


def test_poisson_batches_of_a_group_have_the_rate_and_are_divided_by_what_is_expected() -> None:
    """The mean of many rounds with γ = 1/4 and one step is the step on all records, and single ones
    differ.
    """
    rate, rounds = 0.25, 300
    group = ULDP_GROUP.clients(
        _group_parts(), ULDP_GROUP.config(group="max", rate=rate, local_epochs=1, lr=1.0)
    )
    sizes = [len(group._poisson(parts().rows(0), 0, n)) for n in range(rounds)]  # type: ignore[attr-defined]
    expected = rate * len(parts().rows(0))
    assert np.mean(sizes) == pytest.approx(expected, abs=5 * np.sqrt(expected / rounds))
    assert np.std(sizes) == pytest.approx(np.sqrt(expected * (1 - rate)), rel=0.2)


def _group_parts() -> ClientGroupParts:
    return ClientGroupParts([objective()], parts(), KEY, users=noise("records"))


@pytest.mark.parametrize(("size", "k"), [(5, 5), ("max", None), ("median", None)])
def test_groups_take_records_of_a_users_silos_in_turn(size: Any, k: int | None) -> None:
    held = parts()
    totals = held.counts().sum(0)
    wanted = k or int(totals.max() if size == "max" else np.median(totals))
    assert held.most_records(size) == wanted
    kept = held.at_most(wanted, KEY)
    for before, after in zip(held.counts().T, kept.counts().T, strict=True):
        assert after.sum() == min(before.sum(), wanted)
        level = int(after.max())
        assert (after >= np.minimum(before, level - 1)).all(), (
            "no silo gives two more than another that has them"
        )
    assert set(kept.ids) <= set(held.ids)
    assert all(np.isin(kept.rows(silo), held.rows(silo)).all() for silo in range(SILOS))
    assert kept.users == held.users


def test_a_group_that_leaves_a_silo_without_records_is_refused() -> None:
    lonely = parts()
    for user in range(1, USERS):
        lonely = without(lonely, user)
    with pytest.raises(SpecError, match=r"method\.group: 1 records of a user leave silo"):
        Round(ULDP_GROUP, noise("records"), at=lonely, group=1)


def test_epochs_are_permutations_of_ones_own_records() -> None:
    rows = np.arange(100, 117)
    batches = epochs(rows, LocalEpochs("", local_epochs=3, batch=5), KEY)
    assert [len(b) for b in batches] == 3 * [5, 5, 5, 2]
    first, second = (np.concatenate(batches[i : i + 4]) for i in (0, 4))
    assert sorted(first) == sorted(second) == rows.tolist()
    assert first.tolist() != second.tolist()
    assert [
        b.tolist() for b in epochs(rows, LocalEpochs("", local_epochs=2, batch=17), KEY)
    ] == 2 * [rows.tolist()]


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_a_users_integers_have_the_same_bits_whoever_else_is_there(
    monkeypatch, method, settings, engine
) -> None:
    """Transcript forcing: take a user away, and every other pair's integers stay; blocks of three
    pairs at a time.
    """
    monkeypatch.setattr(user_sums, "_BLOCK_NUMBERS", 3 * SIZE)
    of = objective(engine)
    whole = integers_of(monkeypatch, method, settings, parts(), of)
    for user in range(USERS):
        rest = integers_of(monkeypatch, method, settings, without(parts(), user), of)
        assert rest == {pair: found for pair, found in whole.items() if pair[1] != user}


def integers_of(monkeypatch, method, settings, held, of) -> dict[tuple[int, int], bytes]:
    """The bytes of every pair's E, by silo and user."""
    seen: list[np.ndarray] = []

    def noted(vectors: np.ndarray, **given: Any) -> Any:
        found = user_integers(vectors, **given)
        seen.extend(found[0])
        return found

    monkeypatch.setattr(user_sums, "user_integers", noted)
    Round(method, noise("records"), at=held, of=of, **settings)
    return {pair: row.tobytes() for pair, row in zip(pairs_of(held), seen, strict=True)}


class Normalised(CompiledObjective):
    """A model with batch normalisation over whatever pairs are there: the control of the forcing
    test.
    """

    def gradients(self, at: torch.Tensor, rows: Any) -> np.ndarray:
        return super().gradients(at + float(X[np.concatenate(rows)].mean()), rows)


def test_a_normalisation_over_all_that_are_there_moves_others_bits(monkeypatch) -> None:
    network = dense_whole("logistic", (6,), (), 3)
    assert network is not None
    of = Normalised(network, KeptRows(X, Y))
    whole = integers_of(monkeypatch, ULDP_SGD, {}, parts(), of)
    rest = integers_of(monkeypatch, ULDP_SGD, {}, without(parts(), 0), of)
    assert any(rest[pair] != whole[pair] for pair in rest)


@WEIGHTS
@EACH
def test_a_user_moves_the_sum_by_at_most_the_stated_bound(method, settings, weights) -> None:
    """Taken away, or with other labels and features a thousand times as large: once or twice the
    sensitivity.
    """
    given = {"weights": weights, **settings}
    release = noise(weights).release
    whole = Round(method, noise(weights), **given).total
    moves, changes = [], []
    for user in range(USERS):
        moves.append(
            np.linalg.norm(
                whole - Round(method, noise(weights), at=without(parts(), user), **given).total
            )
        )
        rows = np.concatenate([rows for (_, u), rows in pairs_of(parts()).items() if u == user])
        x, y = X.clone(), Y.clone()
        x[rows] *= 1000
        y[rows] = (y[rows] + 1) % 3
        other = Round(method, noise(weights), of=objective("compiled", x, y), **given).total
        changes.append(np.linalg.norm(whole - other))
    assert max(moves) <= release.sensitivity
    assert max(changes) <= 2 * release.sensitivity
    assert max(changes) > 0.4 * release.sensitivity, "the bound is not far off"


def test_what_breaks_the_bound_is_seen_to_break_it() -> None:
    """Controls, with a user that has one strange record many times in all silos."""
    held, release = parts(), noise("records").release
    user = int(np.argmin((held.counts() == 0).sum(0)))
    mine = [rows for (_, u), rows in pairs_of(held).items() if u == user]
    assert len(mine) == SILOS
    x, y = X.clone(), Y.clone()
    x[np.concatenate(mine)], y[np.concatenate(mine)] = 50.0, 0
    of = objective("compiled", x, y)

    def moved(method: Any, given: Any, **settings: Any) -> float:
        totals = [
            Round(method, given, at=at, of=of, **settings).total
            for at in (held, without(held, user))
        ]
        return float(np.linalg.norm(totals[0] - totals[1]))

    assert 0.9 * release.sensitivity < moved(ULDP_SGD, noise("records")) <= release.sensitivity
    vectors = np.stack([gradient(START, rows, x.numpy(), y.numpy()) for rows in mine])
    integers, _ = user_integers(vectors, clip=CLIP, bits=16)
    assert np.linalg.norm(integers.sum(0)) > release.sensitivity, "every pair with weight 1"
    singly = np.clip(vectors, -CLIP, CLIP).mean(0) / release.unit
    assert np.linalg.norm(singly) > release.sensitivity, "every number clipped by itself"
    naive = moved(ULDP_NAIVE, noise("uniform"), local_epochs=5, lr=1.0)
    assert naive > release.limit * SILOS, "training shared by a silo's users, by the paper's bound"


@EACH
def test_only_users_that_are_drawn_count_and_the_coin_is_one_for_all_silos(
    method, settings
) -> None:
    given = {"sampling": 0.4, **settings}
    sums = UserSums(parts(), noise("records"), method.config(**given))
    drawn = np.array([sums.drawn(round) for round in range(1, 400)])
    assert stats.binomtest(int(drawn.sum()), drawn.size, 0.4).pvalue > 0.001
    assert not np.array_equal(drawn[0], drawn[1])
    held = parts()
    for user in np.flatnonzero(~sums.drawn(1)):
        held = without(held, int(user))
    sampled, rest = (
        Round(method, noise("records"), **given),
        Round(method, noise("records"), at=held, **settings),
    )
    counts = parts().counts()[:, sums.drawn(1)]
    assert np.array_equal(counts.sum(0), held.counts().sum(0)[sums.drawn(1)])
    assert np.array_equal(sampled.total, rest.total)
    assert sampled.model - START == pytest.approx((rest.model - START) / 0.4, abs=1e-5)


def test_noise_has_the_stated_variance_in_the_sum_over_silos() -> None:
    """150 rounds' noise of 21 numbers has the law's deviation, and none that is a tenth larger."""
    given = noise("records", multiplier=2.0)

    def summed(round: int) -> np.ndarray:
        shares = [
            given.share(SIZE, SILOS, (s, round, 0), pairs=1, nonfinite=0)[0] for s in range(SILOS)
        ]
        found: np.ndarray = np.sum(shares, axis=0)
        return found

    drawn = np.concatenate([summed(round) for round in range(150)]) / (
        2.0 * given.release.sensitivity
    )
    assert stats.kstest(drawn, "norm").pvalue > 0.001
    assert stats.chi2(drawn.size).cdf((drawn / 1.1) @ (drawn / 1.1)) < 1e-4
    quiet, loud = (Round(ULDP_SGD, noise("records", multiplier=m)).total for m in (0.0, 2.0))
    assert np.array_equal(loud - quiet, summed(1))


def test_a_vector_that_is_not_finite_counts_zero() -> None:
    held, x = parts(), X.clone()
    silo, user = next(iter(pairs_of(held)))
    x[pairs_of(held)[silo, user][0], 0] = torch.nan
    sick = Round(ULDP_SGD, noise("records", 1.0), of=objective("torch", x))
    assert [u.releases[0].receipt.nonfinite for u in sick.uploads] == [
        int(s == silo) for s in range(SILOS)
    ]
    assert np.isfinite(sick.model).all()


def test_receipts_say_what_was_done() -> None:
    given = noise("uniform", 1.5)
    for upload in Round(ULDP_SGD, given, weights="uniform").uploads:
        (release,) = upload.releases
        assert np.isnan(release.value), "no value is on record before its noise"
        assert release.receipt.sigma == pytest.approx(1.5 * SILOS * (2**16 - 1) / np.sqrt(SILOS))
        assert release.receipt.batch == len(parts().pairs(upload.client))
    uploads = Round(ULDP_GROUP, noise("records", 1.5), group=5, rate=0.5, local_epochs=2).uploads
    assert [[r.perturbation for r in u.releases] for u in uploads] == SILOS * [[0, 1, 2, 3]]
    assert {r.receipt.sigma for u in uploads for r in u.releases} == {1.5 * (2**16 - 1)}


def test_a_step_that_leads_to_infinity_ends_the_run() -> None:
    with pytest.raises(Diverged, match="round 1"):
        Round(ULDP_SGD, noise("records"), server_lr=1e40)


def test_another_message_is_refused() -> None:
    with pytest.raises(TypeError, match="sums cannot serve Update"):
        user_sums.sum_of([Upload(0, 0, Update(np.zeros(3, np.float32)))])


def upload_peak(size: int) -> int:
    """The most memory of numpy's that a silo's upload takes: 40 silos, 10,000 users."""
    held = share_users(
        Known(np.zeros(30_000, np.int64)), 40, UsersSection(count=12_000), KEY / "parts"
    )
    assert held.users > 10_000
    assert len(held.pairs(0)) > 400
    made_with = dataclasses.replace(noise("records", multiplier=1.0), users=held.users)
    sums = UserSums(held, made_with, ULDP_SGD.config())

    def vectors(pairs: Pairs, places: np.ndarray) -> np.ndarray:
        return np.ones((len(places), size), np.float32)

    tracemalloc.start()
    try:
        sums.upload(Order(0, Weights(np.zeros(size, np.float32)), 1), size, vectors)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_silos_upload_takes_little_memory_whatever_the_number_of_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 21_840
    most = 256_000_000 + 16 * size
    assert upload_peak(size) < most / 3
    monkeypatch.setattr(
        user_sums, "_BLOCK_NUMBERS", 1 << 23
    )  # the control: eight times as many at a time
    assert upload_peak(size) > most
