"""Accounting of noised rows against closed forms, and what is claimed against whom."""

import dataclasses
import math

import numpy as np
import pytest

from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.privacy.release import Spent, verdict
from raydpzv.privacy.rows import RowReleasePlan
from tests.helpers.accounts import event

ZOO = RowReleasePlan(
    on="embedding",
    rows=1000,
    batch=50,
    updates=400,
    per_upload=2,
    clip=1.5,
    sigma=40.0,
    delta=1e-5,
    batches="shuffle",
    noise="system",
    shares=(0.25,) * 4,
    hidden=False,
    width=2,
)
VAFL = dataclasses.replace(ZOO, per_upload=1, hidden=True)
DOWN = dataclasses.replace(VAFL, on="gradient")
SAMPLED = dataclasses.replace(ZOO, calibrated_by="sampled", sigma=2.0)


def by(setting: RowReleasePlan) -> dict[str, object]:
    return {c.adversary: c for c in setting.table()}


def test_the_calibration_meets_its_target_under_its_own_argument() -> None:
    """4 clients, 400 updates: 100 uploads each, 20 batches a pass, so 5 passes and, twice per
    upload, 10 releases.
    """
    assert ZOO.expected_participations == 10
    assert VAFL.expected_participations == 5
    assert DOWN.expected_participations == 20
    sigma = ZOO.with_sigma_for(1.0).sigma
    assert math.sqrt(10) * 2 * 1.5 / sigma == pytest.approx(mu_of(1.0, 1e-5))
    found = by(ZOO.with_sigma_for(1.0))
    assert found["paper"].epsilon == pytest.approx(1.0, rel=1e-9)
    sampled = SAMPLED.with_sigma_for(1.0).sigma
    # DPZV's σ = 2C√T/(Dμ) is on a mean of B rows: B times that on a row
    assert sampled == pytest.approx(50 * 2 * 1.5 * math.sqrt(200) / (1000 * mu_of(1.0, 1e-5)))
    found = by(SAMPLED.with_sigma_for(1.0))
    assert found["paper"].epsilon == pytest.approx(1.0, rel=1e-9)
    assert not found["paper"].holds
    with pytest.raises(InputError, match="no noise level"):
        dataclasses.replace(ZOO, delta=0.0).with_sigma_for(1.0)


def test_shares_follow_the_rates() -> None:
    uneven = dataclasses.replace(ZOO, shares=(0.7, 0.1, 0.1, 0.1))
    assert uneven.expected_uploads == 280
    assert uneven.expected_participations == 2 * 14
    assert (
        dataclasses.replace(uneven, on="gradient", per_upload=1).expected_participations
        == 14 + 3 * 2
    )
    poisson = dataclasses.replace(ZOO, batches="poisson", per_upload=1)
    assert poisson.expected_participations == 5


def test_planned_bounds_hold_for_every_arrival_order() -> None:
    """All 400 uploads may be one client's, and one more under way at the end: 21 passes, two
    releases each.
    """
    assert ZOO.participations == 42
    assert ZOO.released == 2 * 401 * 50
    assert dataclasses.replace(ZOO, batches="poisson").participations == 802
    assert dataclasses.replace(ZOO, batches="poisson").released == 2 * 401 * 1000
    assert dataclasses.replace(ZOO, queries=True).participations == 802
    exact = dataclasses.replace(VAFL, exact_shares=True)
    assert (exact.participations, exact.released) == (6, 101 * 50)
    # on gradients all clients' passes meet in one record: 4 + (400 - 4) // 20
    assert DOWN.participations == 23
    assert DOWN.released == 400 * 50


def test_a_zoo_vfl_clients_rows_are_proved_by_counted_participation() -> None:
    counted = ZOO.counted_as(Spent(100, counted=12, rows=9000, uploads=90))
    found = by(counted)
    assert found["server"].epsilon == pytest.approx(epsilon_of(math.sqrt(12) * 3 / 40, 1e-5))
    assert found["server"].holds
    assert found["server"].direct_only is None
    assert found["server"].relation == "replace"
    assert found["server"].accountant == "closed form (GDP)"
    for who in ("client", "external"):
        assert found[who].epsilon == math.inf
        assert not found[who].holds
    said = verdict(counted)
    assert not said.private
    assert said.reason.startswith("labels are not protected")
    assert (
        "replace one record's features at one client) is proved against the server" in said.bounds
    )


def test_with_hidden_state_only_the_range_of_all_rows_is_proved() -> None:
    counted = DOWN.counted_as(Spent(100, counted=6, rows=5000, uploads=100))
    found = by(counted)
    assert found["client"].epsilon == pytest.approx(epsilon_of(math.sqrt(5000) * 3 / 40, 1e-5))
    assert found["client"].direct_only == pytest.approx(epsilon_of(math.sqrt(6) * 3 / 40, 1e-5))
    assert found["paper"].epsilon == pytest.approx(found["client"].direct_only)
    assert not found["paper"].holds
    assert all(found[other].epsilon == math.inf for other in ("server", "external"))
    assert "NOT PRIVATE" in verdict(counted).text


