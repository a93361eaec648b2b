"""VAFL's updates against autograd on the composed model, its protocols, its bytes."""

import numpy as np
import pytest
import torch

from raydpzv.errors import Diverged
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.vertical.vafl import (
    FirstOrder,
    OtherRows,
    QueriedClient,
    QueryFirstClient,
    QueryFirstServer,
    Synchrony,
)
from raydpzv.wire.messages import (
    Embeddings,
    EmbeddingsAndMore,
    FreshEmbeddings,
    Gradient,
    GradientRequest,
    Query,
    SaveState,
    Slopes,
    Start,
)
from tests.helpers import vertical_parties as toy
from tests.helpers.ages import cache_uses
from tests.helpers.baseline_parties import vafl_clients, vafl_server
from tests.helpers.central_model import Central

DATA = toy.make_data()
SETTINGS = FirstOrder(lr=0.5, momentum=0.9, l2=0.05)


def central_model() -> Central:
    return Central(DATA, SETTINGS)


@pytest.mark.parametrize("decay", [None, 7])
def test_asynchronous_updates_are_sgd_on_the_composed_model_with_stale_embeddings(
    decay: int | None,
) -> None:
    """Each step of torch's sees the others' cached embeddings, which have no gradient."""
    clients, server = (
        vafl_clients(DATA, SETTINGS, lr_decay=decay),
        vafl_server(DATA, lr_decay=decay),
    )
    central = central_model()
    cache = torch.zeros(toy.ROWS, toy.CLIENTS, toy.WIDTH, dtype=torch.float64)
    orders, steps = {o.client: o for o in server.first_orders()}, [0] * toy.CLIENTS
    for round, m in enumerate(toy.wakes(30), 1):
        ids = toy.batches(m).draw(steps[m])
        steps[m] += 1
        mine = central.embed(m, ids)
        parts = [mine if k == m else cache[ids, k] for k in range(toy.CLIENTS)]
        loss = central.loss(parts, ids)
        cache[ids, m] = mine.detach()
        upload = clients[m].process(orders[m])
        assert upload.body.wire_bytes == orders[m].upload_bytes == toy.BATCH * (4 + 4 * toy.WIDTH)
        (orders[m],) = server.receive(upload)
        assert (orders[m].client, orders[m].round) == (m, round)
        assert orders[m].body.wire_bytes == toy.BATCH * 4 * toy.WIDTH
        assert orders[m].loss == pytest.approx(float(loss.detach()), abs=1e-5)
        if decay:
            for optimiser, size in (
                (central.of_head, 0.2),
                *((o, 0.5) for o in central.of_bottoms),
            ):
                optimiser.param_groups[0]["lr"] = size * decay / (decay + round - 1)
        central.step(loss, [m])
    for order in orders.values():
        clients[order.client].apply(order)
    central.compare(clients, server)


def test_a_restored_client_applies_the_answer_to_the_upload_it_made_before() -> None:
    clients, server = vafl_clients(DATA, SETTINGS), vafl_server(DATA)
    orders = {o.client: o for o in server.first_orders()}
    for m in toy.wakes(20):
        upload = clients[m].process(orders[m])
        saved = clients[m].process(Order(m, SaveState())).body
        restored = vafl_clients(DATA, SETTINGS)[m]
        restored.process(Order(m, saved))
        (orders[m],) = server.receive(upload)
        for client in (clients[m], restored):
            client.apply(orders[m])
        assert restored.sha256() == clients[m].sha256()
        orders[m] = Order(m, Start())


