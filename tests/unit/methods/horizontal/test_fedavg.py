import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from raydpzv.errors import Diverged, RunError
from raydpzv.methods.horizontal.compression import Codec, TopK, Whole
from raydpzv.methods.horizontal.fedavg import FedavgConfig, FedAvgServer, LocalTrainers
from raydpzv.methods.roles import Order, Upload
from raydpzv.wire.messages import Start
from raydpzv.wire.weights import Update, Weights
from tests.helpers import weight_parties as toy
from tests.helpers.weight_parties import X as X_ALL

D = toy.initial().numel()
EACH = pytest.mark.parametrize("codec", toy.CODECS, ids=repr)


def client_group(
    *, clients: int = toy.CLIENTS, codec: Codec | None = None, threads: int = 1, **settings: Any
) -> LocalTrainers:
    sgd = FedavgConfig(**{"lr": 0.3, "local_steps": 3, "momentum": 0.5, "batch": 8, **settings})
    return LocalTrainers(
        [toy.objective() for _ in range(threads)],
        toy.parts(clients),
        codec or Whole(),
        sgd,
        toy.KEY,
    )


def test_one_client_with_one_step_on_all_rows_is_central_sgd() -> None:
    x, _ = toy.run(
        toy.server(clients=1),
        client_group(clients=1, local_steps=1, momentum=0.0, batch=toy.ROWS),
        25,
    )
    module = toy.two_layers().double()
    torch.nn.utils.vector_to_parameters(toy.initial().double(), module.parameters())
    optimiser = torch.optim.SGD(module.parameters(), 0.3)
    for _ in range(25):
        optimiser.zero_grad()
        functional.cross_entropy(module(X_ALL.double()), toy.Y).backward()
        optimiser.step()
    central = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    assert np.abs(x - central).max() < 2e-6
    assert np.abs(toy.initial().numpy() - central).max() > 0.1


@pytest.mark.parametrize("by_rows", [False, True])
def test_rounds_of_local_steps_equal_their_slow_rederivation(by_rows: bool) -> None:
    """K = 3 with momentum, 3 of 5 clients, server's step size 0.7, in float64."""
    own = toy.parts()
    weights = own.sizes if by_rows else None
    x_fast, uploads = toy.run(toy.server(cohort=3, lr=0.7, weights=weights), client_group(), 4)
    x = toy.initial().numpy().astype(np.float64)
    for round in range(1, 5):
        cohort = [u.client for u in uploads[3 * round - 3 : 3 * round]]
        assert cohort == sorted(set(cohort))
        updates = []
        for client in cohort:
            local, velocity = x.copy(), np.zeros_like(x)
            for k in range(3):
                _, gradient = toy.double_loss_and_gradient(
                    toy.two_layers, local, toy.batch_of(own, client, round, k, 8)
                )
                velocity = 0.5 * velocity + gradient
                local -= 0.3 * velocity
            updates.append(local - x)
        x = x + 0.7 * np.average(updates, 0, own.sizes[cohort] if by_rows else None)
    assert np.abs(x_fast - x).max() < 5e-6
    assert np.abs(x_fast - toy.initial().numpy()).max() > 0.1


def test_weighting_by_rows_matters() -> None:
    own = toy.parts()
    assert len(set(own.sizes.tolist())) > 1
    plain, _ = toy.run(toy.server(), client_group(), 1)
    by_rows, _ = toy.run(toy.server(weights=own.sizes), client_group(), 1)
    assert np.abs(plain - by_rows).max() > 1e-3


def test_the_loss_for_the_record_is_the_one_before_the_first_step() -> None:
    _, uploads = toy.run(toy.server(), client_group(), 1)
    for upload in uploads:
        rows = toy.batch_of(toy.parts(), upload.client, 1, 0, 8)
        loss, _ = toy.double_loss_and_gradient(toy.two_layers, toy.initial().numpy(), rows)
        assert upload.loss == pytest.approx(loss, abs=1e-6)


@EACH
def test_neither_threads_nor_executors_nor_order_move_a_bit(codec: Codec) -> None:
    orders = toy.server(codec=codec).first_orders()
    alone = {u.client: u for u in client_group(codec=codec).process(orders)}
    others = [
        client_group(codec=codec, threads=3).process(orders),
        client_group(codec=codec, threads=2).process(orders[::-1]),
        [client_group(codec=codec).process([order])[0] for order in orders],
    ]
    for uploads, clients in zip(others, (range(5), range(4, -1, -1), range(5)), strict=True):
        assert [u.client for u in uploads] == list(clients)
        for upload in uploads:
            assert upload.body.encode() == alone[upload.client].body.encode()
            assert upload.loss == alone[upload.client].loss
    assert len({u.body.encode() for u in alone.values()}) == toy.CLIENTS


