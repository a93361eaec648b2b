"""Whoever replays the ledger holds the same bits: five ways to a client's model, whatever the
participation.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.horizontal.seeded import SeededSettings
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.schedule import Schedule
from raydpzv.wire.seeds import CatchUp, PulledModel, SeededScalars
from raydpzv.zo.update import Rule
from tests.helpers import seed_parties as toy

quick = settings(max_examples=30, deadline=None, derandomize=True)
LAWS = st.sampled_from(["gaussian", "sphere", "rademacher"])
MOMENTA = st.sampled_from([0.0, 0.5, 0.9])
LRS = st.sampled_from([Schedule(0.05), Schedule(0.05, ((2, 0.02), (5, 0.3)))])
SECRETS = st.sampled_from([None, toy.SECRET])
OTHERS = (
    Rule(optimizer="signsgd"),
    Rule(momentum=0.9, damped=True, optimizer="adam", beta2=0.3, v0=1e-7),
    Rule(optimizer="svrg", epoch=3),
)
"""Rules beside SGD with Eq. (8)."""


@st.composite
def settings_of_rounds(draw: Any, others: Sequence[Rule] = OTHERS) -> SeededSettings:
    law = draw(LAWS)
    rule = draw(
        st.sampled_from(
            [Rule(law, draw(MOMENTA), damped=True), *(replace(r, law=law) for r in others)]
        )
    )
    widths = st.sampled_from([Schedule(1), Schedule(3), Schedule(1, ((3, 2), (4, 5)))])
    return SeededSettings(
        toy.KEY,
        rule,
        draw(st.sampled_from([1, 4, 100])),
        draw(LRS),
        draw(widths),
        draw(st.integers(1, 3)),
        1e-3,
        draw(st.sampled_from(["forward", "central", "projection"])),
    )


@quick
@given(
    how=settings_of_rounds(),
    clients=st.integers(1, 6),
    cohort=st.integers(1, 6),
    count=st.integers(1, 9),
    by_rows=st.booleans(),
    secret=SECRETS,
    pull_after=st.sampled_from([None, 1, 3]),
)
def test_every_client_holds_the_servers_bits(
    how: SeededSettings,
    clients: int,
    cohort: int,
    count: int,
    by_rows: bool,
    secret: Any,
    pull_after: int | None,
) -> None:
    pull_after = None if secret else pull_after
    weights = toy.parts(clients).sizes.astype(np.float64) if by_rows else None
    slow = toy.SlowModel(how, secret)
    with tempfile.TemporaryDirectory() as folder:
        ledger = toy.ledger(how, Path(folder) / "ledger")
        party = toy.server(
            ledger,
            how,
            clients=clients,
            cohort=min(cohort, clients),
            weights=weights,
            model=secret is None,
            pull_after=pull_after,
        )
        client_group = toy.shared(ledger, how, clients=clients, secret=secret)
        literal = toy.separate(toy.Silence(), how, clients=clients, secret=secret)
        for orders, uploads in toy.rounds(party, client_group, count):
            again = literal.process(orders)
            assert [toy.bits(u.body.values) for u in again] == [
                toy.bits(u.body.values) for u in uploads
            ]
            assert [u.loss for u in again] == [u.loss for u in uploads]
            assert toy.bits(client_group.state(slow.version)[0]) == toy.bits(slow.x)
            for order in orders:
                mine = literal._clients[order.client]
                assert (mine.version, toy.bits(mine.x)) == (slow.version, toy.bits(slow.x))
                assert toy.bits(mine.state()[1:]) == toy.bits(slow.kept[: how.rule.vectors])
            slow.update(orders[0].body.seeds, toy.mean(uploads, weights))
        ledger.close()
        with Ledger.open(Path(folder) / "ledger", expect=toy.header(how)) as opened:
            rebuilt = toy.replica(how, secret)
            rebuilt.go_to(count, opened)
            assert toy.bits(rebuilt.x) == toy.bits(slow.x)
            blind = toy.replica(how)
            blind.go_to(count, opened)
            # the first estimate of an epoch of ZO-SVRG moves what is kept and not the model
            assert (toy.bits(blind.state()) == toy.bits(rebuilt.state())) == (secret is None)
        if secret is None:
            assert toy.bits(party._updates._model.state()[0]) == toy.bits(slow.x)
    assert toy.bits(client_group.state(count)[0]) == toy.bits(slow.x)


@quick
@given(
    law=LAWS,
    rule=st.sampled_from(
        [*(Rule(momentum=beta, damped=True) for beta in (0.0, 0.5, 0.9)), *OTHERS[:2]]
    ),
    lr=LRS,
    width=st.integers(1, 3),
    estimate=st.sampled_from(["forward", "central", "projection"]),
    clients=st.integers(1, 5),
    turns=st.lists(st.integers(0, 4), min_size=1, max_size=24),
    secret=SECRETS,
    pull_after=st.sampled_from([None, 1, 3]),
)
def test_asynchronous_clients_hold_what_they_read(
    law: Any,
    rule: Rule,
    lr: Schedule,
    width: int,
    estimate: Any,
    clients: int,
    turns: list[int],
    secret: Any,
    pull_after: int | None,
) -> None:
    """A client's turn is to wake, or to hand in: the overlaps of a run without any clock."""
    pull_after = None if secret else pull_after
    how = toy.settings(
        rule=replace(rule, law=law),
        lr=lr,
        perturbations=Schedule(width),
        estimate=estimate,
        batch=3,
    )
    ledger = toy.ledger(how)
    party = toy.pull_server(ledger, how, clients=clients, pull_after=pull_after)
    executors = [toy.shared(ledger, how, clients=clients, secret=secret) for _ in range(2)]
    literal = toy.separate(toy.Silence(), how, clients=clients, secret=secret)
    slow, history = toy.SlowModel(how, secret), []
    pending: dict[int, tuple[Order, Upload]] = {}
    history.append(slow.x)
    for turn in turns:
        client = turn % clients
        if client not in pending:
            order = party.wake(client)
            assert order.sync.read == slow.version
            # work is dispatched when a client wakes: a host goes through the versions in ascending
            # order only
            (upload,) = literal.process([order])
            pending[client] = (order, upload)
            continue
        order, upload = pending.pop(client)
        read = order.sync.read
        (same,) = toy.shared(ledger, how, clients=clients, secret=secret).process([order])
        if executors[client % 2]._replica.version <= read:
            (third,) = executors[client % 2].process([order])
            assert toy.bits(third.body.values) == toy.bits(same.body.values)
        assert isinstance(upload.body, SeededScalars)
        assert toy.bits(upload.body.values) == toy.bits(same.body.values)
        assert toy.bits(literal._clients[client].x) == toy.bits(history[read])
        assert party.receive(upload) == ()
        slow.update(upload.body.seeds, upload.body.values[None])
        history.append(slow.x)
        entry = ledger.since(slow.version - 1)
        assert (entry.party[0], entry.read[0], entry.lr[0]) == (client, read, lr.at(slow.version))
    assert len(set(ledger.since(0).seed.tolist())) == ledger.version
    assert toy.bits(executors[0].state(slow.version)[0]) == toy.bits(slow.x)


@quick
@given(how=settings_of_rounds(OTHERS[:2]), count=st.integers(3, 8))
def test_a_client_that_skips_its_own_round_ends_elsewhere(how: SeededSettings, count: int) -> None:
    """The control of the equalities above: who took part in round r reverted, and must replay round
    r.
    """
    ledger = toy.ledger(how)
    literal = toy.separate(toy.Silence(), how, clients=1)
    party, wrong = toy.server(ledger, how, clients=1, cohort=1), 0
    for orders, _ in toy.rounds(party, toy.shared(ledger, how, clients=1), count):
        (order,) = orders
        assert isinstance(order.body, CatchUp)
        assert not isinstance(order.body, PulledModel)
        if order.round > 1:
            assert order.sync.missed == 1
            none = replace(
                order.body, missed_seeds=np.zeros(0, np.uint64), missed_scalars=np.zeros(0)
            )
            order = order._replace(body=none)
        literal._clients.setdefault(0, literal._fresh.twin()).version = order.round - 1
        literal.process([order])
        reference = toy.replica(how)
        reference.go_to(order.round - 1, ledger)
        wrong += toy.bits(reference.x) != toy.bits(literal._clients[0].x)
    assert wrong == count - 1
