"""A user's own data and models, named in scenarios as "tests.helpers.own_parts:NAME"."""

import numpy as np
import torch
from torch import nn

from raydpzv.keys import Key


def rows(shift: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Sixty records of eight columns in three classes."""
    y = np.arange(60) % 3
    x = (Key(0) / "own rows").generator().standard_normal((60, 8)) + shift * y[:, None]
    return x.astype(np.float32), y


def whole(shape: tuple[int, ...], outputs: int, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, outputs))


def bottom(shape: tuple[int, ...], embedding: int, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *whole((int(np.prod(shape)),), embedding, width))


def first_layer(inputs: int = 8, width: int = 4) -> dict[str, torch.Tensor]:
    """Weights for a part of `whole`."""
    return {"0.weight": torch.full((width, inputs), 0.1), "0.bias": torch.zeros(width)}


def whole_weights() -> dict[str, torch.Tensor]:
    return first_layer() | {"2.weight": torch.eye(3, 4), "2.bias": torch.zeros(3)}


def bottom_bias() -> dict[str, torch.Tensor]:
    return {"1.bias": torch.zeros(2)}


def bottom_weights() -> dict[str, torch.Tensor]:
    return bottom_bias() | {"1.weight": torch.full((2, 16), 0.1)}


def loss(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Squared distance of classes or numbers."""
    return ((scores - y.reshape(len(y), -1)) ** 2).mean(1)


def head(clients: int, embedding: int, classes: int, width: int = 4) -> nn.Module:
    return whole((clients * embedding,), classes, width)