def test_a_client_that_asks_first_learns_by_the_head_and_the_cache_of_its_next_activation() -> None:
    """Steps 6, 7, 4, 5: torch's gradient of the last batch is taken when the client wakes again."""
    clients = vafl_clients(DATA, SETTINGS, role=QueryFirstClient)
    server, central = vafl_server(DATA, role=QueryFirstServer), central_model()
    cache = torch.zeros(toy.ROWS, toy.CLIENTS, toy.WIDTH, dtype=torch.float64)
    orders, last = {o.client: o for o in server.first_orders()}, dict[int, np.ndarray]()
    steps = [0] * toy.CLIENTS
    for round, m in enumerate(toy.wakes(30), 1):
        if m in last:
            ids = last[m]
            parts = [central.embed(m, ids) if k == m else cache[ids, k] for k in range(toy.CLIENTS)]
            central.of_bottoms[m].zero_grad()
            central.loss(parts, ids).backward()
            central.of_bottoms[m].step()
            request = clients[m].process(orders[m])
            assert isinstance(request.body, GradientRequest)
            assert request.is_query
            assert orders[m].asks
            assert request.body.wire_bytes == orders[m].upload_bytes == 8
            head = server.sha256()
            (orders[m],) = server.receive(request)
            assert (orders[m].round, server.sha256()) == (round - 1, head)
            assert orders[m].body.wire_bytes == toy.BATCH * 4 * toy.WIDTH
        ids = toy.batches(m).draw(steps[m])
        steps[m], last[m] = steps[m] + 1, ids
        cache[ids, m] = central.embed(m, ids).detach()
        loss = central.loss([cache[ids, k] for k in range(toy.CLIENTS)], ids)
        central.of_head.zero_grad()
        loss.backward()
        central.of_head.step()
        upload = clients[m].process(orders[m])
        assert np.array_equal(upload.ids, ids)
        assert upload.body.wire_bytes == orders[m].upload_bytes == toy.BATCH * (4 + 4 * toy.WIDTH)
        (orders[m],) = server.receive(upload)
        assert (orders[m].round, orders[m].body.wire_bytes) == (round, 0)
        assert orders[m].loss == pytest.approx(float(loss.detach()), abs=1e-5)
    central.compare(clients, server)
    # the control: taken at the upload, as in the paper's order, the same gradients lead elsewhere
    at_once, other = vafl_clients(DATA, SETTINGS), vafl_server(DATA)
    answers = {o.client: o for o in other.first_orders()}
    for m in toy.wakes(30):
        (answers[m],) = other.receive(at_once[m].process(answers[m]))
    assert np.abs(other.parameters() - server.parameters()).max() > 1e-2


def test_synchronous_is_block_sgd_on_one_batch() -> None:
    clients = vafl_clients(DATA, SETTINGS, shared=True)
    server, central = vafl_server(DATA, Synchrony(toy.CLIENTS, same_rows=True)), central_model()
    orders = server.first_orders()
    for step in range(20):
        ids = toy.batches("server").draw(step)
        loss = central.loss([central.embed(m, ids) for m in range(toy.CLIENTS)], ids)
        uploads = [clients[o.client].process(o) for o in orders]
        *early, last = uploads[step % toy.CLIENTS :] + uploads[: step % toy.CLIENTS]
        assert [list(server.receive(u)) for u in early] == [[]] * (toy.CLIENTS - 1)
        orders = server.receive(last)
        assert sorted(o.client for o in orders) == list(range(toy.CLIENTS))
        assert not any(o.start_immediately for o in orders)
        assert orders[0].loss == pytest.approx(float(loss.detach()), abs=1e-5)
        central.step(loss, list(range(toy.CLIENTS)))
    for order in orders:
        clients[order.client].apply(order)
    central.compare(clients, server)


def test_t_synchronous_steps_once_for_t_uploads_and_answers_all_of_them() -> None:
    """The head's gradient is the mean of the t uploads', each client's that of its own rows' mean
    loss.
    """
    clients, server, central = (
        vafl_clients(DATA, SETTINGS),
        vafl_server(DATA, Synchrony(2)),
        central_model(),
    )
    orders = {o.client: o for o in server.first_orders()}
    for step in range(6):
        pair = [step % toy.CLIENTS, (step + 1) % toy.CLIENTS]
        uploads = [clients[m].process(orders[m]) for m in pair]
        assert list(server.receive(uploads[0])) == []
        answers = server.receive(uploads[1])
        assert [o.client for o in answers] == pair
        orders |= {o.client: o for o in answers}
        cache = server.top.table._values_DME.double()
        live = [central.embed(m, u.ids) for m, u in zip(pair, uploads, strict=True)]
        embedded = []
        for m, u, own in zip(pair, uploads, live, strict=True):
            parts = [own if k == m else cache[u.ids, k] for k in range(toy.CLIENTS)]
            embedded.append(central.loss(parts, u.ids))
        for optimiser in (central.of_head, *central.of_bottoms):
            optimiser.zero_grad()
        sum(embedded).backward()
        for p in central.head.parameters():
            p.grad /= 2
        central.of_head.step()
        for m in pair:
            central.of_bottoms[m].step()
    for order in orders.values():
        clients[order.client].apply(order)
    central.compare(clients, server)


def test_rows_beside_the_batch_are_cached_and_learned_from_by_nobody() -> None:
    (plain, *_), (client, *_) = vafl_clients(DATA, SETTINGS), vafl_clients(DATA, SETTINGS)
    client._others = OtherRows(9, toy.ROWS, toy.KEY / "other rows")
    server, alone = vafl_server(DATA), vafl_server(DATA)
    for round in range(1, 4):
        upload, same = client.work(), plain.work()
        body = upload.body
        assert isinstance(body, EmbeddingsAndMore)
        assert np.array_equal(upload.ids, same.ids)
        assert len(set(body.more_ids) - set(upload.ids)) == len(body.more_ids) == 9
        assert body.wire_bytes == same.body.wire_bytes + 9 * (4 + 4 * toy.WIDTH)
        module = client.bottom.model.module
        assert np.array_equal(body.more_values, module(DATA.x[0][body.more_ids]).detach().numpy())
        (answer,), (expected,) = server.receive(upload), alone.receive(same)
        table = server.top.table
        assert (table._refreshed_DM[body.more_ids, 0] == round).all()
        assert (answer.loss, server.sha256()) == (expected.loss, alone.sha256())
        client.apply(answer), plain.apply(expected)
        assert client.sha256() == plain.sha256()


