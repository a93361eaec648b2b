# M clients, m of them in a cohort, K local steps, P perturbations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.horizontal.decomfl import DecomflServer
from raydpzv.methods.horizontal.rounds import Cohorts
from raydpzv.methods.horizontal.seeded import Updates
from raydpzv.methods.roles import Order
from raydpzv.methods.schedule import Schedule
from raydpzv.wire.seeds import AgentSeeds, CatchUp, PulledModel
from tests.helpers import seed_parties as toy
from tests.helpers.decomfl_uploads import Scribe, answer

PULLS = (None, 1, 3, 10)


# --- bytes
# -----------------------------------------------------------------------------------------------------


def expected_down(
    how: Any, cohorts: Cohorts, count: int, pull_after: int | None, state: int
) -> dict[int, list[tuple[int, bool]]]:
    """Bytes down and whether it pulled, per client of each round, from the participation pattern
    alone.
    """
    seen: dict[int, int] = {}
    found = {}
    for round in range(1, count + 1):
        found[round] = []
        for client in cohorts.draw(round).tolist():
            # who took part in round r was then at r - 1, and lacks r and all after it
            missed = range(seen.get(client, 0) + 1, round)
            lacks = sum(8 * how.local_steps + 4 * how.pairs(r) for r in missed)
            pulls = pull_after is not None and len(missed) > pull_after and state < lacks
            found[round].append(((state if pulls else lacks) + 8 * how.local_steps, pulls))
            seen[client] = round - 1
    return found


@pytest.mark.parametrize("pull_after", PULLS)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_bytes_follow_from_who_took_part(
    pull_after: int | None, momentum: float, local_steps: int
) -> None:
    how = toy.settings(
        momentum=momentum, local_steps=local_steps, perturbations=Schedule(4, ((5, 12), (20, 2)))
    )
    server = toy.server(
        toy.ledger(how), how, cohort=2, model=pull_after is not None, pull_after=pull_after
    )
    state = 4 * toy.D * (2 if momentum else 1)
    down = expected_down(how, Cohorts(toy.CLIENTS, 2, toy.KEY), 40, pull_after, state)
    pulled = 0
    for round, (orders, uploads) in enumerate(toy.rounds(server, Scribe(how), 40), 1):
        assert [(o.body.wire_bytes, o.sync.pulled) for o in orders] == down[round]
        for order, upload in zip(orders, uploads, strict=True):
            assert len(order.body.encode()) == order.body.wire_bytes
            assert len(upload.body.encode()) == 4 * how.pairs(round) == order.upload_bytes
            assert order.sync.read == round - 1
            got = 0 if order.sync.pulled else order.body.missed_scalars.size
            assert (order.sync.pairs, isinstance(order.body, PulledModel)) == (
                got,
                order.sync.pulled,
            )
            pulled += order.sync.pulled
    assert (pulled > 0) == (pull_after is not None)


def test_all_take_part_in_every_round_in_closed_form() -> None:
    """8 K + 4 KP for the last round and 8 K for the new seeds down, 4 KP up."""
    how = toy.settings(local_steps=2, perturbations=Schedule(5))
    server = toy.server(toy.ledger(how), how, cohort=6)
    played = list(toy.rounds(server, Scribe(how), 30))
    down = sum(o.body.wire_bytes for orders, _ in played for o in orders)
    up = sum(u.body.wire_bytes for _, uploads in played for u in uploads)
    assert down == 6 * (29 * (8 * 2 + 4 * 10) + 30 * 8 * 2)
    assert up == 6 * 30 * 4 * 10


@pytest.mark.parametrize(
    ("clients", "cohort", "steps", "width"), [(6, 2, 1, 4), (12, 3, 2, 5), (40, 4, 3, 2)]
)
def test_table_1_is_what_is_metered(clients: int, cohort: int, steps: int, width: int) -> None:
    """DeComFL's Table 1, numbers a round: up mKP; down 2MKP on average, the seed of each scalar
    counted.

    Ours down: MK(P + 1), a step's one seed, and the mK new ones. What is still to be fetched at the
    end is left out.
    """
    how, rounds = toy.settings(local_steps=steps, perturbations=Schedule(width)), 400
    server = toy.server(toy.ledger(how), how, clients=clients, cohort=cohort)
    up = scalars = seeds = new = 0
    for orders, uploads in toy.rounds(server, Scribe(how), rounds):
        up += sum(u.body.values.size for u in uploads)
        scalars += sum(o.body.missed_scalars.size for o in orders)
        seeds += sum(o.body.missed_seeds.size for o in orders)
        new += sum(o.body.seeds.size for o in orders)
    assert up == rounds * cohort * steps * width
    assert (seeds * width, new) == (scalars, rounds * cohort * steps)
    printed = 2 * clients * steps * width
    # a client was last asked M/m rounds before the end, as the mean goes
    left = 1 - clients / cohort / rounds
    assert 2 * scalars / rounds == pytest.approx(printed * left, rel=0.02)
    assert 2 * scalars / rounds < printed


