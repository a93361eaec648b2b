import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raydpzv.errors import InputError, SpecError
from raydpzv.keys import Key
from raydpzv.privacy.calibration import paper_sigma
from raydpzv.privacy.claims import Claim
from raydpzv.privacy.mean import (
    MeanAccount,
    MeanReleasePlan,
    participation_epsilon,
    whole_mean_epsilon,
)
from raydpzv.privacy.pld import poisson_epsilon, poisson_releases
from raydpzv.privacy.release import Spent, verdict
from tests.helpers.accounts import charged, event

SIGMA = paper_sigma(epsilon=1.0, delta=1e-5, clip=5.0, releases=2000, rows=1000)
BASE = MeanReleasePlan(
    rows=1000,
    batch=50,
    releases=2000,
    clip=5.0,
    sigma=SIGMA,
    delta=1e-5,
    batches="shuffle",
    server="frozen",
    noise="system",
    target=1.0,
    clients=4,
)


def row(setting: MeanReleasePlan, adversary: str, relation: str = "replace") -> Claim:
    (found,) = [c for c in setting.table() if (c.adversary, c.relation) == (adversary, relation)]
    return found


def test_the_table_has_every_row_with_all_that_an_epsilon_needs() -> None:
    rows = BASE.table()
    assert [(c.adversary, c.relation) for c in rows] == [
        ("paper", "replace"),
        ("client", "replace"),
        ("client", "add_remove"),
        ("external", "replace"),
        ("external", "add_remove"),
        ("server", "replace"),
    ]
    assert all(c.mechanism and c.accountant and c.note and c.delta == 1e-5 for c in rows)
    assert rows[-1].epsilon == math.inf
    assert not rows[-1].holds


@pytest.mark.parametrize("server", ["frozen", "sgd"])
@pytest.mark.parametrize("batches", ["shuffle", "uniform", "poisson"])
@pytest.mark.parametrize("noise", ["system", "seeded"])
def test_infinity_is_never_said_to_hold_and_a_finite_bound_always_has_an_accountant(
    server: str, batches: str, noise: str
) -> None:
    for claim in replace(BASE, server=server, batches=batches, noise=noise).table():
        assert (claim.accountant == "none") == (claim.epsilon == math.inf)
        assert not (claim.holds and claim.epsilon == math.inf)


def test_client_counts_all_clients_releases() -> None:
    n = 4 + (2000 - 4) // 20
    assert BASE.participations == n
    client = row(BASE, "client")
    assert client.holds
    assert client.epsilon == participation_epsilon(
        participations=n, sensitivity=2 * 5.0 / 50, sigma=SIGMA, delta=1e-5
    )
    assert row(BASE, "client", "add_remove").epsilon < client.epsilon / 2
    assert client.epsilon > 5 * row(BASE, "paper").epsilon


def test_counted_participation_replaces_the_plan() -> None:
    counted = replace(BASE, batches="uniform", made=Spent(2000, counted=130))
    assert row(counted, "client").epsilon == participation_epsilon(
        participations=130, sensitivity=0.2, sigma=SIGMA, delta=1e-5
    )
    assert "counted" in row(counted, "client").note
    planned = row(replace(BASE, batches="uniform"), "client")
    assert planned.epsilon > row(counted, "client").epsilon
    assert "FORECAST" in planned.note


def test_each_row_names_the_sensitivity_that_it_accounts_for() -> None:
    def reach(setting: MeanReleasePlan) -> list[float | None]:
        return [None if math.isnan(c.sensitivity) else c.sensitivity for c in setting.table()]

    replaced, removed = 2 * 5.0 / 50, 5.0 / 50
    assert reach(BASE) == [replaced, replaced, removed, replaced, removed, None]
    hidden = replace(
        BASE, server="sgd", batches="poisson", made=Spent(2000, counted=2000, largest_batch=75)
    )
    whole = 2 * 5.0 * 75 / 50
    assert reach(hidden) == [replaced, whole, whole, None, None, None]
    assert reach(replace(BASE, noise="seeded")) == [None] * 6


