"""The composed model of the small vertical problem in float64, trained by torch: a second opinion
on split learning.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from raydpzv.engine.split_model import FirstOrder
from tests.helpers import vertical_parties as toy

HEAD = FirstOrder(0.2, 0.9)


class Central:
    """Bottoms that learn by `client`, a head that learns by `head`."""

    def __init__(self, data: toy.Data, client: FirstOrder, head: FirstOrder = HEAD) -> None:
        self.data = data
        self.bottoms = [
            toy.in_double(toy.bottom, toy.bottom_model(m).flat) for m in range(toy.CLIENTS)
        ]
        self.head = toy.in_double(toy.top, toy.make_head("sgd").model.flat)
        self.of_head = torch.optim.SGD(self.head.parameters(), head.lr, head.momentum)
        # torch's weight decay adds l2 w to the gradient: the regulariser l2 |w|² / 2
        self.of_bottoms = [
            torch.optim.SGD(b.parameters(), client.lr, client.momentum, weight_decay=client.l2)
            for b in self.bottoms
        ]

    def embed(self, client: int, ids: np.ndarray) -> torch.Tensor:
        return self.bottoms[client](self.data.x[client][ids].double())

    def loss(self, embeddings: Sequence[torch.Tensor], ids: np.ndarray) -> torch.Tensor:
        return functional.cross_entropy(self.head(torch.cat(list(embeddings), 1)), self.data.y[ids])

    def step(self, loss: torch.Tensor, clients: Sequence[int]) -> None:
        for optimiser in (self.of_head, *self.of_bottoms):
            optimiser.zero_grad()
        loss.backward()
        self.of_head.step()
        for m in clients:
            self.of_bottoms[m].step()

    def compare(self, clients: list, server) -> None:
        for client, reference in zip(clients, self.bottoms, strict=True):
            assert np.abs(client.parameters() - toy.flat_of(reference)).max() < 3e-5
            assert (
                np.abs(client.parameters() - toy.bottom_model(client.client).flat.numpy()).max()
                > 1e-2
            )
        assert np.abs(server.parameters() - toy.flat_of(self.head)).max() < 3e-5
