"""The clients: what they measure, how they step and revert, and that neither threads nor hosts move a bit."""

# K local steps, P perturbations, d parameters

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import seed_parties as toy
import torch
from scipy.special import log_softmax
from torch import nn
from torch.nn import functional

from raydpzv.methods.decomfl import Schedule, client_seeds, round_seeds
from raydpzv.methods.decomfl_clients import LocalSteps, SharedClients
from raydpzv.methods.replica import Replica
from raydpzv.methods.roles import Order
from raydpzv.methods.rows import batch_rows
from raydpzv.wire.seeds import AgentScalars, AgentSeeds, CatchUp, Scalars, SeededScalars, Tail
from raydpzv.zo.descent import Step
from raydpzv.zo.directions import LAWS, Direction, Law

NO_SEEDS, NO_SCALARS = np.zeros(0, np.uint64), np.zeros(0, np.float32)
MU = 1e-3


def order(how: Any, client: int = 1, round: int = 1) -> Order:
    return Order(client, CatchUp(NO_SEEDS, NO_SCALARS, round_seeds(how, round)), round)


def local(how: Any, make: Callable[[], nn.Module] = toy.two_layers) -> LocalSteps:
    return LocalSteps([toy.objective(make)], toy.parts(), how)


def work(how: Any, given: Order, replica: Replica | None = None) -> Any:
    return local(how).work([given], replica or toy.replica(how))[0]


def double(at: np.ndarray, rows: np.ndarray, make: Callable[[], nn.Module] = toy.two_layers) -> Any:
    """Loss and gradient by autograd in float64."""
    module = make().double()
    nn.utils.vector_to_parameters(torch.from_numpy(at.astype(np.float64)), module.parameters())
    loss = functional.cross_entropy(module(toy.X[rows].double()), toy.Y[rows])
    found = torch.autograd.grad(loss, list(module.parameters()))
    return float(loss.detach()), torch.cat([g.flatten() for g in found]).numpy()


def regression(at: np.ndarray, rows: np.ndarray) -> float:
    """Softmax regression's mean cross-entropy in numpy; at: weights [C, F], then biases [C]."""
    weights = at[: toy.CLASSES * toy.FEATURES].reshape(toy.CLASSES, toy.FEATURES)
    scores = toy.X.numpy()[rows].astype(np.float64) @ weights.T + at[toy.CLASSES * toy.FEATURES :]
    return float(-np.mean(log_softmax(scores, axis=1)[np.arange(len(rows)), toy.Y.numpy()[rows]]))


def rows_of(how: Any, client: int, round: int, step: int) -> np.ndarray:
    return batch_rows(toy.parts(), how.key, client, round, step, how.batch).copy()


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


# --- estimates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
def test_estimates_are_the_papers_formulas(law: Law) -> None:
    """(f(x+μz) - f(x)) / μ, (f(x+μz) - f(x-μz)) / 2μ, <∇f, z>, in float64; the perturbed point is float32."""
    for estimate in ("forward", "central", "projection"):
        how = toy.settings(law=law, perturbations=Schedule(4), smoothing=MU, estimate=estimate, batch=7)
        upload = work(how, order(how))
        x, rows = toy.initial().numpy(), rows_of(how, 1, 1, 0)
        base, gradient = double(x, rows)
        for p, seed in enumerate(round_seeds(how, 1)[0].tolist()):
            z = Direction(seed, toy.D, law).values()
            plus, minus = double(x + np.float32(MU) * z, rows)[0], double(x - np.float32(MU) * z, rows)[0]
            slope = {
                "forward": (plus - base) / MU,
                "central": (plus - minus) / (2 * MU),
                "projection": float(gradient @ z.astype(np.float64)),
            }
            found = float(upload.body.values[0, p])
            # float32 scores: a loss is good to some 1e-7, and the differences divide that by μ
            assert found == pytest.approx(slope[estimate], abs=1e-5 if estimate == "projection" else 1e-3)
            others = [abs(value - found) for name, value in slope.items() if name != estimate]
            assert max(others) > 1e-5
        assert upload.loss == pytest.approx(base, abs=1e-4)


def test_the_forward_estimate_has_the_closed_form_of_a_regression() -> None:
    how = toy.settings(perturbations=Schedule(3), smoothing=0.1, batch=9)
    objective = toy.objective(toy.softmax_regression)
    x = objective.initial(toy.KEY)
    upload = LocalSteps([objective], toy.parts(), how).work([order(how)], Replica(x.clone(), how.rule))[0]
    rows, flat = rows_of(how, 1, 1, 0), x.double().numpy()
    for p, seed in enumerate(round_seeds(how, 1)[0].tolist()):
        z = Direction(seed, objective.size).values().astype(np.float64)
        slope = (regression(flat + 0.1 * z, rows) - regression(flat, rows)) / 0.1
        assert float(upload.body.values[0, p]) == pytest.approx(slope, abs=1e-4)


