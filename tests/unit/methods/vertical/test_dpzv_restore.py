"""A client is a function of its key and of the releases it got: rebuilt from them it has the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raydpzv.errors import RunError
from raydpzv.keys import direction_seed
from raydpzv.ledger.header import Header, Model
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import Order
from raydpzv.methods.schedule import Schedule
from raydpzv.methods.vertical.dpzv import ZerothOrder
from raydpzv.records.party_checkpoints import ledger_history
from raydpzv.wire.messages import Acknowledged
from raydpzv.zo.directions import LAWS
from tests.helpers.vertical_parties import KEY, dpzv_clients, dpzv_server, make_data, make_head, wakes

CLIENT = 1


def settings(law, momentum, perturbations):
    return ZerothOrder(0.1, Schedule(0.05), momentum, perturbations, law)


def live(zeroth_order, updates=40):
    """Clients and server exchange; the ledger is written by hand, as the method says. Returns all of it."""
    data = make_data()
    clients = dpzv_clients(data, zeroth_order)
    server = dpzv_server(data, zeroth_order, make_head("sgd"))
    orders = {order.client: order for order in server.first_orders()}
    model = Model(clients[0].bottom.model.size, "layout", "initial")
    ledger = Ledger.create(None, Header({"client 1": model}, zeroth_order.law, zeroth_order.momentum))
    for client in wakes(updates):
        upload = clients[client].process(orders[client])
        [orders[client]] = server.receive(upload)
        count = range(zeroth_order.perturbations)
        ledger.append(
            party=client,
            read=0,
            lr=zeroth_order.lr.first,
            step=[upload.step for _ in count],
            perturbation=list(count),
            seed=[direction_seed(KEY, client, upload.step, p) for p in count],
            scalar=orders[client].body.values,
        )
    return data, clients, orders, ledger


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("perturbations", [1, 3])
def test_a_rebuilt_client_continues_to_the_same_bits(law, momentum, perturbations):
    zeroth_order = settings(law, momentum, perturbations)
    data, clients, orders, ledger = live(zeroth_order)
    last = orders[CLIENT]
    uploads = wakes(40).count(CLIENT)
    rebuilt = dpzv_clients(data, zeroth_order)[CLIENT]
    rebuilt.restore(ledger.since(0, last.round - 1).of(CLIENT), uploads)
    assert np.array_equal(rebuilt.parameters(), clients[CLIENT].parameters())
    for _ in range(3):
        was, now = clients[CLIENT].process(last), rebuilt.process(last)
        assert (was.step, was.body.encode()) == (now.step, now.body.encode())
        assert rebuilt.sha256() == clients[CLIENT].sha256()


def test_a_message_with_its_history_restores_a_client():
    """As a checkpoint has it: the answers so far, and one upload more."""
    zeroth_order = settings("sphere", 0.9, 2)
    data, clients, orders, ledger = live(zeroth_order)
    answers, uploads = ledger.since(0, orders[CLIENT].round - 1).of(CLIENT), wakes(40).count(CLIENT)
    restored = dpzv_clients(data, zeroth_order)[CLIENT]
    history = ledger_history(lambda client, order: (answers, uploads), CLIENT)
    assert isinstance(restored.process(Order(CLIENT, history)).body, Acknowledged)
    was, now = clients[CLIENT].process(orders[CLIENT]), restored.process(orders[CLIENT])
    assert (was.step, was.body.encode()) == (now.step, now.body.encode())


def test_a_ledger_without_its_last_update_gives_another_client():
    """The control: a release that was not written down before it was sent is missed."""
    zeroth_order = settings("sphere", 0.9, 1)
    data, clients, orders, ledger = live(zeroth_order)
    uploads, last = wakes(40).count(CLIENT), orders[CLIENT]
    clients[CLIENT].apply(last)
    whole, short = dpzv_clients(data, zeroth_order)[CLIENT], dpzv_clients(data, zeroth_order)[CLIENT]
    whole.restore(ledger.since(0, last.round), uploads)
    short.restore(ledger.since(0, last.round - 1), uploads)
    assert whole.sha256() == clients[CLIENT].sha256()
    assert short.sha256() != clients[CLIENT].sha256()


def test_one_changed_scalar_gives_another_client():
    zeroth_order = settings("gaussian", 0.9, 3)
    data, clients, orders, ledger = live(zeroth_order)
    clients[CLIENT].apply(orders[CLIENT])
    mine = ledger.since(0).of(CLIENT)
    scalar = mine.scalar.copy()
    scalar[4] = np.nextafter(scalar[4], np.float32(1)) * np.float32(1.01)
    for history, same in ((mine, True), (replace(mine, scalar=scalar), False)):
        rebuilt = dpzv_clients(data, zeroth_order)[CLIENT]
        rebuilt.restore(history, wakes(40).count(CLIENT))
        assert (rebuilt.sha256() == clients[CLIENT].sha256()) is same


def test_what_is_no_history_of_a_fresh_client_is_refused():
    zeroth_order = settings("sphere", 0.0, 3)
    data, clients, _, ledger = live(zeroth_order)
    mine, uploads = ledger.since(0).of(CLIENT), wakes(40).count(CLIENT)
    later = ledger.since(20).of(CLIENT)
    for client, history, count in (
        (clients[CLIENT], mine, uploads),
        (dpzv_clients(data, zeroth_order)[CLIENT], later, uploads),
        (dpzv_clients(data, zeroth_order)[CLIENT], mine, uploads + 2),
        (dpzv_clients(data, zeroth_order)[CLIENT], mine, uploads - 1),
    ):
        with pytest.raises(RunError, match="client 1: wanted updates from step 0 on"):
            client.restore(history, count)
