from collections import Counter

import pytest

import scenarios
from raydpzv.experiment.rebuild import rebuild
from raydpzv.experiment.resuming import resuming
from raydpzv.ledger.ledger import Ledger
from raydpzv.privacy.gdp import mu_of
from raydpzv.records.run_folder import RunFolder
from tests.helpers.kills import evaluating_again, hold_uploads, kill_at
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after

WALL = (
    "clock.kind=wall",
    "clock.compute=0.005",
    "network.latency=0.002",
    "record.checkpoint_updates=20",
)
SMALL = (
    "data.train_rows=150",
    "data.test_rows=60",
    "budget.updates=150",
    "evaluate.every=25",
    "resources.hosts=2",
    "record.flush=1000",
)
DECOMFL = (
    "split.clients=12",
    "method.batch=8",
    "method.perturbations=3",
    "arrivals.rate=36",
    "model.hidden=[6]",
)
USERS = (
    "split.clients=3",
    "users.count=12",
    "method.perturbations=3",
    "arrivals.rate=150",
    "privacy={}",
    "privacy.mode=user",
    "privacy.multiplier=2.0",
    "privacy.delta=1e-3",
    "privacy.clip=0.1",
)
KINDS = {
    "decomfl": ("decomfl_async", DECOMFL),
    "momentum": ("decomfl_async", (*DECOMFL, "method.momentum=0.5", "method.lr_at=[[30, 0.001]]")),
    "pulling": ("decomfl_async", (*DECOMFL, "method.server_model=true", "method.pull_after=2")),
    "own models": ("decomfl_async", (*DECOMFL, "method.replicas=per_client")),
    "users": ("digits_users_async", USERS),
}
SILOS = 3


def scenario(kind, *overrides):
    name, own = KINDS[kind]
    return scenarios.load(name, [*SMALL, *own, *WALL, *overrides])


def go_on(folder):
    prepared, opened, _ = resuming(folder)
    return run_prepared(prepared, opened).summary


def updates_of(folder):
    with Ledger.open(folder / "ledger") as ledger:
        return list(ledger.since(0).updates())


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_twice_continues_in_a_second_and_a_third_segment(tmp_path, kind):
    spec, folder = scenario(kind), tmp_path / "run"
    for updates in (40, 60):
        kill_at(updates, spec, folder, checkpoints=3)
        before = updates_of(folder)
    end = go_on(folder)
    assert end["status"] == "done"
    whole, rows = updates_of(folder), RunFolder.open(folder).rows()
    assert whole[: len(before)] == before
    assert len(whole) == end["updates"] == 150
    assert set(Counter((update.party, update.read) for update in whole).values()) == {1}
    for name in ("service", "sync"):
        assert sorted(rows[name].column("round").to_pylist()) == list(range(1, 151))
    legs = rows["leg"].to_pylist()
    assert [leg["leg"] for leg in legs] == [2, 3]
    assert all(leg["gap"] > 0 for leg in legs)
    assert rebuild(folder).verified
    served = rows["service"].sort_by("round").column("served").to_pylist()
    assert served == sorted(served)
    assert evaluating_again(rows, 25) == []


def mu(summary):
    stated = {claim["adversary"]: claim["epsilon"] for claim in summary["epsilon"]}
    return mu_of(stated["external"], 1e-3)


def test_a_run_that_was_stopped_has_nothing_under_way(tmp_path, monkeypatch):
    """What had been sent was charged when the run was stopped."""
    spec, folder = scenario("users"), tmp_path / "run"
    with monkeypatch.context() as patch:
        hold_uploads(patch, lambda loop: 60)
        first = scenarios.run(spec, folder, **stop_after(40)).summary
    assert RunFolder.open(folder).checkpoint().round == first["updates"] < 150
    end, rows = go_on(folder), RunFolder.open(folder).rows()
    (leg,) = rows["leg"].to_pylist()
    assert (leg["round"], leg["recovered"]) == (first["updates"], 0)
    whole = scenarios.run(spec)
    one = mu(whole.summary) ** 2 / whole.rows("release").num_rows
    assert mu(end) ** 2 / one == pytest.approx(rows["release"].num_rows, rel=1e-4)


def test_every_release_of_every_segment_counts_and_one_more_of_each_silo_for_each_kill(tmp_path):
    """What was under way may have been seen by somebody, and nobody can tell."""
    spec, folder = scenario("users"), tmp_path / "run"
    whole = scenarios.run(spec)
    one = mu(whole.summary) ** 2 / whole.rows("release").num_rows
    for updates in (40, 60):
        kill_at(updates, spec, folder, checkpoints=3)
    end, rows = go_on(folder), RunFolder.open(folder).rows()
    recovered = sum(leg["recovered"] for leg in rows["leg"].to_pylist())
    counted = rows["release"].num_rows + recovered + 2 * SILOS
    assert recovered > 0
    assert mu(end) ** 2 / one == pytest.approx(counted, rel=1e-4)
    assert rows["user_epsilon"].num_rows == 150
