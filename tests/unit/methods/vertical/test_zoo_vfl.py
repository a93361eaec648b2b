"""ZOO-VFL's estimate against derivatives, with controls; its bytes."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from raydpzv.errors import Diverged
from raydpzv.keys import direction_seed
from raydpzv.methods.roles import Upload
from raydpzv.methods.schedule import Schedule
from raydpzv.methods.vertical.dpzv import ZerothOrder
from raydpzv.methods.vertical.row_release import RowPrivacy
from raydpzv.methods.vertical.zoo_vfl import ZooVflClient, ZooVflServer
from raydpzv.privacy.mechanisms import SeededNoise
from raydpzv.wire.messages import EmbeddingPair, Slopes
from raydpzv.zo.directions import Direction
from raydpzv.zo.update import Rule
from tests.helpers import vertical_parties as toy

DATA = toy.make_data()


ZOO = ZerothOrder(3e-4, Schedule(0.5), law="gaussian")


def zoo_parties(settings: ZerothOrder, privacy: RowPrivacy | None = None):
    rule, clip = Rule(settings.law, settings.momentum), privacy.clip if privacy else None
    clients = [
        ZooVflClient(
            m,
            toy.make_bottom(DATA, m, rule=rule, clip=clip),
            toy.batches(m),
            settings,
            toy.KEY,
            privacy,
        )
        for m in range(toy.CLIENTS)
    ]
    return clients, ZooVflServer(toy.make_top(DATA, toy.make_head("sgd")), toy.SIZES)


def test_zoo_vfls_estimate_is_the_directional_derivative() -> None:
    """(ℓ(w + λu) - ℓ(w)) / λ against autograd's u · ∇ℓ(w) in float64, with the others' cached
    embeddings.
    """
    clients, server = zoo_parties(ZOO)
    orders = {o.client: o for o in server.first_orders()}
    seen = []
    for m in toy.wakes(15):
        upload = clients[m].process(orders[m])
        head = toy.in_double(toy.top, torch.from_numpy(server.parameters()))
        model = toy.in_double(toy.bottom, torch.from_numpy(clients[m].parameters()))
        cache = server.top.table.get(upload.ids).double()
        parts = [
            model(DATA.x[m][upload.ids].double()) if k == m else cache[:, k]
            for k in range(toy.CLIENTS)
        ]
        loss = functional.cross_entropy(head(torch.cat(parts, 1)), DATA.y[upload.ids])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        flat = torch.cat([g.reshape(-1) for g in gradients]).numpy()
        u = Direction(direction_seed(toy.KEY, m, upload.step), len(flat), "gaussian").values()
        (orders[m],) = server.receive(upload)
        scalar = float(orders[m].body.value[0]) / 3e-4
        seen.append((scalar, float(flat @ u)))
        before = clients[m].parameters()
        clients[m].apply(orders[m])
        assert clients[m].parameters() == pytest.approx(before - 0.5 * scalar * u, abs=2e-6)
        orders[m] = server.first_orders()[m]  # what was applied is not applied again
        assert upload.body.wire_bytes == orders[m].upload_bytes == toy.BATCH * (4 + 8 * toy.WIDTH)
    found, true = np.array(seen).T
    # a step across a ReLU's kink is the one place where they may differ by more than rounding
    assert np.median(np.abs(found - true)) < 1e-3
    assert np.abs(found - true).max() < 0.01
    assert np.median(np.abs(found - 1.5 * true)) > 1e-3, (
        "control: an estimate of 1.5 times the derivative"
    )


def test_zoo_vfl_makes_two_releases_per_upload_of_one_noise_each() -> None:
    noise = SeededNoise(toy.KEY)
    clients, server = zoo_parties(ZOO, RowPrivacy(0.3, 1.0, noise))
    upload = clients[0].work()
    assert isinstance(upload.body, EmbeddingPair)
    assert [r.perturbation for r in upload.releases] == [0, 1]
    assert all(r.receipt.sensitivity_replace == 0.6 for r in upload.releases)
    here = upload.body.values - noise.normal(toy.BATCH * toy.WIDTH, (0, 0, 0)).reshape(
        toy.BATCH, toy.WIDTH
    )
    ahead = upload.body.ahead - noise.normal(toy.BATCH * toy.WIDTH, (0, 0, 1)).reshape(
        toy.BATCH, toy.WIDTH
    )
    assert np.linalg.norm(here, axis=1).max() <= 0.3 + 1e-6
    assert ahead == pytest.approx(here, abs=0.02)
    (order,) = server.receive(upload)
    assert order.body.wire_bytes == 4
    assert order.releases == ()


def test_what_cannot_be_served_is_refused() -> None:
    _, server = zoo_parties(ZOO)
    with pytest.raises(TypeError, match="Slopes"):
        server.receive(Upload(0, 0, Slopes(np.zeros(1, np.float32))))
    bad = np.full((toy.BATCH, toy.WIDTH), np.inf, np.float32)
    with pytest.raises(Diverged, match="client 0, step 0"):
        server.receive(Upload(0, 0, EmbeddingPair(np.arange(toy.BATCH, dtype=np.int32), bad, bad)))