def test_many_perturbations_average_to_the_gradient() -> None:
    """E[<∇f, z> z] = ∇f; with P directions the mean's squared error is about (d + 1)|∇f|² / P. Not so without z."""
    how = toy.settings(perturbations=Schedule(1024), estimate="central", batch=1000)
    upload = work(how, order(how))
    replica = toy.replica(how)
    _, gradient = double(replica.x.numpy(), rows_of(how, 1, 1, 0))
    local_copy = replica.fork()
    local_copy.take([Step(round_seeds(how, 1)[0], upload.body.values[0], 1.0)])
    step = (replica.x - local_copy.x).double().numpy()
    error = np.sum((step - gradient) ** 2) / np.sum(gradient**2)
    assert error < 2 * (toy.D + 1) / 1024
    assert error > 0.2 * (toy.D + 1) / 1024
    assert np.sum((1024 * step - gradient) ** 2) / np.sum(gradient**2) > 100


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("estimate", ["forward", "central", "projection"])
def test_local_steps_are_algorithm_4_and_leave_no_trace(momentum: float, estimate: Any) -> None:
    """Each scalar at the model that the client's own earlier scalars led to: x <- x - η m, m <- βm + (1-β) mean g z."""
    how = toy.settings(
        momentum=momentum,
        local_steps=4,
        perturbations=Schedule(3),
        lr=Schedule(9.0, ((3, 0.3),)),
        estimate=estimate,
        batch=6,
    )
    book, replica = toy.ledger(how), toy.replica(how)
    book.append(
        party=-1,
        read=0,
        lr=0.3,
        step=[0],
        perturbation=[0],
        seed=np.array([5], np.uint64),
        scalar=np.array([2.0], np.float32),
    )
    replica.go_to(1, book)
    before = replica.state()
    seeds_KP = round_seeds(how, 3)
    upload = work(how, Order(2, CatchUp(NO_SEEDS, NO_SCALARS, seeds_KP), 3), replica)
    assert toy.bits(replica.state()) == toy.bits(before)
    assert replica.version == 1
    x = before[0].astype(np.float64)
    v = before[1].astype(np.float64) if momentum else np.zeros(toy.D)
    for k, seeds in enumerate(seeds_KP):
        rows, found = rows_of(how, 2, 3, k), upload.body.values[k].astype(np.float64)
        z = np.stack([Direction(int(s), toy.D).values().astype(np.float64) for s in seeds])
        base, gradient = double(x, rows)
        shift = {"forward": 1e-3, "central": 1e-3, "projection": 0.0}[estimate]
        plus = np.array([double(x + shift * u, rows)[0] for u in z])
        minus = np.array([double(x - shift * u, rows)[0] for u in z])
        if estimate == "projection":
            expected = z @ gradient
        else:
            expected = (plus - base) / shift if estimate == "forward" else (plus - minus) / (2 * shift)
        assert np.abs(found - expected).max() < 3e-3
        if k:
            assert np.abs(found - z @ double(before[0], rows)[1]).max() > 0.02  # not at the model it began at
        v = momentum * v + (1 - momentum) * (found[:, None] * z).mean(0)
        x = x - 0.3 * v


def test_a_secret_moves_what_is_measured_and_not_what_is_sent() -> None:
    how = toy.settings(local_steps=2, perturbations=Schedule(3))
    insider = toy.replica(how, toy.SECRET)
    upload = work(how, order(how), insider)
    x, rows = toy.initial().numpy(), rows_of(how, 1, 1, 0)
    seeds = round_seeds(how, 1)
    base = double(x, rows)[0]
    for p, seed in enumerate(insider.seeds(seeds)[0].tolist()):
        z = Direction(seed, toy.D).values()
        slope = (double(x + np.float32(MU) * z, rows)[0] - base) / MU
        assert float(upload.body.values[0, p]) == pytest.approx(slope, abs=2e-3)
    assert np.abs(work(how, order(how)).body.values - upload.body.values).max() > 0.05
    own = toy.settings()
    async_upload = work(own, Order(3, Tail(NO_SEEDS, NO_SCALARS), 5), toy.replica(own, toy.SECRET))
    assert np.array_equal(async_upload.body.seeds, client_seeds(own, 3, 4))


def test_each_kind_of_order_has_its_answer() -> None:
    how = toy.settings(local_steps=2)
    seeds = round_seeds(how, 1)
    for given, kind in (
        (CatchUp(NO_SEEDS, NO_SCALARS, seeds), Scalars),
        (AgentSeeds(NO_SEEDS, NO_SCALARS, seeds), AgentScalars),
    ):
        body = work(how, Order(1, given, 1)).body
        assert type(body) is kind
        assert (body.values.shape, body.values.dtype) == (seeds.shape, np.float32)
    one = toy.settings()
    assert type(work(one, Order(1, Tail(NO_SEEDS, NO_SCALARS), 1)).body) is SeededScalars


