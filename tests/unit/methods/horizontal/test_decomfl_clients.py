"""The clients: the rows they draw, how they revert, and that neither threads nor executors move a bit."""

# K local steps

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from raydpzv.data.horizontal import batch_rows
from raydpzv.methods.horizontal.seeded_clients import SharedClients
from raydpzv.methods.roles import Order
from raydpzv.methods.schedule import Schedule
from raydpzv.wire.seeds import Tail
from tests.helpers import seed_parties as toy

NO_SEEDS, NO_SCALARS = np.zeros(0, np.uint64), np.zeros(0, np.float32)


# --- rows ------------------------------------------------------------------------------------------------------


def test_a_batch_is_drawn_from_the_clients_own_rows_at_its_address() -> None:
    parts = toy.parts()
    client = int(np.argmax(parts.sizes))
    draws = {(r, k): batch_rows(parts, toy.KEY, client, r, k, 5) for r in range(1, 40) for k in range(3)}
    assert all(
        len(set(d.tolist())) == 5 and set(d.tolist()) <= set(parts.rows(client).tolist())
        for d in draws.values()
    )
    address = toy.KEY / "rows" / client / 7 / 2
    chosen = address.generator().choice(int(parts.sizes[client]), 5, replace=False)
    assert np.array_equal(draws[7, 2], parts.rows(client)[chosen])
    assert len({tuple(sorted(d.tolist())) for d in draws.values()}) > 100
    counts = np.bincount(np.concatenate(list(draws.values())), minlength=toy.ROWS)[parts.rows(client)]
    assert counts.min() > 0.4 * counts.mean()


def test_a_client_with_fewer_rows_uses_all_of_them() -> None:
    parts = toy.parts()
    client = int(np.argmin(parts.sizes))
    size = int(parts.sizes[client])
    for batch in (size, size + 1, 1000):
        assert np.array_equal(batch_rows(parts, toy.KEY, client, 1, 0, batch), parts.rows(client))
    assert len(batch_rows(parts, toy.KEY, client, 1, 0, size - 1)) == size - 1


# --- many clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("estimate", ["forward", "projection"])
def test_neither_threads_nor_company_nor_executors_move_bits(local_steps: int, estimate: Any) -> None:
    how = toy.settings(local_steps=local_steps, estimate=estimate, perturbations=Schedule(3))
    ledger = toy.ledger(how)
    server = toy.server(ledger, how, cohort=5)
    pool = [toy.shared(ledger, how, threads=threads) for threads in (1, 2, 3)]
    executors = [toy.shared(ledger, how) for _ in range(2)]
    alone = toy.shared(ledger, how)
    for orders, uploads in toy.rounds(server, pool[0], 5):
        expected = [(u.client, toy.bits(u.body.values), u.loss) for u in uploads]
        for client_group in pool[1:]:
            assert [
                (u.client, toy.bits(u.body.values), u.loss) for u in client_group.process(orders)
            ] == expected
        spread = {
            u.client: u
            for h, client_group in enumerate(executors)
            for u in client_group.process([o for o in orders if o.client % 2 == h])
        }
        one_by_one = {o.client: alone.process([o])[0] for o in orders}
        for found in (spread, one_by_one):
            assert [(c, toy.bits(found[c].body.values), found[c].loss) for c, _, _ in expected] == expected


def test_orders_of_several_versions_are_done_each_at_its_own() -> None:
    how = toy.settings()
    ledger = toy.ledger(how)
    server = toy.pull_server(ledger, how)
    orders, expected, client_group = [], [], toy.shared(ledger, how)
    for client in (0, 1, 2, 3):
        server.wake(5)
        pulled = [server.wake(client)]
        (mine,) = toy.shared(ledger, how).process([Order(5, Tail(NO_SEEDS, NO_SCALARS), ledger.version + 1)])
        orders += pulled
        expected += toy.shared(ledger, how).process(pulled)
        server.receive(mine)
    found = client_group.process(orders)
    assert [toy.bits(u.body.values) for u in found] == [toy.bits(u.body.values) for u in expected]
    assert [o.round for o in orders] == [1, 2, 3, 4]
    assert client_group.process([]) == []


def test_evaluating_brings_the_replica_there_and_changes_no_client() -> None:
    how = toy.settings()
    ledger = toy.ledger(how)
    client_group: SharedClients = toy.shared(ledger, how)
    for _ in toy.rounds(toy.server(ledger, how, cohort=6), client_group, 3):
        pass
    metrics = client_group.evaluate(3, toy.X, toy.Y)
    assert metrics == toy.objective().evaluate(torch.from_numpy(client_group.state(3)[0]), toy.X, toy.Y)
    assert metrics != toy.objective().evaluate(toy.initial(), toy.X, toy.Y)


# --- add back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local_steps", [1, 3])
def test_adding_back_agrees_up_to_rounding_and_no_further(local_steps: int) -> None:
    """Eq. (10): the local steps are undone within the next catch-up; float32 sums do not return exactly."""
    how = toy.settings(local_steps=local_steps, perturbations=Schedule(2, ((4, 3),)), lr=Schedule(0.05))
    ledger = toy.ledger(how)
    exact, added = toy.separate(ledger, how), toy.separate(ledger, how, revert="add_back")
    server = toy.server(ledger, how)
    worst = 0.0
    for orders, uploads in toy.rounds(server, exact, 12):
        twins = added.process(orders)
        for order, upload, twin in zip(orders, uploads, twins, strict=True):
            worst = max(worst, float(np.abs(upload.body.values - twin.body.values).max()))
            # it stands where its local steps led, not where it began
            gap = (added._clients[order.client].x - exact._clients[order.client].x).abs().max()
            assert gap > 1e-3
    assert 0 < worst < 5e-3
    drift = added.drift(12)
    assert 0 < drift.largest < 2e-6
    assert 0 < drift.share <= 1
    reference = toy.replica(how)
    reference.go_to(12, ledger)
    gaps = [(r.x - reference.x).abs() for r in added._clients.values()]
    assert drift.largest == max(float(g.max()) for g in gaps)
    assert drift.share == max(float((g > 0).double().mean()) for g in gaps)
    assert {r.version for r in added._clients.values()} == {12}
    assert exact.drift(12) == type(drift)(0.0, 0.0)


def test_drift_sees_a_client_that_went_astray() -> None:
    how = toy.settings()
    ledger = toy.ledger(how)
    client_group = toy.separate(ledger, how)
    for _ in toy.rounds(toy.server(ledger, how, cohort=6), client_group, 4):
        pass
    client_group._clients[3].x[7] += 0.5
    drift = client_group.drift(4)
    assert drift.largest == pytest.approx(0.5, rel=1e-5)
    assert drift.share == 1 / toy.D


def test_adding_back_without_the_subtraction_is_far_away() -> None:
    """The control of the tolerance above."""
    how = toy.settings()
    ledger = toy.ledger(how)
    added = toy.separate(ledger, how, revert="add_back")
    for _ in toy.rounds(toy.server(ledger, how, cohort=6), added, 3):
        pass
    added._own.clear()
    assert added.drift(3).largest > 1e-3
