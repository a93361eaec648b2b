"""DPZV's rounds against a slow re-derivation in float64 from the paper's equations."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from raydpzv.engine.split_model import HeadTraining
from raydpzv.keys import SERVER_PARTY, direction_seed
from raydpzv.methods.schedule import Schedule
from raydpzv.methods.vertical.dpzv import ZerothOrder
from raydpzv.wire.messages import PerturbedEmbeddings, Slopes
from raydpzv.zo.directions import LAWS, Direction, Law
from tests.helpers import vertical_parties as toy

CLIP, SERVER_LR, SERVER_MOMENTUM = 0.05, 0.05, 0.5


def at(module: nn.Module, amount: float, u: np.ndarray, x: torch.Tensor) -> torch.Tensor:
    moved = torch.from_numpy(toy.flat_of(module) + amount * u)
    shapes = {name: p.shape for name, p in module.named_parameters()}
    parts = moved.split([shape.numel() for shape in shapes.values()])
    parameters = {n: p.view(shapes[n]) for n, p in zip(shapes, parts, strict=True)}
    with torch.no_grad():
        return functional_call(module, parameters, (x,))


class Paper:
    """Both sides of DPZV with whole directions, one perturbation and one row at a time."""

    def __init__(self, data: toy.Data, settings: ZerothOrder, training: HeadTraining) -> None:
        self.x, self.y, self.s, self.training = data.x.double(), data.y, settings, training
        self.bottoms = [
            toy.in_double(toy.bottom, toy.bottom_model(m).flat) for m in range(toy.CLIENTS)
        ]
        self.velocities = [np.zeros(toy.flat_of(b).size) for b in self.bottoms]
        self.head = toy.in_double(toy.top, toy.make_head("frozen").model.flat)
        self.optimiser = torch.optim.SGD(self.head.parameters(), SERVER_LR, SERVER_MOMENTUM)
        self.head_velocity, self.head_steps = np.zeros(toy.flat_of(self.head).size), 0
        self.cache = torch.zeros(toy.ROWS, toy.CLIENTS, toy.WIDTH, dtype=torch.float64)
        self.clipped = {"above": 0, "below": 0, "inside": 0}

    def u(self, party: int, step: int, p: int, size: int) -> np.ndarray:
        seed = direction_seed(toy.KEY, party, step, p)
        return Direction(seed, size, self.s.law).values().astype(np.float64)

    def work(self, m: int, step: int, ids: np.ndarray) -> None:
        """Eq. (6): h(w ± λu)."""
        module = self.bottoms[m]
        self.us = [
            self.u(m, step, p, toy.flat_of(module).size) for p in range(self.s.perturbations)
        ]
        x = self.x[m][ids]
        self.plus = [at(module, self.s.smoothing, u, x) for u in self.us]
        self.minus = [at(module, -self.s.smoothing, u, x) for u in self.us]

    def loss(self, i: int, m: int, own: torch.Tensor) -> float:
        with torch.no_grad():
            inputs = self.cache[i].clone()
            inputs[m] = own
            return float(
                functional.cross_entropy(self.head(inputs.reshape(1, -1)), self.y[i : i + 1])
            )

    def serve(self, m: int, ids: np.ndarray) -> float:
        """Eq. (7), (8): the clipped means; then the cache and w_0. Returns the batch's loss."""
        self.scalars = []
        for plus, minus in zip(self.plus, self.minus, strict=True):
            total = 0.0
            for row, i in enumerate(ids.tolist()):
                delta = (self.loss(i, m, plus[row]) - self.loss(i, m, minus[row])) / (
                    2 * self.s.smoothing
                )
                self.clipped[
                    "above" if delta > CLIP else "below" if delta < -CLIP else "inside"
                ] += 1
                total += min(max(delta, -CLIP), CLIP)
            self.scalars.append(total / toy.BATCH)
        halves = [(a + b) / 2 for a, b in zip(self.plus, self.minus, strict=True)]
        self.cache[ids, m] = torch.stack(halves).mean(0)
        return self.train(self.cache[ids].reshape(len(ids), -1), self.y[ids])

    def train(self, inputs: torch.Tensor, labels: torch.Tensor) -> float:
        loss = functional.cross_entropy(self.head(inputs), labels)
        if self.training == "sgd":
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
        if self.training == "zo":
            u = self.u(SERVER_PARTY, self.head_steps, 0, self.head_velocity.size)
            sides = [
                float(
                    functional.cross_entropy(
                        at(self.head, sign * self.s.smoothing, u, inputs), labels
                    )
                )
                for sign in (1, -1)
            ]
            slope = (sides[0] - sides[1]) / (2 * self.s.smoothing)
            self.head_velocity = SERVER_MOMENTUM * self.head_velocity + slope * u
            move(self.head, -SERVER_LR * self.head_velocity)
            self.head_steps += 1
        return float(loss.detach())

    def apply(self, m: int) -> None:
        """Eq. (9), with momentum and the mean over directions."""
        mean = sum(c * u for c, u in zip(self.scalars, self.us, strict=True)) / len(self.us)
        self.velocities[m] = self.s.momentum * self.velocities[m] + mean
        move(self.bottoms[m], -self.s.lr.first * self.velocities[m])


