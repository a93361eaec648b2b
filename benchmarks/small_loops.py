"""Vertical methods as loops written for the purpose: torch as one would write it, and numpy with
gradients by hand.

Nothing is recorded, kept or accounted for, and no message is made: the least work that trains the
same models. Every step serves one client's batch with the others' newest embeddings.
"""

# M clients, D rows, B batch, E embedding width, K classes

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from raydpzv.experiment.initial_model import bottom_module
from raydpzv.experiment.vertical import PreparedVertical


class Parties:
    """What both loops share: the scenario's numbers, rows shuffled by epoch, and clients in
    turn.
    """

    def __init__(self, experiment: PreparedVertical) -> None:
        spec = experiment.spec
        self.method, self.model = spec.method, spec.model
        self.x = [client.x_train.reshape(len(client.x_train), -1) for client in experiment.clients]
        self.y, self.classes = experiment.server.y_train, experiment.server.classes
        self.clients, self.batch = len(self.x), spec.method.batch
        self.noise = experiment.privacy.noise()
        self.random = np.random.Generator(np.random.Philox(1))
        self.orders = [np.zeros(0, np.int64)] * self.clients

    def rows(self, client: int) -> np.ndarray:
        """Return the client's next batch."""
        if len(self.orders[client]) < self.batch:
            self.orders[client] = self.random.permutation(len(self.y))
        ids, self.orders[client] = (
            self.orders[client][: self.batch],
            self.orders[client][self.batch :],
        )
        return ids

    def updates(self) -> Iterator[None]:
        """Make one update after the other, clients in turn."""
        step = getattr(self, f"step_{self.method.name}")
        while True:
            for client in range(self.clients):
                step(client, self.rows(client))
                yield