def test_an_agent_that_is_its_own_server_pays_nothing() -> None:
    how = toy.settings(estimate="central")
    ledger, server = toy.with_ledger(toy.server, how, clients=1, cohort=1, agent=True)
    client_group = toy.shared(ledger, how, clients=1)
    for orders, uploads in toy.rounds(server, client_group, 4):
        assert isinstance(orders[0].body, AgentSeeds)
        assert (
            orders[0].body.wire_bytes == uploads[0].body.wire_bytes == orders[0].upload_bytes == 0
        )
    slow = toy.SlowModel(how)
    for seeds, scalars, _ in ledger.since(0).steps():
        slow.update(seeds[:1], scalars[None])
    assert toy.bits(client_group.state(4)[0]) == toy.bits(slow.x)


@pytest.mark.parametrize("pull_after", PULLS)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_asynchronous_bytes_follow_from_who_woke(pull_after: int | None, momentum: float) -> None:
    how = toy.settings(momentum=momentum, perturbations=Schedule(4))
    server = toy.pull_server(toy.ledger(how), how, pull_after=pull_after)
    state = 4 * toy.D * (2 if momentum else 1)
    seen, pulled = dict.fromkeys(range(toy.CLIENTS), 0), 0
    turns = (
        (toy.KEY / "turns").generator().choice(toy.CLIENTS, 80, p=[0.4, 0.3, 0.2, 0.06, 0.03, 0.01])
    )
    for version, client in enumerate(turns.tolist()):
        order = server.wake(client)
        lacks = (8 + 4 * 4) * (version - seen[client])
        pulls = pull_after is not None and version - seen[client] > pull_after and state < lacks
        assert order.body.wire_bytes == len(order.body.encode()) == (state if pulls else lacks)
        assert (order.sync.pulled, order.upload_bytes, order.round) == (
            pulls,
            8 + 4 * 4,
            version + 1,
        )
        seen[client], pulled = version, pulled + pulls
        answer(server, how, client, version)
    assert (pulled > 0) == (pull_after is not None)


# --- trimming and pulls
# ----------------------------------------------------------------------------------------


