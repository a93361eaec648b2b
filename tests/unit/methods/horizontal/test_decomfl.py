from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import raydpzv
from raydpzv.data.horizontal import batch_rows
from raydpzv.errors import Diverged, RunError, SpecError
from raydpzv.keys import perturbation_seeds
from raydpzv.ledger.entries import SHARED
from raydpzv.methods.horizontal.seeded import client_seeds, round_seeds
from raydpzv.methods.horizontal.seeded_clients import SharedClients
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.schedule import Schedule
from raydpzv.wire.seeds import Scalars, SeededScalars, Tail
from tests.helpers import seed_parties as toy
from tests.helpers.decomfl_uploads import Scribe, answer
from tests.helpers.loading import refusal

# --- seeds
# -----------------------------------------------------------------------------------------------------


def test_no_two_seeds_of_a_run_are_alike() -> None:
    how = toy.settings(local_steps=3, perturbations=Schedule(2, ((4, 5),)))
    seeds = np.concatenate([round_seeds(how, r) for r in range(1, 8)])
    assert round_seeds(how, 3).shape == round_seeds(how, 4).shape == (3,)
    own = np.concatenate([client_seeds(how, c, read) for c in range(5) for read in range(5)])
    both = np.concatenate([seeds, own])
    directions = perturbation_seeds(both[:, None], np.arange(5)).ravel()
    assert len(set(both.tolist())) == len(both)
    assert len(set(directions.tolist())) == 5 * len(both)
    assert np.array_equal(round_seeds(how, 2), round_seeds(how, 2))


# --- rounds
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_rows", [False, True])
def test_a_round_is_the_cohorts_mean_with_the_rounds_step_size(by_rows: bool) -> None:
    how = toy.settings(
        local_steps=2, lr=Schedule(0.1, ((3, 0.01),)), perturbations=Schedule(2, ((2, 3),))
    )
    weights = np.array([1.0, 5.0, 2.0, 9.0, 4.0, 3.0]) if by_rows else None
    ledger, server = toy.with_ledger(toy.server, how, weights=weights)
    for round, (orders, uploads) in enumerate(toy.rounds(server, Scribe(how), 4), 1):
        entry = ledger.since(round - 1, round)
        cohort = [o.client for o in orders]
        each = [1.0 + c + round for c in cohort]
        mean = np.average(each, weights=None if weights is None else weights[cohort])
        assert np.allclose(entry.scalar, mean, rtol=1e-6)
        assert len(entry) == how.pairs(round) == 2 * (2 if round == 1 else 3)
        assert entry.step.tolist() == sorted([0, 1] * how.width(round))
        assert entry.perturbation.tolist() == 2 * list(range(how.width(round)))
        assert np.array_equal(entry.seed, np.repeat(round_seeds(how, round), how.width(round)))
        assert set(entry.party.tolist()) == {SHARED}
        assert set(entry.read.tolist()) == {round - 1}
        assert set(entry.lr.tolist()) == {0.01 if round >= 3 else 0.1}
        assert {o.round for o in orders} == {round}
        assert all(o.start_immediately for o in orders)
        assert len(uploads) == 3
    assert server.updates == 4


def test_the_order_in_which_uploads_come_moves_no_bits() -> None:
    digests = set()
    for turn in (lambda u: u, lambda u: u[::-1], lambda u: u[1:] + u[:1]):
        ledger = toy.ledger(toy.settings())
        server = toy.server(ledger, toy.settings(), clients=6, cohort=6)
        orders = server.first_orders()
        for _ in range(3):
            values = np.float32([1e30, 1.0, 3.3, -1e30, 1e-3, 7.7])
            uploads = [
                Upload(o.client, 0, Scalars(np.full((1, 2), values[o.client], np.float32)))
                for o in orders
            ]
            orders = [o for u in turn(uploads) for o in server.receive(u)]
        digests.add(ledger.digest)
    assert len(digests) == 1


def test_uploads_that_do_not_belong_to_the_round_are_refused() -> None:
    how = toy.settings()
    ledger, server = toy.with_ledger(toy.server, how)
    first, *_ = uploads = Scribe(how).process(server.first_orders())
    server.receive(first)
    stranger = next(c for c in range(6) if c not in {u.client for u in uploads})
    for client in (first.client, stranger):
        with pytest.raises(RunError, match=f"client {client} answered in round 1"):
            server.receive(first._replace(client=client))
    server.receive(uploads[1])
    with pytest.raises(TypeError, match="cannot serve Tail"):
        server.receive(
            uploads[2]._replace(body=Tail(np.zeros(0, np.uint64), np.zeros(0, np.float32)))
        )
    assert ledger.version == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_scalar_that_is_not_finite_ends_the_run_and_names_the_client(value: float) -> None:
    how = toy.settings()
    ledger, server = toy.with_ledger(toy.server, how, cohort=1)
    (order,) = server.first_orders()
    body = Scalars(np.full((1, how.width(1)), value, np.float32))
    with pytest.raises(
        Diverged, match=f"client {order.client} sent a scalar that is not finite for update 1"
    ):
        server.receive(Upload(order.client, 0, body))
    other = toy.pull_server(toy.ledger(how), how)
    other.wake(3)
    with pytest.raises(Diverged, match="client 3"):
        other.receive(Upload(3, 0, SeededScalars(client_seeds(how, 3, 0), body.values[0])))
    assert ledger.version == 0


