"""Heads: from all clients' embeddings to class scores, at the server."""

from __future__ import annotations

from torch import nn


def two_layer(clients: int, width: int, hidden: int, classes: int) -> nn.Module:
    """Two linear layers with ReLU (DPZV, Section VII): [B, M·E] -> [B, classes]."""
    return nn.Sequential(nn.Linear(clients * width, hidden), nn.ReLU(), nn.Linear(hidden, classes))