def test_held_out_embeddings_of_hidden_state_leave_nothing_proved() -> None:
    """The attack that this stands for: tests/unit/methods/vertical/test_vafl_held_out.py."""
    counted = VAFL.counted_as(Spent(100, counted=6, rows=5000, uploads=100))
    found = by(counted)
    assert not any(claim.holds for claim in found.values())
    assert all(found[who].epsilon == math.inf for who in ("server", "client", "external"))
    assert found["server"].direct_only == pytest.approx(epsilon_of(math.sqrt(6) * 3 / 40, 1e-5))
    assert "held-out rows without noise" in found["server"].note
    assert "No useful ε is proved." in verdict(counted).text
    assert VAFL.account().would_exceed(event(range(50)), 1e9, "server")


@pytest.mark.parametrize(
    ("change", "why"),
    [({"clip": None}, "not clipped"), ({"noise": "seeded"}, "seed"), ({"sigma": 0.0}, "no noise")],
)
def test_no_epsilon_without_clip_secret_noise_and_noise_at_all(
    change: dict[str, object], why: str
) -> None:
    for setting in (ZOO, VAFL, DOWN):
        broken = dataclasses.replace(setting, **change)
        assert why in broken.defect()
        assert all(c.epsilon == math.inf and not c.holds for c in broken.table())
        assert why in verdict(broken).text


def test_an_account_counts_by_client_and_record_as_a_slow_count_does() -> None:
    generator = (Key(8) / "spending").generator()
    account = ZOO.account()
    slow = np.zeros((4, 1000), int)
    for _ in range(60):
        client, size = int(generator.integers(4)), int(generator.integers(0, 60))
        ids = generator.choice(1000, size, replace=False)
        account.charge(event(ids, 2, client))
        slow[client, ids] += 2
    assert account.spent().counted == slow.max()
    assert account.spent().rows == slow.sum(1).max()
    assert account.mu() == pytest.approx(math.sqrt(slow.max()) * 3 / 40)
    together = DOWN.account()
    for client in (0, 3):
        together.charge(event(range(5), client=client))
    assert (together.spent().counted, together.spent().rows) == (2, 10)


def test_an_account_resumes_from_a_checkpoint_that_has_the_largest_batch_too() -> None:
    account, again = ZOO.account(), ZOO.account()
    account.charge(event(range(50), 2, 1))
    older = account.state()
    again.restore(older | {"counts": [*older["counts"], 40]})
    assert str(again.state()) == str(account.state())


def test_a_release_that_would_pass_the_budget_is_seen_before() -> None:
    account, count = ZOO.account(), 0
    budget, one, other = (
        epsilon_of(math.sqrt(6) * 3 / 40, 1e-5),
        event(range(50), 2, 1),
        event(range(50), 2, 2),
    )
    while not account.would_exceed(one, budget, "server"):
        account.charge(one)
        count += 1
    assert count == 3
    assert not account.would_exceed(other, budget, "server")
    assert not account.would_exceed(event(range(50, 100), 2, 1), budget, "server")
    assert account.would_exceed(other, 1e9, "client")
    assert dataclasses.replace(ZOO, noise="seeded").account().would_exceed(one, 1e9, "server")


GUARDED = (
    (ZOO, "server", lambda n, rows, uploads: ZOO.proved_mu(n, rows)),
    (DOWN, "client", lambda n, rows, uploads: DOWN.proved_mu(n, rows)),
    (ZOO, "paper", lambda n, rows, uploads: ZOO.claimed_mu(n, uploads)),
    (SAMPLED, "paper", lambda n, rows, uploads: SAMPLED.claimed_mu(n, uploads)),
)


@pytest.mark.parametrize(("setting", "adversary", "mu"), GUARDED)
def test_the_budget_refuses_what_solving_for_epsilon_each_time_would_refuse(setting, adversary, mu):
    """At every count, from the first to far beyond the ceiling, which lies between the two for each
    budget.
    """
    release = event(range(setting.batch), setting.per_upload)
    for budget in (3.0, 3.4, epsilon_of(mu(60, 60 * 50, 60), setting.delta)):
        account, refused = setting.account(), []
        for uploads in range(1, 130):
            n, rows = uploads * setting.per_upload, uploads * setting.per_upload * setting.batch
            slow = epsilon_of(mu(n, rows, uploads), setting.delta) > budget * (1 + 1e-9)
            assert account.would_exceed(release, budget, adversary) == slow, (budget, uploads)
            refused.append(slow)
            account.charge(release)
        assert any(refused), budget
        assert not refused[0], budget