# --- many clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("estimate", ["forward", "projection"])
def test_neither_threads_nor_company_nor_hosts_move_bits(local_steps: int, estimate: Any) -> None:
    how = toy.settings(local_steps=local_steps, estimate=estimate, perturbations=Schedule(3))
    book = toy.ledger(how)
    server = toy.server(book, how, cohort=5)
    crews = [toy.shared(book, how, threads=threads) for threads in (1, 2, 3)]
    hosts = [toy.shared(book, how) for _ in range(2)]
    alone = toy.shared(book, how)
    for orders, uploads in toy.rounds(server, crews[0], 5):
        expected = [(u.client, toy.bits(u.body.values), u.loss) for u in uploads]
        for crew in crews[1:]:
            assert [(u.client, toy.bits(u.body.values), u.loss) for u in crew.perform(orders)] == expected
        spread = {
            u.client: u
            for h, crew in enumerate(hosts)
            for u in crew.perform([o for o in orders if o.client % 2 == h])
        }
        one_by_one = {o.client: alone.perform([o])[0] for o in orders}
        for found in (spread, one_by_one):
            assert [(c, toy.bits(found[c].body.values), found[c].loss) for c, _, _ in expected] == expected


def test_orders_of_several_versions_are_done_each_at_its_own() -> None:
    how = toy.settings()
    book = toy.ledger(how)
    server = toy.pull_server(book, how)
    orders, expected, crew = [], [], toy.shared(book, how)
    for client in (0, 1, 2, 3):
        server.wake(5)
        pulled = [server.wake(client)]
        (mine,) = toy.shared(book, how).perform([Order(5, Tail(NO_SEEDS, NO_SCALARS), book.version + 1)])
        orders += pulled
        expected += toy.shared(book, how).perform(pulled)
        server.receive(mine)
    found = crew.perform(orders)
    assert [toy.bits(u.body.values) for u in found] == [toy.bits(u.body.values) for u in expected]
    assert [o.round for o in orders] == [1, 2, 3, 4]
    assert crew.perform([]) == []


# --- add back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local_steps", [1, 3])
def test_adding_back_agrees_up_to_rounding_and_no_further(local_steps: int) -> None:
    """Eq. (10): the local steps are undone within the next catch-up; float32 sums do not return exactly."""
    how = toy.settings(local_steps=local_steps, perturbations=Schedule(2, ((4, 3),)), lr=Schedule(0.05))
    book = toy.ledger(how)
    exact, added = toy.separate(book, how), toy.separate(book, how, revert="add_back")
    server = toy.server(book, how)
    worst = 0.0
    for orders, uploads in toy.rounds(server, exact, 12):
        twins = added.perform(orders)
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
    reference.go_to(12, book)
    gaps = [(r.x - reference.x).abs() for r in added._clients.values()]
    assert drift.largest == max(float(g.max()) for g in gaps)
    assert drift.share == max(float((g > 0).double().mean()) for g in gaps)
    assert {r.version for r in added._clients.values()} == {12}
    assert exact.drift(12) == type(drift)(0.0, 0.0)


def test_drift_sees_a_client_that_went_astray() -> None:
    how = toy.settings()
    book = toy.ledger(how)
    crew = toy.separate(book, how)
    for _ in toy.rounds(toy.server(book, how, cohort=6), crew, 4):
        pass
    crew._clients[3].x[7] += 0.5
    drift = crew.drift(4)
    assert drift.largest == pytest.approx(0.5, rel=1e-5)
    assert drift.share == 1 / toy.D


def test_adding_back_without_the_subtraction_is_far_away() -> None:
    """The control of the tolerance above."""
    how = toy.settings()
    book = toy.ledger(how)
    added = toy.separate(book, how, revert="add_back")
    for _ in toy.rounds(toy.server(book, how, cohort=6), added, 3):
        pass
    added._own.clear()
    assert added.drift(3).largest > 1e-3


def test_evaluating_brings_the_replica_there_and_changes_no_client() -> None:
    how = toy.settings()
    book = toy.ledger(how)
    crew: SharedClients = toy.shared(book, how)
    for _ in toy.rounds(toy.server(book, how, cohort=6), crew, 3):
        pass
    metrics = crew.evaluate(3, toy.X, toy.Y)
    assert metrics == toy.objective().evaluate(torch.from_numpy(crew.state(3)[0]), toy.X, toy.Y)
    assert metrics != toy.objective().evaluate(toy.initial(), toy.X, toy.Y)