def test_mechanism_and_scope_say_what_all_rows_share() -> None:
    *rows, server = BASE.table()
    assert {c.mechanism for c in rows} == {
        f"floating-point Gaussian, σ={SIGMA:.4g} on the mean slope, system noise"
    }
    assert server.mechanism == "none"
    (scope,) = {c.scope for c in (*rows, server)}
    for fact in ("2,000 releases", "C=5", "B=50 of D=1,000 records", "shuffle", "unit: one record"):
        assert fact in scope
    assert "1 release of" in replace(BASE, releases=1).table()[0].scope


@pytest.mark.parametrize("server", ["frozen", "sgd"])
@pytest.mark.parametrize("batches", ["shuffle", "poisson"])
def test_texts_for_people_name_no_field_and_write_large_numbers_in_full(
    server: str, batches: str
) -> None:
    setting = replace(BASE, server=server, batches=batches, sigma=SIGMA / 20)
    texts = [verdict(setting).text, *(c.note for c in setting.table())]
    assert not any(field in text for text in texts for field in ("direct_only", "add_remove", "e+"))
    assert row(setting, "client").note.endswith(".")


def test_both_relations_share_one_note() -> None:
    for server in ("frozen", "sgd"):
        found = replace(BASE, server=server, batches="uniform").table()
        for adversary in ("client", "external"):
            assert len({c.note for c in found if c.adversary == adversary}) == 1


def test_the_papers_number_is_a_claim_and_true_only_where_a_proof_covers_it() -> None:
    paper = row(BASE, "paper")
    assert paper.epsilon == pytest.approx(1.0)
    assert not paper.holds
    full = replace(
        BASE, batch=1000
    )  # every record in every batch: there was no amplification to lose
    assert row(full, "paper").holds
    assert row(full, "client").epsilon == pytest.approx(1.0)
    assert not row(replace(full, server="sgd"), "paper").holds


def test_what_an_outsider_may_know_is_the_reason_only_where_batches_are_poisson() -> None:
    exposed = replace(BASE, exposed="the seed can be guessed")
    assert 'since batches are "shuffle", not "poisson"' in row(exposed, "external").note
    assert (
        "since the seed can be guessed" in row(replace(exposed, batches="poisson"), "external").note
    )


def test_external_is_amplified_only_by_secret_poisson_coins() -> None:
    assert row(BASE, "external").epsilon == row(BASE, "client").epsilon
    secret = row(replace(BASE, batches="poisson"), "external")
    assert secret.epsilon == poisson_epsilon(
        noise_multiplier=SIGMA * 10, rate=0.05, releases=2000, delta=1e-5, relation="replace"
    )
    assert "the coins stay secret" in secret.note
    assert "PLD" in secret.accountant