@pytest.fixture
def no_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing that was trimmed can be read again."""

    def refuse(*_: object) -> None:
        raise AssertionError("the working set lacked what a client needed")

    monkeypatch.setattr(Ledger, "_recalled", refuse)


@pytest.mark.parametrize("pull_after", PULLS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("no_recall")
def test_trimming_leaves_what_rounds_need(
    tmp_path: Path, pull_after: int | None, seed: int
) -> None:
    how = replace(toy.settings(), key=Key(seed))
    ledger = toy.ledger(how, tmp_path / "ledger")
    model = toy.replica(how) if pull_after else None
    server = DecomflServer(
        Cohorts(40, 3, Key(seed)), Updates(ledger, how, 40, model=model, pull_after=pull_after)
    )
    for _ in toy.rounds(server, Scribe(how), 330):
        pass
    assert ledger._memory.trimmed > 0
    # from 4 D bytes of seeds and scalars on everybody pulls, so nobody needs more than that
    if pull_after == 1:
        needed = 320 - ledger._memory.trimmed
        assert (8 + 4 * how.width(1)) * needed <= 4 * toy.D
        assert (8 + 4 * how.width(1)) * (needed + 1) > 4 * toy.D


@pytest.mark.parametrize("pull_after", PULLS)
@pytest.mark.usefixtures("no_recall")
def test_trimming_leaves_what_asynchronous_clients_need(
    tmp_path: Path, pull_after: int | None
) -> None:
    how = toy.settings()
    ledger, server = toy.with_ledger(
        toy.pull_server, how, tmp_path / "ledger", clients=8, pull_after=pull_after
    )
    generator, reading = Key(4).generator(), dict[int, int]()
    for client in generator.integers(0, 8, 900).tolist():
        if client in reading:
            answer(server, how, client, reading.pop(client))
        else:
            reading[client] = server.wake(client).sync.read
    assert ledger._memory.trimmed > 200


@pytest.mark.usefixtures("no_recall")
def test_what_all_have_synced_is_given_back(tmp_path: Path) -> None:
    how = toy.settings()
    ledger, server = toy.with_ledger(toy.server, how, tmp_path / "ledger", cohort=6)
    held = []
    for _ in toy.rounds(server, Scribe(how), 640):
        held.append(ledger.memory_bytes - 8 * 1024)
    # all six were at r - 1 when round r closed: at 640 nothing but round 640 is needed
    assert ledger._memory.trimmed == 639
    assert max(held) <= 60 * 2 * 2 * 2 * 64
    assert ledger.entries == 2 * 640


def test_one_sleeper_keeps_all_that_it_lacks(tmp_path: Path) -> None:
    how = toy.settings()
    ledger, server = toy.with_ledger(toy.pull_server, how, tmp_path / "ledger", clients=2)
    for version in range(130):
        server.wake(0)
        answer(server, how, 0, version)
    assert ledger._memory.trimmed == 0
    missed = server.wake(1).body
    assert (missed.missed_seeds.size, missed.missed_scalars.size) == (130, 130 * how.width(1))


def test_a_ledger_without_a_log_is_not_trimmed() -> None:
    """Who lags behind every client, such as a host's replica or whoever evaluates, has no other
    source.
    """
    how = toy.settings()
    ledger, server = toy.with_ledger(toy.pull_server, how, clients=1)
    for version in range(200):
        server.wake(0)
        answer(server, how, 0, version)
    replica = toy.replica(how)
    replica.go_to(200, ledger)
    assert replica.version == 200


def test_a_pulled_model_is_the_servers_at_that_moment() -> None:
    how = toy.settings(momentum=0.5, perturbations=Schedule(9))
    ledger, server = toy.with_ledger(toy.pull_server, how, clients=2, pull_after=1)
    for version in range(10):
        server.wake(0)
        answer(server, how, 0, version)
    order = server.wake(1)
    assert isinstance(order.body, PulledModel)
    assert (order.sync.missed, order.sync.pairs) == (10, 0)
    reference = toy.replica(how)
    reference.go_to(10, ledger)
    assert toy.bits(order.body.state) == toy.bits(reference.state())
    answer(server, how, 1, 10)
    assert toy.bits(order.body.state) == toy.bits(reference.state())


def test_a_catch_up_hands_out_views_that_stay_as_they_are(tmp_path: Path) -> None:
    """Trimming and growing must not write to a slice that an order still holds."""
    how = toy.settings()
    _, server = toy.with_ledger(toy.server, how, tmp_path / "ledger", cohort=6)
    kept: list[tuple[CatchUp, bytes]] = []
    for orders, _ in toy.rounds(server, Scribe(how), 150):
        kept += [(o.body, o.body.encode()) for o in orders if isinstance(o.body, CatchUp)]
    assert all(body.encode() == before for body, before in kept)


# --- resuming
# --------------------------------------------------------------------------------------------------


def same_order(a: Order, b: Order) -> bool:
    plain = [o._replace(body=None) for o in (a, b)]  # type: ignore[arg-type]
    return repr(plain[0]) == repr(plain[1]) and a.body.encode() == b.body.encode()


@pytest.mark.parametrize("pull_after", [None, 2])
@pytest.mark.parametrize("at", [0, 1, 7, 64, 70])
def test_a_server_that_resumes_sends_the_same_orders(
    tmp_path: Path, pull_after: int | None, at: int
) -> None:
    how = toy.settings(perturbations=Schedule(3))

    def make(ledger: Ledger) -> DecomflServer:
        return toy.server(ledger, how, model=True, pull_after=pull_after, clients=30)

    def copy(rounds: int) -> Ledger:
        ledger = toy.ledger(how)
        for update in whole.since(0, rounds).updates():
            ledger.enter(update)
        return ledger

    whole = toy.ledger(how)
    sent = [orders for orders, _ in toy.rounds(make(whole), Scribe(how), 80)]
    ledger = copy(at)
    server = make(ledger)
    server.restore(at, None)
    for expected, (orders, _) in zip(
        sent[at:], toy.rounds(server, Scribe(how), 80 - at), strict=True
    ):
        assert all(same_order(a, b) for a, b in zip(expected, orders, strict=True))
    assert ledger.digest == whole.digest
    forgetful = make(
        copy(at)
    )  # the control: who forgets that clients had synced sends them too much
    forgetful._round = at
    if at > 60 and pull_after is None:
        assert any(
            not same_order(a, b) for a, b in zip(sent[at], forgetful.first_orders(), strict=True)
        )