def test_the_mean_is_taken_before_it_is_rounded() -> None:
    """In float32 the sum 2^24 + 1 - 2^24 would be 0."""
    how = toy.settings(perturbations=Schedule(1))
    ledger, server = toy.with_ledger(toy.server, how, clients=3, cohort=3)
    values: dict[int, float] = {0: 2.0**24, 1: 1.0, 2: -(2.0**24)}
    make: Callable[[Order], Upload] = lambda o: Upload(  # noqa: E731
        o.client, 0, Scalars(np.full((1, 1), values[o.client], np.float32))
    )
    for order in server.first_orders():
        server.receive(make(order))
    assert ledger.since(0).scalar.tolist() == [np.float32(1 / 3)]


# --- asynchronous
# ----------------------------------------------------------------------------------------------


def test_an_update_tells_whose_it_is_and_what_it_read() -> None:
    how = toy.settings(lr=Schedule(0.1, ((2, 0.02),)))
    ledger, server = toy.with_ledger(toy.pull_server, how)
    assert server.first_orders() == ()
    orders = {c: server.wake(c) for c in (2, 4)}
    assert {o.sync.read for o in orders.values()} == {0}
    answer(server, how, 4, 0)
    answer(server, how, 2, 0)
    late = server.wake(4)
    assert (late.sync.read, late.sync.missed, late.sync.pairs) == (2, 2, 4)
    assert isinstance(late.body, Tail)
    answer(server, how, 4, 2)
    rows = ledger.since(0)
    assert rows.party.tolist()[::2] == [4, 2, 4]
    assert rows.read.tolist()[::2] == [0, 0, 2]
    assert rows.lr.tolist()[::2] == [0.1, 0.02, 0.02]
    assert server.updates == 3


def test_an_upload_without_a_pull_is_refused() -> None:
    how = toy.settings()
    server = toy.pull_server(toy.ledger(how), how)
    server.wake(1)
    answer(server, how, 1, 0)
    for client in (1, 2):
        with pytest.raises(
            RunError, match=f"client {client} sent scalars for update 2 without having pulled"
        ):
            answer(server, how, client, 0)
    with pytest.raises(TypeError, match="cannot serve Scalars"):
        server.receive(Upload(1, 0, Scalars(np.zeros((1, 2), np.float32))))


# --- who keeps the last round
# ----------------------------------------------------------------------------------


def test_clients_that_keep_their_last_round_are_asked_for_it_which_costs_bytes_and_time() -> None:
    """A.2: called upon, a client sends 8 bytes and waits for what it lacks; the updates are those
    of Algorithm 1.
    """
    small = [
        "data.train_rows=60",
        "model.hidden=[4]",
        "split.clients=6",
        "method.cohort=3",
        "budget.updates=5",
    ]
    link = ["method.perturbations=2", "evaluate.every=5", "network.latency=0.25", "network.up=64"]
    told, asked = (
        raydpzv.run(
            raydpzv.load("digits_decomfl", [*small, *link, f"method.last_round={who}"])
        ).summary
        for who in ("server", "clients")
    )
    assert asked["ledger"]["digest"] == told["ledger"]["digest"]
    assert asked["bytes_down"] == told["bytes_down"]
    # a run's last round is asked for no more: five rounds
    assert asked["bytes_up"] - told["bytes_up"] == 5 * 3 * 8
    assert asked["simulated_seconds"] - told["simulated_seconds"] == pytest.approx(
        5 * (0.25 + 0.25 + 8 / 64)
    )


# --- numbers on the wire
# -----------------------------------------------------------------------------------


def test_the_communication_vector_counts_numbers_both_ways_per_client() -> None:
    """All M clients in all R rounds: KP up, K new seeds and, but in the first round, K seeds and KP
    scalars down.
    """
    small = [
        "data.train_rows=60",
        "model.hidden=[4]",
        "split.clients=4",
        "method.cohort=4",
        "budget.updates=6",
    ]
    width = ["method.perturbations=5", "method.local_steps=2", "evaluate.every=3"]
    run = raydpzv.run(raydpzv.load("digits_decomfl", [*small, *width]))
    assert run.summary["vector_length"] == 6 * 10 + 6 * 2 + 5 * (2 + 10)
    rows = [(row["round"], row["up"], row["down"]) for row in run.rows("numbers").to_pylist()]
    assert rows == [(r, 4 * 10 * r, 4 * (2 * r + 12 * max(0, r - 1))) for r in (0, 3, 6)]
    whole = [*small, "method.name=fedavg", "method.lr=0.1", "method.cohort=2"]
    weights = raydpzv.run(raydpzv.load("digits_decomfl", whole))
    assert weights.summary["vector_length"] == 6 * 2 * 2 * weights.models["shared"].size / 4
    # 8-bit numbers are numbers: the axis of DeComFL's figures does not see what bytes see
    coded = raydpzv.run(raydpzv.load("digits_decomfl", [*whole, "method.name=fedcom"]))
    assert coded.summary["vector_length"] == weights.summary["vector_length"] + 6 * 2 / 4
    assert coded.summary["bytes_up"] < 0.3 * weights.summary["bytes_up"]


