import math

import pytest

import scenarios
from raydpzv.engine.split_model import AGE_BINS, COUNTED
from raydpzv.keys import Key
from raydpzv.sim.client_counts import MOST, ClientCounts
from raydpzv.sim.interfaces import Status
from tests.helpers.ages import cache_uses


def statuses(scenario, *overrides):
    """Run a scenario in this process and return what its progress callback was told."""
    found: list[Status] = []
    run = scenarios.run(scenarios.load(scenario, overrides), progress=found.append)
    return run, found


def test_uploads_and_the_last_staleness_of_each_client():
    counts = ClientCounts()
    counts.uploaded(2)
    counts.uploaded(2)
    counts.aged(0, 3.5)
    assert counts.fields()["participants"] == 1
    assert counts.fields()["client_uploads"] == (0, 0, 2)
    first, *others = counts.fields()["client_staleness"]
    assert first == 3.5
    assert all(math.isnan(age) for age in others)


def test_ages_are_those_of_each_clients_last_use():
    """Asked for once, or after every service: the same."""
    draws, lazily, slow = Key(3).generator(), ClientCounts(), {}
    for _ in range(60):
        served = int(draws.integers(0, 3))
        ages = draws.integers(0, 50, (2, COUNTED + AGE_BINS))
        ages[:, 1] = [m for m in range(3) if m != served]
        ages[:, 2], ages[:, 3] = 8, draws.choice([0, 3, 8], 2)
        lazily.served(served, ages)
        slow |= {
            u.client: u.age_sum / (8 - u.missing) if u.missing < 8 else math.nan
            for u in cache_uses(ages)
        }
        found = dict(enumerate(lazily.fields()["client_staleness"]))
        assert {m: slow.get(m, math.nan) for m in found} == pytest.approx(found, nan_ok=True)
    assert len(found) == 3


def test_of_many_clients_only_their_number_is_kept():
    counts = ClientCounts()
    for client in range(MOST + 1):
        counts.uploaded(client)
        counts.aged(client, 1.0)
    assert counts.fields() == {"participants": MOST + 1}


def test_a_vertical_run_tells_loss_and_every_client_s_uploads_as_its_rows_have_them():
    run, found = statuses("digits_dpzv", "budget.updates=40", "evaluate.every=10")
    assert found[0].stage
    last = found[-1]
    clients = run.rows("service").column("client").to_pylist()
    assert last.client_uploads == tuple(clients.count(m) for m in range(4))
    assert last.participants == len(set(clients))
    assert last.loss == run.summary["loss"]
    assert not last.stage
    assert any(age > 0 for age in last.client_staleness)


def test_a_horizontal_run_of_many_clients_tells_how_many_took_part():
    run, found = statuses("digits_decomfl", "budget.updates=12")
    took_part = set(run.rows("service").column("client").to_pylist())
    assert found[-1].participants == len(took_part)
    assert found[-1].client_uploads == ()