def move(module: nn.Module, by: np.ndarray) -> None:
    nn.utils.vector_to_parameters(torch.from_numpy(toy.flat_of(module) + by), module.parameters())


def close(a: np.ndarray, b: np.ndarray, bound: float) -> bool:
    return a.shape == b.shape and bool(np.abs(a - b).max() < bound)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("perturbations", "momentum", "training"),
    [(1, 0.0, "sgd"), (1, 0.9, "frozen"), (3, 0.0, "zo"), (3, 0.9, "sgd")],
)
def test_rounds_follow_the_equations(
    law: Law, perturbations: int, momentum: float, training: HeadTraining
) -> None:
    """float32 slopes carry a round-off of about 1e-7 / λ = 2e-6."""
    settings = ZerothOrder(0.05, Schedule(0.5), momentum, perturbations, law)
    data = toy.make_data()
    paper = Paper(data, settings, training)
    clients = toy.dpzv_clients(data, settings)
    head = toy.make_head(training, lr=SERVER_LR, momentum=SERVER_MOMENTUM, smoothing=0.05, law=law)
    server = toy.dpzv_server(data, settings, head, clip=CLIP)
    steps = [0] * toy.CLIENTS
    for m in toy.wakes(12):
        upload = clients[m].work()
        body = upload.body
        assert isinstance(body, PerturbedEmbeddings)
        assert (upload.client, upload.step) == (m, steps[m])
        paper.work(m, steps[m], body.ids)
        steps[m] += 1
        assert close(body.plus, torch.stack(paper.plus).numpy(), 2e-5)
        assert close(body.minus, torch.stack(paper.minus).numpy(), 2e-5)
        (order,) = server.receive(upload)
        loss = paper.serve(m, body.ids)
        assert isinstance(order.body, Slopes)
        assert order.body.values.dtype == np.float32
        assert close(order.body.values, np.array(paper.scalars), 5e-5)
        assert order.loss == pytest.approx(loss, abs=1e-5)
        assert close(server.parameters(), toy.flat_of(paper.head), 5e-5)
        clients[m].apply(order)
        paper.apply(m)
        assert close(clients[m].parameters(), toy.flat_of(paper.bottoms[m]), 5e-5)
    assert min(paper.clipped.values()) > 0, "the clip must have been seen at work on both sides"
    # far beyond the bounds above (signs have no large elements: they move each parameter by less
    # than normals)
    moved = 2e-3 if law == "rademacher" else 1e-2
    assert all(
        not close(c.parameters(), toy.bottom_model(c.client).flat.numpy(), moved) for c in clients
    )
    moved = not np.array_equal(server.parameters(), toy.make_head("frozen").model.flat.numpy())
    assert moved == (training != "frozen")