def test_perturbations_share_their_batch() -> None:
    setting = replace(BASE, batches="poisson", per_upload=4)
    assert row(setting, "external").epsilon == poisson_epsilon(
        noise_multiplier=SIGMA * 10 / 2, rate=0.05, releases=500, delta=1e-5, relation="replace"
    )
    assert replace(BASE, per_upload=4).participations == 4 * (4 + (500 - 4) // 20)


@pytest.mark.parametrize("server", ["sgd", "zo"])
def test_hidden_state_leaves_the_whole_mean_bound(server: str) -> None:
    setting = replace(BASE, server=server)
    bound = whole_mean_epsilon(releases=2000, clip=5.0, sigma=SIGMA, delta=1e-5)
    for relation in ("replace", "add_remove"):
        client = row(setting, "client", relation)
        assert client.epsilon == bound
        assert client.direct_only == row(BASE, "client", relation).epsilon
        assert "whole mean" in client.note
        external = row(setting, "external", relation)
        assert external.epsilon == math.inf
        assert not external.holds
    said = verdict(setting)
    assert not said.private
    assert said.headline().startswith(
        "NOT PRIVATE: the server trains its head on labels without noise"
    )
    assert "No useful ε is proved." in said.text
    assert f"{bound:,.0f}" not in said.text, "a large number is no headline"


def test_a_poisson_batch_may_outgrow_the_divisor() -> None:
    hidden = replace(BASE, server="sgd", batches="poisson")
    assert hidden.load == 20.0
    assert replace(hidden, made=Spent(2000, counted=2000, largest_batch=75)).load == 1.5
    assert row(hidden, "client").epsilon > row(replace(hidden, batches="uniform"), "client").epsilon


@pytest.mark.parametrize(
    ("change", "word"), [({"noise": "seeded"}, "seed"), ({"sigma": 0.0}, "no noise")]
)
def test_a_defect_makes_every_row_infinite_and_is_named(
    change: dict[str, object], word: str
) -> None:
    setting = replace(BASE, **change)  # type: ignore[arg-type]
    assert all(
        c.epsilon == math.inf and not c.holds and c.direct_only is None for c in setting.table()
    )
    assert all(word.lower() in c.note.lower() for c in setting.table() if c.adversary != "server")
    assert not verdict(setting).private
    assert word in verdict(setting).reason
    assert setting.account().charge(event(range(50))).epsilons() == (math.inf, math.inf)


def test_verdict_of_a_proved_run_says_what_it_leaves_out() -> None:
    found = verdict(BASE)
    assert found.private
    for words in (
        "replace one record",
        "hyper-parameter search",
        "evaluation",
        "floating-point",
        "not the target",
    ):
        assert words in found.text
    modest = paper_sigma(epsilon=1.0, delta=1e-5, clip=5.0, releases=2000, rows=50)
    assert "target" not in verdict(replace(BASE, sigma=modest)).text


def test_a_delta_of_one_over_the_rows_is_said() -> None:
    assert not any("1/D" in clause for clause in BASE.caveats())
    large = replace(BASE, rows=490, batch=49, delta=1 / 490)
    assert "not below 1/D = 0.00204" in large.large_delta()
    assert large.large_delta() in large.caveats()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"server": "sdg"}, 'Did you mean "sgd"'),
        ({"batch": 2000}, "as many rows"),
        ({"delta": 1.0}, "δ"),
        ({"clip": math.nan}, "clip"),
        ({"releases": 0}, "releases"),
    ],
)
def test_a_senseless_setting_is_refused(change: dict[str, object], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        replace(BASE, **change)  # type: ignore[arg-type]


CALIBRATED = replace(
    BASE,
    rows=1437,
    batch=64,
    clip=2.0,
    delta=1e-3,
    server="sgd",
    sigma=paper_sigma(epsilon=1.0, delta=1e-3, clip=2.0, releases=2000, rows=1437),
)


def test_the_calibration_names_its_formula_its_inputs_and_its_result() -> None:
    said = CALIBRATED.calibration()
    for part in (
        "2·2·√2,000 / (1,437·0.3884) = 0.3205",
        "Theorem VI.5",
        "ε = 1 at δ = 0.001",
        "replace one record",
        "C = 2",
        "T = 2,000 planned releases",
        "D = 1,437",
    ):
        assert part in said
    assert 2 * 2 * math.sqrt(2000) / (1437 * 0.3884) == pytest.approx(CALIBRATED.sigma, rel=2e-4)


def test_a_given_sigma_is_said_to_follow_from_nothing() -> None:
    said = replace(CALIBRATED, target=None).calibration()
    assert said.startswith("σ = 0.3205")
    assert "Theorem" not in said


# The account of released means against recounts, closed forms, and what its budget foresees.


def make(**changes: Any) -> MeanAccount:
    setting = {"rows": 100, "batch": 10, "releases": 1, "clip": 1.0, "sigma": 0.5, "delta": 1e-5}
    return MeanReleasePlan(**{**setting, "server": "frozen", **changes}).account()


def batches(count: int, rows: int = 100, size: int = 10) -> list[np.ndarray]:
    rng = (Key(5) / "batches").generator()
    return [rng.choice(rows, size, replace=False) for _ in range(count)]


ONE = event(range(10))


def test_the_fold_equals_a_slow_recount() -> None:
    account, counts = make(), dict.fromkeys(range(100), 0)
    for n, batch in enumerate(batches(40)):
        ids = batch[: 4 + 3 * n % 7]  # the last is not the largest
        loss = account.charge(event(ids, 3))
        for i in ids.tolist():
            counts[i] += 3
        worst = max(counts.values())
        slow = participation_epsilon(participations=worst, sensitivity=0.2, sigma=0.5, delta=1e-5)
        assert loss.epsilon("client") == pytest.approx(slow)
    assert account.spent() == Spent(120, worst, largest_batch=10)
    again = make()
    again.restore(account.state())
    assert again.spent() == account.spent()
    assert pickle.loads(pickle.dumps(account)).mu() == account.mu()


def test_hidden_state_charges_every_release_the_whole_range() -> None:
    for ids, releases, load in ((batches(7), 2, 1.0), ([range(20)], 1, 2.0)):
        # a Poisson batch of 20 over the divisor 10 has twice the range
        account = charged(make(server="sgd"), ids[:-1], releases)
        loss = account.charge(event(ids[-1], releases))
        assert loss.epsilon("client") == pytest.approx(
            whole_mean_epsilon(
                releases=len(ids) * releases, clip=1.0, sigma=0.5, delta=1e-5, load=load
            )
        )


def test_external_budget_counts_poisson_batches_with_their_perturbations() -> None:
    plan = {"rate": 0.1, "delta": 1e-5, "budget": 2.0}
    account = make(sigma=0.3, batches="poisson")
    most = poisson_releases(noise_multiplier=3.0 / math.sqrt(4), **plan)
    assert 1 < most < poisson_releases(noise_multiplier=3.0, **plan)
    for ids in batches(most):
        assert not account.would_exceed(event(ids, 4), 2.0, "external")
        account.charge(event(ids, 4))
    assert account.would_exceed(event(range(10), 4), 2.0, "external")
    shuffled = charged(make(sigma=0.3), batches(1))
    assert shuffled.would_exceed(ONE, 1.0, "external") == shuffled.would_exceed(ONE, 1.0, "client")


def test_external_sees_a_final_model_that_hidden_state_spoils() -> None:
    assert make(server="sgd", batches="poisson").would_exceed(ONE, 1e12, "external")


@pytest.mark.parametrize("adversary", ["client", "paper", "external"])
def test_without_noise_nothing_is_within_a_budget(adversary: str) -> None:
    account = make(sigma=0.0, batches="poisson")
    assert account.mu() == 0.0
    assert account.would_exceed(ONE, 1e9, adversary)
    assert account.charge(ONE).epsilons() == (math.inf, math.inf)


def test_an_empty_poisson_batch_is_a_release_of_nobody() -> None:
    account = make(batches="poisson")
    assert not account.would_exceed(event([]), 1.0, "client")
    assert account.charge(event([])).epsilon("client") == 0.0
    assert (account.spent().releases, account.spent().counted) == (1, 0)


def test_a_budget_against_nobody_is_refused() -> None:
    with pytest.raises(InputError, match="server"):
        make().would_exceed(event(range(3)), 1.0, "server")


def test_a_run_calibrated_to_its_budget_is_not_cut_short() -> None:
    account = make(sigma=paper_sigma(epsilon=1.0, delta=1e-5, clip=1.0, releases=30, rows=100))
    for ids in batches(30):
        assert not account.would_exceed(event(ids), 1.0, "paper")
        account.charge(event(ids))
    assert account.would_exceed(ONE, 1.0, "paper")