def test_a_client_group_keeps_nothing_between_rounds() -> None:
    used, orders = client_group(), toy.server().first_orders()
    first = [u.body.encode() for u in used.process(orders)]
    assert [u.body.encode() for u in used.process(orders)] == first
    sampling = [i for i, size in enumerate(toy.parts().sizes) if size > 8]
    assert len(sampling) > 1
    later = used.process([Order(i, orders[i].body, 2) for i in sampling])
    assert {u.step for u in later} == {1}  # a stateless client counts the updates before
    assert all(a.body.encode() != first[a.client] for a in later)


@pytest.mark.parametrize("arrival", list(itertools.permutations(range(3))))
def test_updates_are_summed_in_client_order_whoever_arrives_first(arrival: tuple[int, ...]) -> None:
    """1e20 + 1 - 1e20 is 0 and 1e20 - 1e20 + 1 is 1: the sum tells its order."""
    party = toy.server(clients=3)
    before = party.parameters()
    party.first_orders()
    values = [1e20, 1.0, -1e20]
    for client in arrival:
        party.receive(Upload(client, 1, Update(np.full(D, values[client], np.float32))))
    assert party.updates == 1
    assert party.parameters().tobytes() == before.tobytes()


@EACH
def test_the_server_steps_by_the_mean_of_what_it_decodes(codec: Codec) -> None:
    party = toy.server(codec=codec, lr=0.5)
    before = party.parameters()
    uploads = client_group(codec=codec).process(party.first_orders())
    for upload in uploads:
        party.receive(upload)
    decoded = [codec.decode(u.body, D).astype(np.float64) for u in uploads]
    assert np.array_equal(
        party.parameters(), (before + 0.5 * (sum(decoded) / toy.CLIENTS)).astype(np.float32)
    )


def test_the_orders_of_a_round_share_one_body_that_nobody_can_change() -> None:
    party = toy.server()
    orders = party.first_orders()
    body = orders[0].body
    assert isinstance(body, Weights)
    assert all(o.body is body and o.start_immediately and o.round == 1 for o in orders)
    with pytest.raises(ValueError, match="read-only"):
        body.values[0] = 1
    sent = body.values.tobytes()
    for upload in client_group().process(orders):
        orders = party.receive(upload)
    assert body.values.tobytes() == sent  # neither training nor the server's step touched it
    later = orders[0].body
    assert isinstance(later, Weights)
    assert later.values.tobytes() == party.parameters().tobytes() != sent
    assert [o.round for o in orders] == [2] * toy.CLIENTS


def test_parameters_are_a_copy_also_of_what_was_given() -> None:
    given = toy.initial().numpy()
    party = FedAvgServer(toy.server()._cohorts, given, Whole())
    party.parameters()[:] = 0
    given[:] = 0
    assert party.parameters().tobytes() == toy.initial().numpy().tobytes()


@EACH
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_finite_names_client_and_round(codec: Codec, value: float) -> None:
    party = toy.server(codec=codec)
    uploads = client_group(codec=codec).process(party.first_orders())
    broken = np.zeros(D, np.float32)
    broken[7] = value
    for upload in uploads:
        is_third = upload.client == 3
        body = codec.encode(broken, 3, 1) if is_third else upload.body
        if upload is uploads[-1]:
            with pytest.raises(Diverged, match="client 3's of round 1 is not"):
                party.receive(upload)
        else:
            party.receive(Upload(upload.client, upload.step, body))


def test_finite_updates_that_take_the_model_to_infinity_are_refused() -> None:
    party = toy.server(clients=1, lr=10)
    party.first_orders()
    with pytest.raises(Diverged, match="round 1 made it infinite"):
        party.receive(Upload(0, 1, Update(np.full(D, 3e38, np.float32))))


def test_training_that_diverges_is_noticed_at_the_server() -> None:
    with pytest.raises(Diverged, match="client 0's of round"):
        toy.run(toy.server(), client_group(lr=1e30), 3)


def test_foreign_messages_are_refused() -> None:
    with pytest.raises(TypeError, match="Start"):
        client_group().process([Order(0, Start())])
    party = toy.server(clients=1)
    party.first_orders()
    with pytest.raises(TypeError, match="SparseUpdate"):
        party.receive(Upload(0, 1, TopK(0.1).encode(np.ones(D, np.float32), 0, 1)))
    with pytest.raises(RunError, match="client 1 answered"):
        party.receive(Upload(1, 1, Update(np.zeros(D, np.float32))))


@EACH
def test_it_learns_and_a_tiny_step_does_not(codec: Codec) -> None:
    def accuracy(lr: float) -> float:
        x, _ = toy.run(toy.server(cohort=3, codec=codec), client_group(codec=codec, lr=lr), 30)
        return toy.objective().evaluate(torch.from_numpy(x), X_ALL, toy.Y).accuracy

    start = toy.objective().evaluate(toy.initial(), X_ALL, toy.Y).accuracy
    assert start < 0.6
    assert accuracy(0.1) > 0.9
    assert accuracy(1e-6) == pytest.approx(start, abs=0.1)
