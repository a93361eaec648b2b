"""The servers: cohorts, bytes, pulls, trimming, resuming, refusals."""

# M clients, m of them in a cohort, K local steps, P perturbations

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seed_parties as toy
from scipy import stats

from raydpzv.errors import Diverged, RunError
from raydpzv.keys import Key
from raydpzv.ledger.entries import SHARED
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.cohort import Cohorts
from raydpzv.methods.decomfl import AsyncDecomflServer, DecomflServer, Schedule, client_seeds, round_seeds
from raydpzv.methods.roles import Order, Upload
from raydpzv.wire.seeds import AgentSeeds, CatchUp, PulledModel, Scalars, SeededScalars, Tail

PULLS = (None, 1, 3, 10)


class Scribe:
    """A crew that answers without computing: server tests need no model."""

    def perform(self, orders: Any) -> list[Upload]:
        return [
            Upload(o.client, 0, Scalars(np.full(o.body.seeds.shape, 1.0 + o.client + o.round, np.float32)))
            for o in orders
        ]


def answer(server: AsyncDecomflServer, how: Any, client: int, read: int) -> None:
    seeds = client_seeds(how, client, read)
    server.receive(Upload(client, 0, SeededScalars(seeds, np.ones(len(seeds), np.float32))))


# --- cohorts ---------------------------------------------------------------------------------------------------


def test_a_cohort_is_drawn_uniformly_and_without_replacement() -> None:
    cohorts = Cohorts(7, 3, Key(5))
    drawn = [tuple(cohorts.draw(round).tolist()) for round in range(1, 3501)]
    assert all(len(set(c)) == 3 and list(c) == sorted(c) for c in drawn)
    every = list(itertools.combinations(range(7), 3))
    counts = np.array([Counter(drawn)[c] for c in every])
    assert stats.chisquare(counts).pvalue > 0.01
    crooked = 3500 * (1 + 0.3 * (np.array([0 in c for c in every]) - 3 / 7)) / 35
    assert stats.chisquare(counts, crooked / crooked.sum() * 3500).pvalue < 1e-4


def test_successive_cohorts_are_independent() -> None:
    cohorts = Cohorts(6, 3, Key(5))
    shared = [len({*cohorts.draw(r).tolist()} & {*cohorts.draw(r + 1).tolist()}) for r in range(1, 2000)]
    expected = stats.hypergeom(6, 3, 3).pmf(np.arange(4)) * len(shared)
    assert stats.chisquare(np.bincount(shared, minlength=4), expected).pvalue > 0.01


def test_a_cohort_depends_on_the_key_and_the_round_alone() -> None:
    cohorts = Cohorts(1000, 10, Key(5))
    late = cohorts.draw(50)
    assert np.array_equal(late, Cohorts(1000, 10, Key(5)).draw(50))
    assert not np.array_equal(late, cohorts.draw(51))
    assert not np.array_equal(late, Cohorts(1000, 10, Key(6)).draw(50))
    assert cohorts.draw(1).tolist() != sorted(range(10))


def test_a_cohort_of_all_is_all_of_them() -> None:
    assert Cohorts(9, 9, Key(1)).draw(4).tolist() == list(range(9))


