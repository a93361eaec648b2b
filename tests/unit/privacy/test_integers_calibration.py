"""ε, z and updates of integer releases against mpmath, against a PLD of this file's own, and
against recounts.
"""

import itertools
import math
import pickle
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest

from raydpzv.data.batches import Batches
from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.privacy import pld
from raydpzv.privacy.gdp import mu_of
from raydpzv.privacy.integers import IntegerReleasePlan, one_release_epsilon, release_mu, solve
from raydpzv.privacy.release import ReleaseEvent, default_delta
from tests.helpers.accounts import charged, event

D = 1437


def plan(**changes: Any) -> IntegerReleasePlan:
    """The demo's: all rows, 40 directions; length and noise are those that `solve` replaces."""
    shared = {
        "rows": D,
        "batch": D,
        "delta": default_delta(D),
        "clip": 0.1,
        "clients": 4,
        "perturbations": 40,
        "updates": 100,
        "noise_multiplier": 1.0,
    }
    return IntegerReleasePlan(**{**shared, **changes})


def promised_epsilon(found: IntegerReleasePlan) -> float:
    return found.external_epsilon() if found.adversary == "external" else found.clients_epsilon()


def external(**changes: Any) -> IntegerReleasePlan:
    return plan(**{"adversary": "external", "batches": "poisson", "batch": 144, **changes})


def exact_epsilon(mu: Any, delta: float) -> float:
    """The root of δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), to 60 digits."""
    with mpmath.workdps(60):

        def excess(e: Any) -> Any:
            return (
                mpmath.ncdf(-e / mu + mu / 2)
                - mpmath.exp(e) * mpmath.ncdf(-e / mu - mu / 2)
                - delta
            )

        low, high = mpmath.mpf(0), mpmath.mpf(64)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(high)


@pytest.mark.parametrize(("relation", "c"), [("replace", 2), ("labels", 2), ("add_remove", 1)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("share", [None, 0.2])
def test_the_noise_for_an_epsilon_gives_it_back_by_mpmath(
    relation: str, c: int, epsilon: float, share: float | None
) -> None:
    """μ² = n (c/z)² + n⁰ (c/z_0)², n = n⁰ = 400 releases of all rows."""
    server = "dp_sgd" if share else "frozen"
    found = solve(
        plan(relation=relation, server=server, head_share=share), epsilon=epsilon, updates=400
    )
    with mpmath.workdps(60):
        squared = 400 * (mpmath.mpf(c) / found.noise_multiplier) ** 2
        if share:
            head = 400 * (mpmath.mpf(c) / found.head_multiplier) ** 2
            assert float(head / (head + squared)) == pytest.approx(share, rel=1e-9)
            squared += head
        mu = mpmath.sqrt(squared)
    assert exact_epsilon(mu, found.delta) == pytest.approx(epsilon, rel=1e-6)
    assert promised_epsilon(found) == pytest.approx(epsilon, rel=1e-6)
    assert found.clients_mu() == pytest.approx(float(mu), rel=1e-9)
    assert found.scale == found.noise_multiplier * 4096


def test_the_two_parts_of_mu_add_up() -> None:
    mu = release_mu(
        participations=9,
        noise_multiplier=6.0,
        relation="replace",
        head_participations=4,
        head_multiplier=3.0,
    )
    assert mu**2 == pytest.approx(9 * (2 / 6) ** 2 + 4 * (2 / 3) ** 2, rel=1e-12)


def test_full_batches_say_what_the_papers_sigma_says() -> None:
    """σ = 2C√T/(Dμ) with B = D, T = P·updates scalars and z = σB/(C√P)."""
    found = solve(plan(), epsilon=1.0, updates=400)
    sigma = mu_of(1.0, found.delta)
    sigma = 2 * 0.1 * math.sqrt(40 * 400) / (D * sigma)
    assert found.noise_multiplier == pytest.approx(sigma * D / (0.1 * math.sqrt(40)), rel=1e-9)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"batch": 100},
        {"batch": 100, "gather": 7},
        {"batch": 100, "clients": 1},
        {"batch": 100, "batches": "poisson"},
        {"batch": 100, "relation": "add_remove", "server": "dp_sgd", "head_share": 0.5},
    ],
)
def test_any_two_give_the_third(given: dict[str, Any]) -> None:
    here = plan(**given)
    whole = solve(here, epsilon=2.0, updates=420)
    spent = solve(here, noise_multiplier=whole.noise_multiplier, updates=420)
    assert promised_epsilon(spent) == pytest.approx(2.0, rel=1e-9)
    longest = solve(here, epsilon=2.0, noise_multiplier=whole.noise_multiplier)
    assert longest.updates >= 420
    assert longest.participations == whole.participations
    assert promised_epsilon(longest) <= 2.0 * (1 + 1e-8)
    longer = solve(
        here, noise_multiplier=whole.noise_multiplier, updates=longest.updates + here.gather
    )
    assert promised_epsilon(longer) > 2.0, "control: one release more is too many"