def test_what_is_older_than_the_bound_is_queried_before_the_step() -> None:
    clients = vafl_clients(DATA, SETTINGS, role=QueriedClient)
    server = vafl_server(DATA, Synchrony(max_delay=2))
    orders = {o.client: o for o in server.first_orders()}
    asked = 0
    for round, m in enumerate(toy.wakes(40), 1):
        upload = clients[m].process(orders[m])
        answers = list(server.receive(upload))
        waiting = [o for o in answers if o.is_query]
        for query in waiting:
            assert isinstance(query.body, Query)
            refreshed = server.top.table._refreshed_DM[query.body.ids, query.client]
            assert ((refreshed == 0) | (round - refreshed > 2)).all()
            before = clients[query.client].sha256()
            fresh = clients[query.client].process(query)
            assert fresh.is_query
            assert fresh.body.wire_bytes == query.upload_bytes
            assert np.array_equal(fresh.ids, query.body.ids)
            assert clients[query.client].sha256() == before
            answers += server.receive(fresh)
            asked += 1
        assert server.updates == round
        (answer,) = [o for o in answers if not o.is_query]
        assert (answer.client, answer.round) == (m, round)
        ages = round - server.top.table._refreshed_DM[upload.ids]
        assert (server.top.table._refreshed_DM[upload.ids] > 0).all()
        assert ages.max() <= 2
        assert max(use.age_max for use in cache_uses(answer.cache)) <= 2
        orders[m] = answer
    assert asked > 20


def test_uploads_that_come_while_a_query_is_open_wait_their_turn() -> None:
    clients = vafl_clients(DATA, SETTINGS, role=QueriedClient)
    server = vafl_server(DATA, Synchrony(max_delay=1000))
    first, second, third = (clients[m].work() for m in range(3))
    queries = server.receive(first)
    assert {o.client for o in queries} == {1, 2}
    assert list(server.receive(second)) == []
    assert list(server.receive(third)) == []
    assert list(server.receive(clients[queries[0].client].process(queries[0]))) == []
    later = server.receive(clients[queries[1].client].process(queries[1]))
    assert (later[0].client, later[0].round) == (0, 1)
    assert all(o.is_query for o in later[1:])
    assert server.updates == 3


def test_a_query_is_answered_with_the_model_as_it_is_and_keeps_the_running_round_trip() -> None:
    client, server = vafl_clients(DATA, SETTINGS, role=QueriedClient)[0], vafl_server(DATA)
    upload = client.work()
    ids = np.arange(6, dtype=np.int32)
    fresh = client.process(Order(0, Query(ids), is_query=True))
    assert isinstance(fresh.body, FreshEmbeddings)
    expected = toy.bottom_model(0).module(DATA.x[0][:6]).detach().numpy()
    assert np.array_equal(fresh.body.values, expected)
    (order,) = server.receive(upload)
    before = client.parameters()
    client.apply(order)
    assert not np.array_equal(client.parameters(), before)
    assert client.work().step == 1


def test_an_empty_poisson_batch_moves_nothing() -> None:
    client, server = vafl_clients(DATA, FirstOrder(0.5))[0], vafl_server(DATA, fixed_batches=False)
    client._batches = type(
        "None_", (), {"draw": staticmethod(lambda step: np.zeros(0, np.int32))}
    )()
    before = (client.parameters(), server.parameters())
    (order,) = server.receive(client.work())
    client.apply(order)
    assert isinstance(order.body, Gradient)
    assert order.body.values.shape == (0, toy.WIDTH)
    assert np.isnan(order.loss)
    assert np.array_equal(client.parameters(), before[0])
    assert np.array_equal(server.parameters(), before[1])


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(TypeError, match="Slopes"):
        vafl_server(DATA).receive(Upload(0, 0, Slopes(np.zeros(1, np.float32))))
    wild = Embeddings(
        np.arange(toy.BATCH, dtype=np.int32), np.full((toy.BATCH, toy.WIDTH), np.nan, np.float32)
    )
    with pytest.raises(Diverged, match="client 0, step 0"):
        vafl_server(DATA).receive(Upload(0, 0, wild))
