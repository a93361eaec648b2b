"""Heads: from all clients' embeddings to class scores, at the server."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


def mlp(clients: int, width: int, hidden: Sequence[int], classes: int) -> nn.Module:
    """Linear layers with ReLU between: [B, M·E] -> [B, classes].

    One hidden width: DPZV, Section VII. 256 and 100: VAFL, Section G.3.1.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise((clients * width, *hidden, classes)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def one_layer(clients: int, width: int, hidden: Sequence[int], classes: int) -> nn.Module:
    """One linear layer (VAFL, Section G.3.2): [B, M·E] -> [B, classes]; `hidden` is not looked
    at.
    """
    return nn.Linear(clients * width, classes)


class SumHead(nn.Module):
    """Σ_m h_m + b: with linear bottoms, logistic regression (VAFL, Section 5)."""

    def __init__(self, clients: int, classes: int) -> None:
        super().__init__()
        self._clients = clients
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, M·K] -> [B, K]."""
        return x.view(-1, self._clients, len(self.bias)).sum(1) + self.bias


def summed(clients: int, width: int, hidden: Sequence[int], classes: int) -> nn.Module:
    """The sum of the embeddings with a bias; E must be the number of classes."""
    return SumHead(clients, classes)