def own_poisson_epsilon(z: float, rate: float, releases: int, delta: float, relation: str) -> float:
    """ε of Poisson-sampled Gaussians by privacy loss distributions on a grid of this function's
    own, and an FFT.

    replace: (1−q) N(0, z²) + q N(±1, z²) against one another. add_remove: the worse of P against Q
    and Q against P of (1−q) N(0, z²) + q N(1, z²) and N(0, z²). Losses are rounded to the nearest
    grid point, not up.
    """
    x = np.linspace(-1 - 12 * z, 1 + 12 * z, 400_001)

    def mixture(centre: float) -> np.ndarray:
        normal = np.exp(-((x[:, None] - np.array([0.0, centre])) ** 2) / (2 * z * z)) / (
            z * math.sqrt(2 * math.pi)
        )
        return normal @ np.array([1 - rate, rate])

    pairs = (
        [(mixture(1), mixture(-1))]
        if relation == "replace"
        else [(mixture(1), mixture(0)), (mixture(0), mixture(1))]
    )
    return max(_composed(*pair, x[1] - x[0], releases, delta) for pair in pairs)


def _composed(p: np.ndarray, q: np.ndarray, dx: float, releases: int, delta: float) -> float:
    loss, step = np.log(p / q), 2e-4
    cells = np.rint(loss / step).astype(np.int64)
    low = int(cells.min())
    one = np.bincount(cells - low, weights=p * dx)
    mean, deviation = float(np.sum(loss * p) * dx), float(np.sqrt(np.sum(loss**2 * p) * dx))
    half = int((10 * deviation * math.sqrt(releases) + 5) / step)
    size = 2 ** math.ceil(math.log2(2 * half))
    placed = np.zeros(size)
    np.add.at(placed, (np.arange(len(one)) + low) % size, one)
    mass = np.fft.ifft(np.fft.fft(placed) ** releases).real
    centre = round(releases * mean / step)
    places = centre + np.arange(-half, half)
    losses, chances = places * step, np.maximum(mass[places % size], 0)

    def excess(e: float) -> float:
        above = losses > e
        return float(np.sum(chances[above] * -np.expm1(e - losses[above]))) - delta

    low_e, high_e = 0.0, float(losses[-1])
    for _ in range(50):
        middle = (low_e + high_e) / 2
        low_e, high_e = (middle, high_e) if excess(middle) > 0 else (low_e, middle)
    return high_e


