"""The two controls: synchronous split SGD, and random bottom models that are never trained."""

import numpy as np
import pytest
import torch

from raydpzv.engine.split_model import FirstOrder
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.vertical.frozen import FrozenClient, FrozenServer
from raydpzv.methods.vertical.split_sgd import SgdClient, SgdServer
from raydpzv.wire.messages import Acknowledged, GradientAndRows, Rows, Slopes, Start
from tests.helpers import vertical_parties as toy
from tests.helpers.ages import cache_uses
from tests.helpers.central_model import Central

DATA = toy.make_data()


def sgd_parties(data: toy.Data, momentum: float) -> tuple[list[SgdClient], SgdServer]:
    clients = [
        SgdClient(m, toy.make_bottom(data, m, descent=FirstOrder(0.5, momentum)))
        for m in range(toy.CLIENTS)
    ]
    head = toy.make_head("sgd", lr=0.2, momentum=momentum)
    server = SgdServer(toy.make_top(data, head), toy.batches("server"), toy.SIZES)
    return clients, server


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_split_sgd_is_central_sgd_on_the_composed_model(momentum: float) -> None:
    clients, server = sgd_parties(DATA, momentum)
    central = Central(DATA, FirstOrder(0.5, momentum), FirstOrder(0.2, momentum))
    orders = server.first_orders()
    for step in range(20):
        ids = toy.batches("server").draw(step)
        loss = central.loss([central.embed(m, ids) for m in range(toy.CLIENTS)], ids)
        central.step(loss, range(toy.CLIENTS))
        uploads = [clients[o.client].process(o) for o in orders]
        assert all(
            u.body.wire_bytes == o.upload_bytes for u, o in zip(uploads, orders, strict=True)
        )
        # the last to arrive closes the round, whoever it is
        *early, last = uploads[step % toy.CLIENTS :] + uploads[: step % toy.CLIENTS]
        assert [list(server.receive(u)) for u in early] == [[]] * (toy.CLIENTS - 1)
        orders = server.receive(last)
        assert [o.client for o in orders] == list(range(toy.CLIENTS))
        assert all(not o.start_immediately and o.round == (step + 1) * toy.CLIENTS for o in orders)
        assert orders[0].loss == pytest.approx(float(loss.detach()), abs=1e-5)
    for client, order in zip(clients, orders, strict=True):
        client.apply(order)
    central.compare(clients, server)


def test_an_sgd_reply_carries_the_clients_own_gradient_and_the_next_rows() -> None:
    clients, server = sgd_parties(DATA, 0.0)
    orders = server.first_orders()
    assert all(isinstance(o.body, Rows) and not o.start_immediately for o in orders)
    for order in orders:
        replies = server.receive(clients[order.client].process(order))
    bodies = [o.body for o in replies]
    for body in bodies:
        assert isinstance(body, GradientAndRows)
        assert body.gradient.shape == (toy.BATCH, toy.WIDTH)
        assert np.array_equal(body.ids, toy.batches("server").draw(1))
    assert not np.array_equal(bodies[0].gradient, bodies[1].gradient)  # type: ignore[attr-defined]


def test_an_sgd_client_needs_rows_first() -> None:
    clients, _ = sgd_parties(DATA, 0.0)
    with pytest.raises(RuntimeError, match="names rows"):
        clients[0].process(Order(0, Start()))


def frozen_parties() -> tuple[list[FrozenClient], FrozenServer]:
    clients = [
        FrozenClient(m, toy.make_bottom(DATA, m), toy.batches(m)) for m in range(toy.CLIENTS)
    ]
    head = toy.make_head("sgd", lr=0.1, momentum=0.9)
    server = FrozenServer(toy.make_top(DATA, head), toy.SIZES)
    return clients, server


def test_frozen_clients_never_change_and_the_head_trains_on_what_they_sent() -> None:
    clients, server = frozen_parties()
    before = [c.sha256() for c in clients]
    central = Central(DATA, FirstOrder(0.5), FirstOrder(0.1, 0.9))
    cache = torch.zeros(toy.ROWS, toy.CLIENTS, toy.WIDTH, dtype=torch.float64)
    orders = {o.client: o for o in server.first_orders()}
    steps = [0] * toy.CLIENTS
    for round, m in enumerate(toy.wakes(25), 1):
        ids = toy.batches(m).draw(steps[m])
        steps[m] += 1
        cache[ids, m] = central.embed(m, ids).detach()
        loss = central.loss([cache[ids, k] for k in range(toy.CLIENTS)], ids)
        central.step(loss, [])
        upload = clients[m].process(orders[m])
        assert upload.body.wire_bytes == orders[m].upload_bytes
        (orders[m],) = server.receive(upload)
        assert isinstance(orders[m].body, Acknowledged)
        assert orders[m].round == round
        assert orders[m].loss == pytest.approx(float(loss.detach()), abs=1e-5)
        assert {use.client for use in cache_uses(orders[m].cache)} == set(range(toy.CLIENTS)) - {m}
    assert [c.sha256() for c in clients] == before
    assert np.abs(server.parameters() - toy.flat_of(central.head)).max() < 2e-5


def test_the_servers_of_the_controls_serve_embeddings_only() -> None:
    wrong = Upload(0, 0, Slopes(np.zeros(1, np.float32)))
    for server in (sgd_parties(DATA, 0.0)[1], frozen_parties()[1]):
        with pytest.raises(TypeError, match="Slopes"):
            server.receive(wrong)
