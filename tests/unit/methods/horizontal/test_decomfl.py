"""The servers: seeds, rounds, asynchronous updates, refusals."""

# M clients, m of them in a cohort, K local steps, P perturbations

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import raydpzv
from raydpzv.errors import Diverged, RunError, SpecError
from raydpzv.keys import perturbation_seeds
from raydpzv.ledger.entries import SHARED
from raydpzv.methods.horizontal.seeded import client_seeds, round_seeds
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.schedule import Schedule
from raydpzv.wire.seeds import Scalars, SeededScalars, Tail
from tests.helpers import seed_parties as toy
from tests.helpers.decomfl_uploads import Scribe, answer

# --- seeds -----------------------------------------------------------------------------------------------------


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


# --- rounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_rows", [False, True])
def test_a_round_is_the_cohorts_mean_with_the_rounds_step_size(by_rows: bool) -> None:
    how = toy.settings(local_steps=2, lr=Schedule(0.1, ((3, 0.01),)), perturbations=Schedule(2, ((2, 3),)))
    weights = np.array([1.0, 5.0, 2.0, 9.0, 4.0, 3.0]) if by_rows else None
    ledger = toy.ledger(how)
    server = toy.server(ledger, how, weights=weights)
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
                Upload(o.client, 0, Scalars(np.full((1, 2), values[o.client], np.float32))) for o in orders
            ]
            orders = [o for u in turn(uploads) for o in server.receive(u)]
        digests.add(ledger.digest)
    assert len(digests) == 1


def test_uploads_that_do_not_belong_to_the_round_are_refused() -> None:
    how = toy.settings()
    ledger = toy.ledger(how)
    server = toy.server(ledger, how)
    first, *_ = uploads = Scribe(how).process(server.first_orders())
    server.receive(first)
    stranger = next(c for c in range(6) if c not in {u.client for u in uploads})
    for client in (first.client, stranger):
        with pytest.raises(RunError, match=f"client {client} answered in round 1"):
            server.receive(first._replace(client=client))
    server.receive(uploads[1])
    with pytest.raises(TypeError, match="cannot serve Tail"):
        server.receive(uploads[2]._replace(body=Tail(np.zeros(0, np.uint64), np.zeros(0, np.float32))))
    assert ledger.version == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_scalar_that_is_not_finite_ends_the_run_and_names_the_client(value: float) -> None:
    how = toy.settings()
    ledger = toy.ledger(how)
    server = toy.server(ledger, how, cohort=1)
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
    ledger = toy.ledger(how)
    server = toy.server(ledger, how, clients=3, cohort=3)
    values: dict[int, float] = {0: 2.0**24, 1: 1.0, 2: -(2.0**24)}
    make: Callable[[Order], Upload] = lambda o: Upload(  # noqa: E731
        o.client, 0, Scalars(np.full((1, 1), values[o.client], np.float32))
    )
    for order in server.first_orders():
        server.receive(make(order))
    assert ledger.since(0).scalar.tolist() == [np.float32(1 / 3)]


# --- asynchronous ----------------------------------------------------------------------------------------------


def test_an_update_tells_whose_it_is_and_what_it_read() -> None:
    how = toy.settings(lr=Schedule(0.1, ((2, 0.02),)))
    ledger = toy.ledger(how)
    server = toy.pull_server(ledger, how)
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


# --- who keeps the last round ----------------------------------------------------------------------------------


def test_clients_that_keep_their_last_round_are_asked_for_it_which_costs_bytes_and_time() -> None:
    """A.2: called upon, a client sends 8 bytes and waits for what it lacks; the updates are those of Algorithm 1."""
    small = [
        "data.train_rows=60",
        "model.hidden=[4]",
        "split.clients=6",
        "method.cohort=3",
        "budget.updates=5",
    ]
    link = ["method.perturbations=2", "evaluate.every=5", "network.latency=0.25", "network.up=64"]
    told, asked = (
        raydpzv.run(raydpzv.load("digits_decomfl", [*small, *link, f"method.last_round={who}"])).summary
        for who in ("server", "clients")
    )
    assert asked["ledger"]["digest"] == told["ledger"]["digest"]
    assert asked["bytes_down"] == told["bytes_down"]
    # a run's last round is asked for no more: five rounds
    assert asked["bytes_up"] - told["bytes_up"] == 5 * 3 * 8
    assert asked["simulated_seconds"] - told["simulated_seconds"] == pytest.approx(5 * (0.25 + 0.25 + 8 / 64))


# --- numbers on the wire -----------------------------------------------------------------------------------


def test_the_communication_vector_counts_numbers_both_ways_per_client() -> None:
    """All M clients in all R rounds: KP up, K new seeds and, but in the first round, K seeds and KP scalars down."""
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


# --- settings --------------------------------------------------------------------------------------------------


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
        (("optimizer=adam", "replicas=per_client", "revert=add_back"), "momentum, method.optimizer"),
    ],
)
def test_settings_of_another_optimizer_are_refused(wrong: tuple[str, ...], field: str) -> None:
    with pytest.raises(SpecError, match=rf"^method\.{field}: ") as error:
        raydpzv.load("digits_decomfl", [f"method.{item}" for item in wrong])
    assert "\n" not in str(error.value)
    raydpzv.load("digits_decomfl", ["method.optimizer=svrg", "method.epoch=5"])
    raydpzv.load("digits_decomfl", ["method.optimizer=adam", "method.momentum=0.9", "method.beta2=0.9"])
