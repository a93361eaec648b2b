"""A small vertical problem: M clients with features of their own, a server with the labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from raydpzv.data.batches import Batches
from raydpzv.engine.head import Head
from raydpzv.engine.split_model import BottomTraining, HeadSettings, HeadTraining, TopRows
from raydpzv.engine.torch_engine import TorchBottom, TorchTop
from raydpzv.keys import Key
from raydpzv.methods.vertical.base import ServerSizes
from raydpzv.methods.vertical.dpzv import DpzvClient, DpzvServer, ZerothOrder
from raydpzv.models.bottoms import mlp
from raydpzv.models.flat import FlatModel
from raydpzv.models.heads import mlp as mlp_head
from raydpzv.privacy.mechanisms import MeanRelease, Noise, NoNoise
from raydpzv.zo.update import Rule

KEY = Key(11)
CLIENTS, ROWS, HELD_OUT, FEATURES, WIDTH, CLASSES, BATCH = 3, 16, 9, 4, 2, 3, 4
SIZES = ServerSizes(CLIENTS, WIDTH, BATCH)


@dataclass(frozen=True)
class Data:
    """Features [M, D, F] and labels [D] of the training rows, the same of the held-out rows."""

    x: torch.Tensor
    y: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


def make_data() -> Data:
    generator = (KEY / "data").generator()

    def draw(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.from_numpy(
            generator.standard_normal((CLIENTS, rows, FEATURES)).astype(np.float32)
        )
        return x, torch.from_numpy(generator.integers(0, CLASSES, rows))

    return Data(*draw(ROWS), *draw(HELD_OUT))


def bottom() -> nn.Module:
    return mlp((FEATURES,), (5,), WIDTH)


def top() -> nn.Module:
    return mlp_head(CLIENTS, WIDTH, (6,), CLASSES)


def bottom_model(client: int) -> FlatModel:
    return FlatModel(bottom, KEY / "client" / client)


def batches(who: int | str, how: str = "uniform") -> Batches:
    return Batches(how, BATCH, ROWS, KEY / "batches" / who)


def make_head(training: HeadTraining, **settings: Any) -> Head:
    return Head(
        FlatModel(top, KEY / "server"), HeadSettings(training, **({"lr": 0.2} | settings)), KEY
    )


def make_top(data: Data, head: Head) -> TorchTop:
    return TorchTop(head, TopRows(data.y.numpy(), data.y_test.numpy(), CLIENTS, WIDTH))


def make_bottom(data: Data, client: int, **training: Any) -> TorchBottom:
    model, how = bottom_model(client), BottomTraining(**training)
    return TorchBottom(model, data.x[client], data.x_test[client], how)


def dpzv_clients(data: Data, settings: ZerothOrder, how: str = "uniform") -> list[DpzvClient]:
    rule = Rule(settings.law, settings.momentum)
    return [
        DpzvClient(m, make_bottom(data, m, rule=rule), batches(m, how), settings, KEY)
        for m in range(CLIENTS)
    ]


def dpzv_server(
    data: Data,
    settings: ZerothOrder,
    head: Head,
    *,
    clip: float | None = 0.3,
    sigma: float = 0.0,
    noise: Noise | None = None,
    fixed_batches: bool = True,
) -> DpzvServer:
    return DpzvServer(
        make_top(data, head),
        replace(SIZES, fixed_batches=fixed_batches),
        settings,
        MeanRelease(clip, sigma, noise or NoNoise(), SIZES.batch),
    )


def in_double(make: Any, flat: torch.Tensor) -> nn.Module:
    """A float64 copy of a model with parameters of its own."""
    module = make().double()
    nn.utils.vector_to_parameters(flat.detach().double(), module.parameters())
    return module


def flat_of(module: nn.Module) -> np.ndarray:
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy().copy()


def wakes(count: int) -> Sequence[int]:
    """Who wakes when: every client, in no regular order."""
    order = (KEY / "wakes").generator().integers(0, CLIENTS, count).tolist()
    return [0, 1, 2, *order][:count]