def test_a_cohort_of_millions_of_clients_costs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers drawn from the generator, in place of a time that a busy machine would falsify."""
    used = []
    for clients in (20_000, 4_000_000):
        generator = (Key(1) / "cohort" / 1).generator()
        monkeypatch.setattr(Key, "generator", lambda _, g=generator: g)
        Cohorts(clients, 100, Key(1)).draw(1)
        used.append(int(generator.bit_generator.state["state"]["counter"][0]))
        monkeypatch.undo()
    assert used[0] > 0
    assert abs(used[1] - used[0]) <= 2


# --- seeds -----------------------------------------------------------------------------------------------------


def test_no_two_seeds_of_a_run_are_alike() -> None:
    how = toy.settings(local_steps=3, perturbations=Schedule(2, ((4, 5),)))
    seeds = np.concatenate([round_seeds(how, r).ravel() for r in range(1, 8)])
    assert round_seeds(how, 3).shape == (3, 2)
    assert round_seeds(how, 4).shape == (3, 5)
    own = np.concatenate([client_seeds(how, c, read) for c in range(5) for read in range(5)])
    both = np.concatenate([seeds, own])
    assert len(set(both.tolist())) == len(both)
    assert np.array_equal(round_seeds(how, 2), round_seeds(how, 2))


def test_a_schedule_changes_from_its_rounds_on() -> None:
    schedule = Schedule(25, ((500, 50), (1000, 100)))
    assert [schedule.at(r) for r in (1, 499, 500, 999, 1000, 5000)] == [25, 25, 50, 50, 100, 100]


# --- rounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_rows", [False, True])
def test_a_round_is_the_cohorts_mean_with_the_rounds_step_size(by_rows: bool) -> None:
    how = toy.settings(local_steps=2, lr=Schedule(0.1, ((3, 0.01),)), perturbations=Schedule(2, ((2, 3),)))
    weights = np.array([1.0, 5.0, 2.0, 9.0, 4.0, 3.0]) if by_rows else None
    book = toy.ledger(how)
    server = toy.server(book, how, weights=weights)
    for round, (orders, uploads) in enumerate(toy.rounds(server, Scribe(), 4), 1):
        entry = book.since(round - 1, round)
        cohort = [o.client for o in orders]
        each = [1.0 + c + round for c in cohort]
        mean = np.average(each, weights=None if weights is None else weights[cohort])
        assert np.allclose(entry.scalar, mean, rtol=1e-6)
        assert len(entry) == how.pairs(round) == 2 * (2 if round == 1 else 3)
        assert entry.step.tolist() == sorted([0, 1] * how.width(round))
        assert entry.perturbation.tolist() == 2 * list(range(how.width(round)))
        assert np.array_equal(entry.seed, round_seeds(how, round).ravel())
        assert set(entry.party.tolist()) == {SHARED}
        assert set(entry.read.tolist()) == {round - 1}
        assert set(entry.lr.tolist()) == {0.01 if round >= 3 else 0.1}
        assert {o.round for o in orders} == {round}
        assert all(o.at_once for o in orders)
        assert len(uploads) == 3
    assert server.updates == 4


def test_the_order_in_which_uploads_come_moves_no_bits() -> None:
    digests = set()
    for turn in (lambda u: u, lambda u: u[::-1], lambda u: u[1:] + u[:1]):
        book = toy.ledger(toy.settings())
        server = toy.server(book, toy.settings(), clients=6, cohort=6)
        orders = server.open()
        for _ in range(3):
            values = np.float32([1e30, 1.0, 3.3, -1e30, 1e-3, 7.7])
            uploads = [
                Upload(o.client, 0, Scalars(np.full((1, 2), values[o.client], np.float32))) for o in orders
            ]
            orders = [o for u in turn(uploads) for o in server.receive(u)]
        digests.add(book.digest)
    assert len(digests) == 1


def test_uploads_that_do_not_belong_to_the_round_are_refused() -> None:
    book = toy.ledger(toy.settings())
    server = toy.server(book, toy.settings())
    first, *_ = uploads = Scribe().perform(server.open())
    server.receive(first)
    stranger = next(c for c in range(6) if c not in {u.client for u in uploads})
    for client in (first.client, stranger):
        with pytest.raises(RunError, match=f"client {client} answered in round 1"):
            server.receive(replace(first, client=client))
    server.receive(uploads[1])
    with pytest.raises(TypeError, match="cannot serve Tail"):
        server.receive(replace(uploads[2], body=Tail(np.zeros(0, np.uint64), np.zeros(0, np.float32))))
    assert book.version == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_scalar_that_is_not_finite_ends_the_run_and_names_the_client(value: float) -> None:
    how = toy.settings()
    book = toy.ledger(how)
    server = toy.server(book, how, cohort=1)
    (order,) = server.open()
    body = Scalars(np.full(order.body.seeds.shape, value, np.float32))
    with pytest.raises(
        Diverged, match=f"client {order.client} sent a scalar that is not finite for update 1"
    ):
        server.receive(Upload(order.client, 0, body))
    other = toy.pull_server(toy.ledger(how), how)
    other.wake(3)
    with pytest.raises(Diverged, match="client 3"):
        other.receive(Upload(3, 0, SeededScalars(client_seeds(how, 3, 0), body.values[0])))
    assert book.version == 0


# --- bytes -----------------------------------------------------------------------------------------------------


def expected_down(
    how: Any, cohorts: Cohorts, count: int, pull_after: int | None, state: int
) -> dict[int, list[tuple[int, bool]]]:
    """Bytes down and whether it pulled, per client of each round, from the participation pattern alone."""
    seen: dict[int, int] = {}
    found = {}
    for round in range(1, count + 1):
        found[round] = []
        for client in cohorts.draw(round).tolist():
            # who took part in round r was then at r - 1, and lacks r and all after it
            missed = range(seen.get(client, 0) + 1, round)
            pairs = 12 * sum(how.pairs(r) for r in missed)
            pulls = pull_after is not None and len(missed) > pull_after and state < pairs
            found[round].append(((state if pulls else pairs) + 8 * how.pairs(round), pulls))
            seen[client] = round - 1
    return found


@pytest.mark.parametrize("pull_after", PULLS)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_bytes_follow_from_who_took_part(pull_after: int | None, momentum: float, local_steps: int) -> None:
    how = toy.settings(
        momentum=momentum, local_steps=local_steps, perturbations=Schedule(2, ((5, 4), (20, 1)))
    )
    server = toy.server(toy.ledger(how), how, cohort=2, model=pull_after is not None, pull_after=pull_after)
    state = 4 * toy.D * (2 if momentum else 1)
    down = expected_down(how, Cohorts(toy.CLIENTS, 2, toy.KEY), 40, pull_after, state)
    pulled = 0
    for round, (orders, uploads) in enumerate(toy.rounds(server, Scribe(), 40), 1):
        assert [(o.body.wire_bytes, o.sync.pulled) for o in orders] == down[round]
        for order, upload in zip(orders, uploads, strict=True):
            assert len(order.body.encode()) == order.body.wire_bytes
            assert len(upload.body.encode()) == 4 * how.pairs(round) == order.reply_bytes
            assert order.sync.read == round - 1
            got = 0 if order.sync.pulled else order.body.missed_seeds.size
            assert (order.sync.pairs, isinstance(order.body, PulledModel)) == (got, order.sync.pulled)
            pulled += order.sync.pulled
    assert (pulled > 0) == (pull_after is not None)


def test_all_take_part_in_every_round_in_closed_form() -> None:
    """12 KP for the last round and 8 KP for the new seeds down, 4 KP up."""
    how = toy.settings(local_steps=2, perturbations=Schedule(5))
    server = toy.server(toy.ledger(how), how, cohort=6)
    played = list(toy.rounds(server, Scribe(), 30))
    down = sum(o.body.wire_bytes for orders, _ in played for o in orders)
    up = sum(u.body.wire_bytes for _, uploads in played for u in uploads)
    assert down == 6 * (29 * 12 * 10 + 30 * 8 * 10)
    assert up == 6 * 30 * 4 * 10


def test_an_agent_that_is_its_own_server_pays_nothing() -> None:
    how = toy.settings(estimate="central")
    book = toy.ledger(how)
    server = toy.server(book, how, clients=1, cohort=1, agent=True)
    crew = toy.shared(book, how, clients=1)
    for orders, uploads in toy.rounds(server, crew, 4):
        assert isinstance(orders[0].body, AgentSeeds)
        assert orders[0].body.wire_bytes == uploads[0].body.wire_bytes == orders[0].reply_bytes == 0
    slow = toy.SlowModel(how)
    for seeds, scalars, _ in book.since(0).steps():
        slow.update(seeds[None], scalars[None])
    assert toy.bits(crew.state(4)[0]) == toy.bits(slow.x)


@pytest.mark.parametrize("pull_after", PULLS)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_asynchronous_bytes_follow_from_who_woke(pull_after: int | None, momentum: float) -> None:
    how = toy.settings(momentum=momentum, perturbations=Schedule(4))
    server = toy.pull_server(toy.ledger(how), how, pull_after=pull_after)
    state = 4 * toy.D * (2 if momentum else 1)
    seen, pulled = dict.fromkeys(range(toy.CLIENTS), 0), 0
    turns = (toy.KEY / "turns").generator().choice(toy.CLIENTS, 80, p=[0.4, 0.3, 0.2, 0.06, 0.03, 0.01])
    for version, client in enumerate(turns.tolist()):
        order = server.wake(client)
        pairs = 12 * 4 * (version - seen[client])
        pulls = pull_after is not None and version - seen[client] > pull_after and state < pairs
        assert order.body.wire_bytes == len(order.body.encode()) == (state if pulls else pairs)
        assert (order.sync.pulled, order.reply_bytes, order.round) == (pulls, 12 * 4, version + 1)
        seen[client], pulled = version, pulled + pulls
        answer(server, how, client, version)
    assert (pulled > 0) == (pull_after is not None)


# --- trimming and pulls ----------------------------------------------------------------------------------------


@pytest.fixture
def no_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing that was trimmed can be read again."""

    def refuse(*_: object) -> None:
        raise AssertionError("the working set lacked what a client needed")

    monkeypatch.setattr(Ledger, "_recalled", refuse)