# --- settings
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (("optimizer=svrg",), "epoch"),
        (("optimizer=svrg", "epoch=5", "asynchronous=true"), "optimizer"),
        (("optimizer=svrg", "epoch=5", "momentum=0.5"), "momentum"),
        (("optimizer=signsgd", "momentum=0.5"), "momentum"),
        (("epoch=5",), "epoch"),
        (("beta2=0.9",), "beta2"),
        (("optimizer=signsgd", "v0=0.1"), "v0"),
        (
            ("optimizer=adam", "replicas=per_client", "revert=add_back"),
            "momentum, method.optimizer",
        ),
    ],
)
def test_settings_of_another_optimizer_are_refused(wrong: tuple[str, ...], field: str) -> None:
    with refusal(SpecError, rf"\Amethod\.{field}: "):
        raydpzv.load("digits_decomfl", [f"method.{item}" for item in wrong])
    raydpzv.load("digits_decomfl", ["method.optimizer=svrg", "method.epoch=5"])
    raydpzv.load(
        "digits_decomfl", ["method.optimizer=adam", "method.momentum=0.9", "method.beta2=0.9"]
    )


# The clients: the rows they draw, how they revert, and that neither threads nor executors move a
# bit.

NO_SEEDS, NO_SCALARS = np.zeros(0, np.uint64), np.zeros(0, np.float32)


# --- rows
# ------------------------------------------------------------------------------------------------------


def test_a_batch_is_drawn_from_the_clients_own_rows_at_its_address() -> None:
    parts = toy.parts()
    client = int(np.argmax(parts.sizes))
    draws = {
        (r, k): batch_rows(parts, toy.KEY, client, r, k, 5) for r in range(1, 40) for k in range(3)
    }
    assert all(
        len(set(d.tolist())) == 5 and set(d.tolist()) <= set(parts.rows(client).tolist())
        for d in draws.values()
    )
    address = toy.KEY / "rows" / client / 7 / 2
    chosen = address.generator().choice(int(parts.sizes[client]), 5, replace=False)
    assert np.array_equal(draws[7, 2], parts.rows(client)[chosen])
    assert len({tuple(sorted(d.tolist())) for d in draws.values()}) > 100
    counts = np.bincount(np.concatenate(list(draws.values())), minlength=toy.ROWS)[
        parts.rows(client)
    ]
    assert counts.min() > 0.4 * counts.mean()


def test_a_client_with_fewer_rows_uses_all_of_them() -> None:
    parts = toy.parts()
    client = int(np.argmin(parts.sizes))
    size = int(parts.sizes[client])
    for batch in (size, size + 1, 1000):
        assert np.array_equal(batch_rows(parts, toy.KEY, client, 1, 0, batch), parts.rows(client))
    assert len(batch_rows(parts, toy.KEY, client, 1, 0, size - 1)) == size - 1


# --- many clients
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("estimate", ["forward", "projection"])
def test_neither_threads_nor_company_nor_executors_move_bits(
    local_steps: int, estimate: Any
) -> None:
    how = toy.settings(local_steps=local_steps, estimate=estimate, perturbations=Schedule(3))
    ledger, server = toy.with_ledger(toy.server, how, cohort=5)
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
            assert [
                (c, toy.bits(found[c].body.values), found[c].loss) for c, _, _ in expected
            ] == expected


def test_orders_of_several_versions_are_done_each_at_its_own() -> None:
    how = toy.settings()
    ledger, server = toy.with_ledger(toy.pull_server, how)
    orders, expected, client_group = [], [], toy.shared(ledger, how)
    for client in (0, 1, 2, 3):
        server.wake(5)
        pulled = [server.wake(client)]
        (mine,) = toy.shared(ledger, how).process(
            [Order(5, Tail(NO_SEEDS, NO_SCALARS), ledger.version + 1)]
        )
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
    assert metrics == toy.objective().evaluate(
        torch.from_numpy(client_group.state(3)[0]), toy.X, toy.Y
    )
    assert metrics != toy.objective().evaluate(toy.initial(), toy.X, toy.Y)


# --- add back
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local_steps", [1, 3])
def test_adding_back_agrees_up_to_rounding_and_no_further(local_steps: int) -> None:
    """Eq. (10): the local steps are undone within the next catch-up; float32 sums do not return
    exactly.
    """
    how = toy.settings(
        local_steps=local_steps, perturbations=Schedule(2, ((4, 3),)), lr=Schedule(0.05)
    )
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