@pytest.mark.parametrize(
    ("relation", "share", "z", "releases"),
    [("replace", None, 3.0, 100), ("add_remove", None, 1.2, 50), ("labels", 0.3, 3.0, 100)],
)
def test_an_outsiders_epsilon_is_that_of_another_pld(
    relation: str, share: float | None, z: float, releases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dp_sgd's two releases on one batch are one of z_eff = (z⁻² + z_0⁻²)^(-1/2)."""
    here = external(relation=relation, server="dp_sgd" if share else "joint", head_share=share)
    found = solve(here, noise_multiplier=z, updates=releases)
    head = found.head_multiplier or math.inf
    effective = (z**-2 + head**-2) ** -0.5
    own = own_poisson_epsilon(
        effective,
        144 / D,
        releases,
        found.delta,
        "add_remove" if relation == "add_remove" else "replace",
    )
    spent = found.external_epsilon()
    assert spent == pytest.approx(own, rel=5e-3)
    assert spent < found.clients_epsilon() / 2, "control: sampling amplifies here"
    coarse = pld.discretisation
    monkeypatch.setattr(pld, "discretisation", lambda *a: coarse(*a) / 2)
    pld._sampled_epsilon.cache_clear()
    halved = found.external_epsilon()
    pld._sampled_epsilon.cache_clear()
    assert halved == pytest.approx(spent, rel=0.01)
    assert halved != spent, "control: another grid"


def test_the_third_is_found_for_an_outsider_too() -> None:
    found = solve(external(), epsilon=1.0, updates=400)
    assert 0.998 < promised_epsilon(found) <= 1.0
    assert (
        found.noise_multiplier
        < solve(plan(batch=144, batches="poisson"), epsilon=1.0, updates=400).noise_multiplier
    )
    longest = solve(external(), epsilon=1.0, noise_multiplier=found.noise_multiplier)
    assert 400 <= longest.updates <= 402
    assert promised_epsilon(longest) <= 1.0 * (1 + 1e-8)
    labels = solve(
        external(relation="labels"), noise_multiplier=found.noise_multiplier, updates=400
    )
    assert promised_epsilon(labels) == promised_epsilon(found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batches": "shuffle"}, 'batches are "shuffle"'),
        ({"exposed": "coins come from the seed (method.coins)"}, "method.coins"),
    ],
)
def test_a_premise_that_fails_is_named_and_the_clients_number_stands(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        solve(external(**change), epsilon=1.0, updates=400)
    whole, broken = (
        solve(external(**{"adversary": "client", **c}), epsilon=1.0, updates=400)
        for c in ({}, change)
    )
    assert broken.external_epsilon() == broken.clients_epsilon() == pytest.approx(1.0)
    assert whole.external_epsilon() < 0.5 * whole.clients_epsilon(), "control"


def recount(batches: list[list[np.ndarray]]) -> int:
    """The most releases that one record is in, the slow way; a release: the batches gathered in
    it.
    """
    counts = dict.fromkeys(range(D), 0)
    for release in batches:
        for row in itertools.chain(*(ids.tolist() for ids in release)):
            counts[row] += 1
    return max(counts.values())


@pytest.mark.parametrize(
    ("how", "size", "gather", "uploads"),
    [
        ("shuffle", 1437, 1, (30,)),  # all rows
        ("shuffle", 200, 1, (30,)),  # 7 a pass, a rest of 37 dropped
        ("shuffle", 100, 7, (30, 23)),  # half a pass gathered, a last release unfinished
        ("shuffle", 100, 1, (40, 3, 1)),  # uneven clients
        ("poisson", 144, 1, (12, 9)),
        ("uniform", 144, 1, (12, 9)),
    ],
)
def test_participations_are_those_of_a_recount(
    how: str, size: int, gather: int, uploads: tuple[int, ...]
) -> None:
    here = plan(batches=how, batch=size, gather=gather, clients=len(uploads))
    found = solve(here, epsilon=1.0, updates=sum(uploads))
    releases = []
    for client, count in enumerate(uploads):
        source = Batches(how, size, D, Key(3) / "recount" / client)
        drawn = [source.draw(step) for step in range(count)]
        releases += [drawn[i : i + gather] for i in range(0, count - gather + 1, gather)]
    account = charged(found.account(), map(np.concatenate, releases[:-1]))
    account = pickle.loads(pickle.dumps(account))
    loss = account.charge(event(np.concatenate(releases[-1])))
    most = recount(releases)
    assert account.spent().counted == most
    assert account.spent().releases == len(releases) <= found.releases
    assert loss.client == pytest.approx(2 * math.sqrt(most) / found.noise_multiplier)
    assert most <= found.participations, "the plan bounds every order of arrival"
    assert loss.epsilon("client") <= 1.0 * (1 + 1e-9)


@pytest.mark.parametrize(("gather", "clients"), [(1, 1), (1, 3), (2, 3), (7, 2)])
def test_the_plans_bound_is_attained_by_some_order_of_arrival(gather: int, clients: int) -> None:
    """14 batches of 100 in 1,437 rows; all splits of the updates among the clients, passes met at
    their worst.
    """
    here = plan(batch=100, gather=gather, clients=clients)
    per_pass = 14 // gather
    for updates in (gather, 13, 14, 15, 29, 56):
        splits = (
            s for s in itertools.product(range(updates + 1), repeat=clients) if sum(s) == updates
        )
        worst = max(sum(-(-(s // gather) // per_pass) for s in split) for split in splits)
        assert replace(here, updates=updates).participations == worst


def test_an_outsiders_budget_counts_releases() -> None:
    account, release = solve(external(), epsilon=1.0, updates=30).account(), event(range(3))
    for _ in range(30):
        assert not account.would_exceed(release, 1.01, "external")
        account.charge(release)
    assert account.would_exceed(release, 0.99, "external")
    found = solve(external(), epsilon=1.0, updates=30)
    longest = solve(external(), epsilon=1.0, noise_multiplier=found.noise_multiplier)
    account = longest.account()
    for _ in range(longest.releases):
        assert not account.would_exceed(release, 1.0, "external")
        account.charge(release)
    assert account.would_exceed(release, 1.0, "external"), "not one release more than planned"


def test_an_account_that_resumes_knows_which_uploads_wait_for_their_release() -> None:
    """Another client's release took what an upload that waits would need: no upload may complete
    its release.
    """
    found = plan(batch=2, gather=2, clients=2)
    # one release of a record is all of ε
    found = replace(found, noise_multiplier=2 / mu_of(1.0, found.delta))
    account = found.account()
    assert not account.would_exceed(ReleaseEvent(0, np.array([5, 6])), 1.0, "client")
    account.charge(ReleaseEvent(1, np.array([5, 7])))
    last = ReleaseEvent(0, np.array([8, 9]))
    resumed, forgetful = found.account(), found.account()
    resumed.restore(account.state())
    forgetful.restore(account.state() | {"held": []})
    assert [each.would_exceed(last, 1.0, "client") for each in (account, resumed, forgetful)] == [
        True,
        True,
        False,
    ]


def test_a_run_solved_for_its_epsilon_ends_on_it() -> None:
    account, release = solve(plan(), epsilon=1.0, updates=50).account(), event(range(D))
    for _ in range(50):
        assert not account.would_exceed(release, 1.0, "client")
        account.charge(release)
    assert account.would_exceed(release, 1.0, "client")


@pytest.mark.parametrize("here", [plan(), external()], ids=["client", "external"])
def test_what_not_one_release_fits_is_refused_with_its_epsilon(here: IntegerReleasePlan) -> None:
    one = one_release_epsilon(solve(here, noise_multiplier=0.5, updates=1))
    assert one == pytest.approx(promised_epsilon(solve(here, noise_multiplier=0.5, updates=1)))
    with pytest.raises(SpecError, match=rf"not one release, which alone is ε={one:.4g}"):
        solve(here, epsilon=0.9 * one, noise_multiplier=0.5)
    assert solve(here, epsilon=1.001 * one, noise_multiplier=0.5).updates == 1


@pytest.mark.parametrize(
    "given", [{}, {"epsilon": 1.0}, {"epsilon": 1.0, "noise_multiplier": 2.0, "updates": 3}]
)
def test_other_than_two_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"any two of .*epsilon.*noise_multiplier.*updates"):
        solve(plan(), **given)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"server": "sgd"}, "Known: frozen, joint, dp_sgd"),
        ({"relation": "replac"}, 'Did you mean "replace"'),
        ({"adversary": "server"}, "Known: client, external"),
        ({"noise": "seeded"}, "seeded"),
        ({"fitted": ('data.scale = "standard" is fitted',)}, "data.scale"),
        ({"delta": 1 / D}, f"1/D = {1 / D:g}.*permit_large_delta"),
        ({"delta": 0.0}, "between 0 and 1"),
        ({"batch": D + 1}, "1437"),
        ({"clip": 0.0}, "clip"),
        (
            {"gather": 2, "batch": 100, "batches": "poisson"},
            r"divisor of the 14 batches of a pass \(1, 2, 7, 14\)",
        ),
        ({"gather": 3, "batch": 100}, r"\(1, 2, 7, 14\)"),
        ({"server": "dp_sgd"}, "head_share"),
        ({"server": "dp_sgd", "head_share": 1.0}, "between 0 and 1"),
        ({"head_share": 0.2}, "dp_sgd"),
    ],
)
def test_a_plan_of_which_nothing_is_proved_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        plan(**change)


def test_a_large_delta_is_taken_where_it_is_permitted() -> None:
    assert plan(delta=1e-2, permit_large_delta=True).delta == 1e-2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"noise_multiplier": 0.0, "updates": 3}, "noise_multiplier"),
        ({"noise_multiplier": math.inf, "updates": 3}, "noise_multiplier"),
        ({"noise_multiplier": 1.0, "updates": 6}, "gather = 7"),
        ({"epsilon": 1.0, "updates": 6}, "gather = 7"),
        ({"epsilon": math.inf, "updates": 7}, "privacy.epsilon"),
    ],
)
def test_a_setting_without_noise_or_releases_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        solve(plan(batch=100, gather=7), **given)