@pytest.mark.parametrize("pull_after", PULLS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("no_recall")
def test_trimming_leaves_what_rounds_need(tmp_path: Path, pull_after: int | None, seed: int) -> None:
    how = replace(toy.settings(), key=Key(seed))
    book = toy.ledger(how, tmp_path / "ledger")
    model = toy.replica(how) if pull_after else None
    server = DecomflServer(Cohorts(40, 3, Key(seed)), book, how, model=model, pull_after=pull_after)
    for _ in toy.rounds(server, Scribe(), 330):
        pass
    assert book._memory.trimmed > 0
    if pull_after == 1:  # from 4 D bytes of pairs on everybody pulls, so nobody needs more than that
        assert book.pairs(book._memory.trimmed, 320) * 12 <= 4 * toy.D
        assert book.pairs(book._memory.trimmed - 1, 320) * 12 > 4 * toy.D


@pytest.mark.parametrize("pull_after", PULLS)
@pytest.mark.usefixtures("no_recall")
def test_trimming_leaves_what_asynchronous_clients_need(tmp_path: Path, pull_after: int | None) -> None:
    how = toy.settings()
    book = toy.ledger(how, tmp_path / "ledger")
    server = toy.pull_server(book, how, clients=8, pull_after=pull_after)
    generator, reading = Key(4).generator(), dict[int, int]()
    for client in generator.integers(0, 8, 900).tolist():
        if client in reading:
            answer(server, how, client, reading.pop(client))
        else:
            reading[client] = server.wake(client).sync.read
    assert book._memory.trimmed > 200


@pytest.mark.usefixtures("no_recall")
def test_what_all_have_synced_is_given_back(tmp_path: Path) -> None:
    how = toy.settings()
    book = toy.ledger(how, tmp_path / "ledger")
    server = toy.server(book, how, cohort=6)
    held = []
    for _ in toy.rounds(server, Scribe(), 640):
        held.append(book.memory_bytes - 8 * 1024)
    # all six were at r - 1 when round r closed: at 640 nothing but round 640 is needed
    assert book._memory.trimmed == 639
    assert max(held) <= 60 * 2 * 2 * 2 * 64
    assert book.entries == 2 * 640


def test_one_sleeper_keeps_all_that_it_lacks(tmp_path: Path) -> None:
    how = toy.settings()
    book = toy.ledger(how, tmp_path / "ledger")
    server = toy.pull_server(book, how, clients=2)
    for version in range(130):
        server.wake(0)
        answer(server, how, 0, version)
    assert book._memory.trimmed == 0
    assert server.wake(1).body.missed_seeds.size == 130 * how.width(1)


def test_a_ledger_without_a_log_is_not_trimmed() -> None:
    """Who lags behind every client, such as a host's replica or whoever evaluates, has no other source."""
    how = toy.settings()
    book = toy.ledger(how)
    server = toy.pull_server(book, how, clients=1)
    for version in range(200):
        server.wake(0)
        answer(server, how, 0, version)
    replica = toy.replica(how)
    replica.go_to(200, book)
    assert replica.version == 200


def test_a_pulled_model_is_the_servers_at_that_moment() -> None:
    how = toy.settings(momentum=0.5, perturbations=Schedule(9))
    book = toy.ledger(how)
    server = toy.pull_server(book, how, clients=2, pull_after=1)
    for version in range(10):
        server.wake(0)
        answer(server, how, 0, version)
    order = server.wake(1)
    assert isinstance(order.body, PulledModel)
    assert (order.sync.missed, order.sync.pairs) == (10, 0)
    reference = toy.replica(how)
    reference.go_to(10, book)
    assert toy.bits(order.body.state) == toy.bits(reference.state())
    answer(server, how, 1, 10)
    assert toy.bits(order.body.state) == toy.bits(reference.state())


# --- resuming --------------------------------------------------------------------------------------------------


def same_order(a: Order, b: Order) -> bool:
    plain = [replace(o, body=None) for o in (a, b)]  # type: ignore[arg-type]
    return repr(plain[0]) == repr(plain[1]) and a.body.encode() == b.body.encode()


@pytest.mark.parametrize("pull_after", [None, 2])
@pytest.mark.parametrize("at", [0, 1, 7, 64, 70])
def test_a_server_that_resumes_sends_the_same_orders(tmp_path: Path, pull_after: int | None, at: int) -> None:
    how = toy.settings(perturbations=Schedule(3))

    def make(book: Ledger) -> DecomflServer:
        return toy.server(book, how, model=True, pull_after=pull_after, clients=30)

    def copy(rounds: int) -> Ledger:
        book = toy.ledger(how)
        for update in whole.since(0, rounds).updates():
            fields = ("step", "perturbation", "seed", "scalar")
            columns = {name: getattr(update, name) for name in fields}
            book.append(party=update.party, read=update.read, lr=update.lr, **columns)
        return book

    whole = toy.ledger(how)
    sent = [orders for orders, _ in toy.rounds(make(whole), Scribe(), 80)]
    book = copy(at)
    server = make(book)
    server.resume(at)
    for expected, (orders, _) in zip(sent[at:], toy.rounds(server, Scribe(), 80 - at), strict=True):
        assert all(same_order(a, b) for a, b in zip(expected, orders, strict=True))
    assert book.digest == whole.digest
    forgetful = make(copy(at))  # the control: who forgets that clients had synced sends them too much
    forgetful._round = at
    if at > 60 and pull_after is None:
        assert any(not same_order(a, b) for a, b in zip(sent[at], forgetful.open(), strict=True))


# --- asynchronous ----------------------------------------------------------------------------------------------


def test_an_update_tells_whose_it_is_and_what_it_read() -> None:
    how = toy.settings(lr=Schedule(0.1, ((2, 0.02),)))
    book = toy.ledger(how)
    server = toy.pull_server(book, how)
    assert server.open() == ()
    orders = {c: server.wake(c) for c in (2, 4)}
    assert {o.sync.read for o in orders.values()} == {0}
    answer(server, how, 4, 0)
    answer(server, how, 2, 0)
    late = server.wake(4)
    assert (late.sync.read, late.sync.missed, late.sync.pairs) == (2, 2, 4)
    assert isinstance(late.body, Tail)
    answer(server, how, 4, 2)
    rows = book.since(0)
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


def test_the_mean_is_taken_before_it_is_rounded() -> None:
    """In float32 the sum 2^24 + 1 - 2^24 would be 0."""
    how = toy.settings(perturbations=Schedule(1))
    book = toy.ledger(how)
    server = toy.server(book, how, clients=3, cohort=3)
    values: dict[int, float] = {0: 2.0**24, 1: 1.0, 2: -(2.0**24)}
    make: Callable[[Order], Upload] = lambda o: Upload(  # noqa: E731
        o.client, 0, Scalars(np.full((1, 1), values[o.client], np.float32))
    )
    for order in server.open():
        server.receive(make(order))
    assert book.since(0).scalar.tolist() == [np.float32(1 / 3)]


def test_a_catch_up_hands_out_views_that_stay_as_they_are(tmp_path: Path) -> None:
    """Trimming and growing must not write to a slice that an order still holds."""
    how = toy.settings()
    book = toy.ledger(how, tmp_path / "ledger")
    server = toy.server(book, how, cohort=6)
    kept: list[tuple[CatchUp, bytes]] = []
    for orders, _ in toy.rounds(server, Scribe(), 150):
        kept += [(o.body, o.body.encode()) for o in orders if isinstance(o.body, CatchUp)]
    assert all(body.encode() == before for body, before in kept)