class TorchParties(Parties):
    """Modules, autograd and torch.optim."""

    def __init__(self, experiment: PreparedVertical) -> None:
        super().__init__(experiment)
        width, how = self.model.embedding, self.method
        device = experiment.local_device
        self.tensors = [torch.tensor(client.x_train).to(device) for client in experiment.clients]
        self.labels = torch.tensor(self.y).to(device)
        self.bottoms = [
            bottom_module(experiment.spec, m, x.shape[1:]).eval().to(device)
            for m, x in enumerate(self.tensors)
        ]
        self.head = experiment.server.head().to(device)
        self.table = torch.zeros(len(self.y), self.clients, width, device=device)
        momentum = getattr(how, "momentum", 0.0)
        self.of_head = torch.optim.SGD(self.head.parameters(), how.server_lr, how.server_momentum)
        self.of_bottoms = [
            torch.optim.SGD(b.parameters(), getattr(how, "lr", 0.1), momentum) for b in self.bottoms
        ]
        self.velocity = [
            torch.zeros_like(parameters_to_vector(b.parameters())) for b in self.bottoms
        ]

    def losses(self, ids: np.ndarray, client: int, values: torch.Tensor) -> torch.Tensor:
        """Return every row's loss with these embeddings of one client, [B]."""
        inputs = self.table[ids]
        inputs[:, client] = values
        return functional.cross_entropy(
            self.head(inputs.flatten(1)), self.labels[ids], reduction="none"
        )

    def train_head(self, ids: np.ndarray) -> None:
        """Take the head's step on the table's rows."""
        self.of_head.zero_grad()
        functional.cross_entropy(self.head(self.table[ids].flatten(1)), self.labels[ids]).backward()
        self.of_head.step()

    def direction(self, client: int) -> torch.Tensor:
        """Return a direction on the sphere of radius √d."""
        z = torch.randn_like(self.velocity[client])
        return z * (math.sqrt(len(z)) / z.norm())

    def embed_at(self, client: int, x: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        """Return embeddings at these parameters, which stay."""
        vector_to_parameters(flat, self.bottoms[client].parameters())
        return self.bottoms[client](x)

    def descend(self, client: int, flat: torch.Tensor, along: torch.Tensor) -> None:
        """Take a zeroth-order step."""
        self.velocity[client].mul_(self.method.momentum).add_(along)
        vector_to_parameters(
            flat - self.method.lr * self.velocity[client], self.bottoms[client].parameters()
        )

    @torch.no_grad()
    def step_dpzv(self, client: int, ids: np.ndarray) -> None:
        """One update of DPZV."""
        x, radius = self.tensors[client][ids], self.method.smoothing
        flat, u = parameters_to_vector(self.bottoms[client].parameters()), self.direction(client)
        plus = self.embed_at(client, x, flat + radius * u)
        minus = self.embed_at(client, x, flat - radius * u)
        slopes = (self.losses(ids, client, plus) - self.losses(ids, client, minus)) / (2 * radius)
        limit = self.noise.clip or math.inf
        scalar = float(slopes.clamp(-limit, limit).mean()) + self.noise.sigma * float(
            torch.randn(())
        )
        self.table[ids, client] = (plus + minus) / 2
        with torch.enable_grad():
            self.train_head(ids)
        self.descend(client, flat, scalar * u)

    @torch.no_grad()
    def step_zoo_vfl(self, client: int, ids: np.ndarray) -> None:
        """One update of ZOO-VFL."""
        x, radius = self.tensors[client][ids], self.method.smoothing
        flat, u = parameters_to_vector(self.bottoms[client].parameters()), self.direction(client)
        here = self.bottoms[client](x)
        ahead = self.embed_at(client, x, flat + radius * u)
        scalar = (
            float((self.losses(ids, client, ahead) - self.losses(ids, client, here)).mean())
            / radius
        )
        self.table[ids, client] = here
        with torch.enable_grad():
            self.train_head(ids)
        self.descend(client, flat, scalar * u)

    def step_vafl(self, client: int, ids: np.ndarray) -> None:
        """One update of VAFL."""
        embedded = self.bottoms[client](self.tensors[client][ids])
        self.table[ids, client] = embedded.detach()
        inputs = self.table[ids].requires_grad_()
        self.of_head.zero_grad()
        functional.cross_entropy(self.head(inputs.flatten(1)), self.labels[ids]).backward()
        self.of_head.step()
        assert inputs.grad is not None
        self.step_bottom(client, embedded, inputs.grad[:, client])

    def step_bottom(self, client: int, embedded: torch.Tensor, gradient: torch.Tensor) -> None:
        """Backpropagate a gradient of the embeddings."""
        self.of_bottoms[client].zero_grad()
        embedded.backward(gradient)
        self.of_bottoms[client].step()

    def step_czofo(self, client: int, ids: np.ndarray) -> None:
        """One update of VFL-CZOFO by rows."""
        embedded = self.bottoms[client](self.tensors[client][ids])
        values, count, radius = embedded.detach(), self.method.perturbations, self.method.smoothing
        self.table[ids, client] = values
        with torch.no_grad():
            base, gradient = self.losses(ids, client, values), torch.zeros_like(values)
            for _ in range(count):
                v = functional.normalize(torch.randn_like(values), dim=1)
                gradient += (self.losses(ids, client, values + radius * v) - base)[:, None] * v
        self.train_head(ids)
        self.step_bottom(
            client, embedded, gradient * (values.shape[1] / (radius * count * len(ids)))
        )

    def step_frozen(self, client: int, ids: np.ndarray) -> None:
        """One update of the frozen control."""
        with torch.no_grad():
            self.table[ids, client] = self.bottoms[client](self.tensors[client][ids])
        self.train_head(ids)


class TwoLayers:
    """Linear, ReLU, linear in numpy, its parameters one vector; what is as large as a batch or a
    model is reused.

    moved, u: room for perturbed parameters and a direction.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, random: np.random.Generator) -> None:
        self.shapes = ((hidden, inputs), (hidden,), (outputs, hidden), (outputs,))
        bounds = (inputs, inputs, hidden, hidden)
        drawn = [
            random.uniform(-1, 1, s) / math.sqrt(n)
            for s, n in zip(self.shapes, bounds, strict=True)
        ]
        self.flat = np.concatenate([d.ravel() for d in drawn]).astype(np.float32)
        self.velocity = np.zeros_like(self.flat)
        self.moved, self.u, self.gradient, self.spare = (np.empty_like(self.flat) for _ in range(4))
        self.own, self.of_moved, self.of_gradient = (
            self.parts(v) for v in (self.flat, self.moved, self.gradient)
        )
        self.hidden = self.inner = np.empty((0, hidden), np.float32)

    def parts(self, flat: np.ndarray) -> list[np.ndarray]:
        """Return the vector's weights and biases as views."""
        ends = np.cumsum([math.prod(s) for s in self.shapes])
        return [
            part.reshape(s) for part, s in zip(np.split(flat, ends[:-1]), self.shapes, strict=True)
        ]

    def forward(self, x: np.ndarray, *, moved: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return hidden units [B, H], until the next call, and outputs."""
        w1, b1, w2, b2 = self.of_moved if moved else self.own
        if len(self.hidden) != len(x):
            self.hidden, self.inner = (np.empty((len(x), len(b1)), np.float32) for _ in range(2))
        np.matmul(x, w1.T, out=self.hidden)
        self.hidden += b1
        np.maximum(self.hidden, 0, out=self.hidden)
        out = self.hidden @ w2.T
        out += b2
        return self.hidden, out

    def forward_along(self, x: np.ndarray, amount: np.float32) -> np.ndarray:
        """Return outputs at flat + amount · u."""
        np.multiply(self.u, amount, out=self.moved)
        self.moved += self.flat
        return self.forward(x, moved=True)[1]

    def backward(
        self, x: np.ndarray, hidden: np.ndarray, delta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient of the parameters, until the next call, and of the inputs."""
        w1, _, w2, _ = self.own
        of_w1, of_b1, of_w2, of_b2 = self.of_gradient
        np.matmul(delta, w2, out=self.inner)
        self.inner *= hidden > 0
        np.matmul(self.inner.T, x, out=of_w1)
        np.matmul(delta.T, hidden, out=of_w2)
        self.inner.sum(0, out=of_b1)
        delta.sum(0, out=of_b2)
        return self.gradient, self.inner @ w1

    def descend(self, gradient: np.ndarray, lr: float, momentum: float) -> None:
        """Take a step with momentum."""
        self.velocity *= np.float32(momentum)
        self.velocity += gradient
        self.flat -= np.multiply(self.velocity, np.float32(lr), out=self.spare)

    def descend_along(self, scalar: float, lr: float, momentum: float) -> None:
        """Take a step along scalar · u."""
        self.descend(np.multiply(self.u, np.float32(scalar), out=self.spare), lr, momentum)

    def draw(self, random: np.random.Generator) -> None:
        """Make u a direction on the sphere of radius √d."""
        random.standard_normal(out=self.u, dtype=np.float32)
        self.u *= np.float32(math.sqrt(len(self.u)) / math.sqrt(float(self.u @ self.u)))


class NumpyParties(Parties):
    """Matrix products and gradients by hand, float32."""

    def __init__(self, experiment: PreparedVertical) -> None:
        super().__init__(experiment)
        width, hidden = self.model.embedding, self.model.hidden[0]
        self.bottoms = [TwoLayers(x.shape[1], hidden, width, self.random) for x in self.x]
        self.head = TwoLayers(
            self.clients * width, self.model.head_widths[0], self.classes, self.random
        )
        self.table = np.zeros((len(self.y), self.clients, width), np.float32)

    def inputs(self, ids: np.ndarray, client: int, values: np.ndarray) -> np.ndarray:
        """Return the head's inputs with these embeddings of one client, [B, M·E]."""
        inputs = self.table[ids]
        inputs[:, client] = values
        return inputs.reshape(len(ids), -1)

    def losses(self, ids: np.ndarray, client: int, values: np.ndarray) -> np.ndarray:
        """Return every row's loss, [B]."""
        scores = self.head.forward(self.inputs(ids, client, values))[1]
        scores = scores - scores.max(1, keepdims=True)
        return np.log(np.exp(scores).sum(1)) - scores[np.arange(len(ids)), self.y[ids]]

    def train_head(self, ids: np.ndarray) -> np.ndarray:
        """Take the head's step on the table's rows; return the gradient of its inputs [B, M, E]."""
        inputs = self.table[ids].reshape(len(ids), -1)
        hidden, scores = self.head.forward(inputs)
        soft = np.exp(scores - scores.max(1, keepdims=True))
        soft /= soft.sum(1, keepdims=True)
        soft[np.arange(len(ids)), self.y[ids]] -= 1
        gradient, of_inputs = self.head.backward(inputs, hidden, soft / np.float32(len(ids)))
        self.head.descend(gradient, self.method.server_lr, self.method.server_momentum)
        return of_inputs.reshape(len(ids), self.clients, -1)

    def step_dpzv(self, client: int, ids: np.ndarray) -> None:
        """One update of DPZV."""
        bottom, x, radius = (
            self.bottoms[client],
            self.x[client][ids],
            np.float32(self.method.smoothing),
        )
        bottom.draw(self.random)
        plus, minus = (bottom.forward_along(x, sign * radius) for sign in (1, -1))
        slopes = (self.losses(ids, client, plus) - self.losses(ids, client, minus)) / (2 * radius)
        limit = self.noise.clip or math.inf
        scalar = (
            np.clip(slopes, -limit, limit).mean() + self.noise.sigma * self.random.standard_normal()
        )
        self.table[ids, client] = (plus + minus) / 2
        self.train_head(ids)
        bottom.descend_along(scalar, self.method.lr, self.method.momentum)

    def step_zoo_vfl(self, client: int, ids: np.ndarray) -> None:
        """One update of ZOO-VFL."""
        bottom, x, radius = (
            self.bottoms[client],
            self.x[client][ids],
            np.float32(self.method.smoothing),
        )
        bottom.draw(self.random)
        here, ahead = bottom.forward(x)[1], bottom.forward_along(x, radius)
        scalar = (self.losses(ids, client, ahead) - self.losses(ids, client, here)).mean() / radius
        self.table[ids, client] = here
        self.train_head(ids)
        bottom.descend_along(scalar, self.method.lr, self.method.momentum)

    def step_vafl(self, client: int, ids: np.ndarray) -> None:
        """One update of VAFL."""
        bottom, x = self.bottoms[client], self.x[client][ids]
        hidden, self.table[ids, client] = bottom.forward(x)
        self.step_bottom(client, x, hidden, self.train_head(ids)[:, client])

    def step_bottom(
        self, client: int, x: np.ndarray, hidden: np.ndarray, gradient: np.ndarray
    ) -> None:
        """Backpropagate a gradient of the embeddings."""
        bottom = self.bottoms[client]
        bottom.descend(
            bottom.backward(x, hidden, gradient)[0], self.method.lr, self.method.momentum
        )

    def step_czofo(self, client: int, ids: np.ndarray) -> None:
        """One update of VFL-CZOFO by rows."""
        x, count, radius = (
            self.x[client][ids],
            self.method.perturbations,
            np.float32(self.method.smoothing),
        )
        hidden, values = self.bottoms[client].forward(x)
        self.table[ids, client] = values
        base, gradient = self.losses(ids, client, values), np.zeros_like(values)
        for _ in range(count):
            v = self.random.standard_normal(values.shape, dtype=np.float32)
            v /= np.sqrt((v * v).sum(1, keepdims=True))
            gradient += (self.losses(ids, client, values + radius * v) - base)[:, None] * v
        self.train_head(ids)
        scale = np.float32(values.shape[1] / (radius * count * len(ids)))
        self.step_bottom(client, x, hidden, scale * gradient)

    def step_frozen(self, client: int, ids: np.ndarray) -> None:
        """One update of the frozen control."""
        self.table[ids, client] = self.bottoms[client].forward(self.x[client][ids])[1]
        self.train_head(ids)
