"""How the parties of DPZV's opponents come into being, from their recipes' data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from raydpzv.config.scenario import VerticalScenario
from raydpzv.config.spec_opponents import Czofo, Opponent, Vafl, ZooVfl
from raydpzv.config.timing import noised
from raydpzv.data.batches import Batches
from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.methods.roles import Client, VerticalServer
from raydpzv.methods.vertical.czofo import CzofoServer
from raydpzv.methods.vertical.dpzv import ZerothOrder
from raydpzv.methods.vertical.embedding_cache import EmbeddingCache
from raydpzv.methods.vertical.head import Head
from raydpzv.methods.vertical.row_release import RowPrivacy, inner_layers
from raydpzv.methods.vertical.vafl import FirstOrder, Synchrony, VaflClient, VaflServer
from raydpzv.methods.vertical.zoo_vfl import ZooVflClient, ZooVflServer
from raydpzv.models.flat import FlatModel
from raydpzv.privacy.mechanisms import RowNoise, SeededNoise, SystemNoise


def make_client(
    spec: VerticalScenario,
    method: Opponent,
    client: int,
    model: FlatModel,
    x_train: torch.Tensor,
    x_test: torch.Tensor,
    sigma: float,
) -> Client:
    """Build a client's role."""
    key = Key(spec.seed)
    same_rows = isinstance(method, Vafl) and method.synchrony == "synchronous"
    batches = Batches(
        method.batches, method.batch, len(x_train), key / "batches" / ("server" if same_rows else client)
    )
    privacy = _privacy(spec, "embedding", sigma)
    if isinstance(method, ZooVfl):
        return ZooVflClient(client, model, x_train, x_test, batches, _zeroth_order(method), key, privacy)
    settings = FirstOrder(method.lr, method.momentum, method.l2 if isinstance(method, Vafl) else 0.0)
    answers_queries = isinstance(method, Vafl) and method.max_delay is not None
    return VaflClient(
        client, model, x_train, x_test, batches, settings, privacy, answers_queries=answers_queries
    )


def check_layers(method: Vafl, module: torch.nn.Module) -> None:
    """Raise SpecError if noise is asked for in more layers than a bottom model has before its last."""
    inner = len(inner_layers(module))
    if len(method.layer_noise) > inner:
        raise SpecError(
            f"method.layer_noise: wanted at most {inner} numbers, one for each layer of the bottom model before its "
            f"last, got {len(method.layer_noise)}"
        )


def make_server(
    spec: VerticalScenario,
    method: Opponent,
    head: Head,
    table: EmbeddingCache,
    labels: torch.Tensor,
    labels_test: torch.Tensor,
    sigma: float,
    sizes: Mapping[str, Any],
) -> VerticalServer:
    """Build the server's role; sizes: clients, width, batch and fixed_batches, as of every server with a table."""
    parts = (head, table, labels, labels_test)
    if isinstance(method, ZooVfl):
        return ZooVflServer(*parts, **sizes)
    if isinstance(method, Czofo):
        return CzofoServer(
            *parts,
            Synchrony(),
            perturbations=method.perturbations,
            smoothing=method.smoothing,
            key=Key(spec.seed),
            **sizes,
        )
    synchrony = _synchrony(method, spec.split.clients)
    return VaflServer(*parts, synchrony, _privacy(spec, "gradient", sigma), **sizes)


def _synchrony(method: Vafl, clients: int) -> Synchrony:
    if method.synchrony == "synchronous":
        return Synchrony(wait_for=clients, same_rows=True)
    return Synchrony(wait_for=method.wait_for or 1, max_delay=method.max_delay)


def _privacy(spec: VerticalScenario, place: str, sigma: float) -> RowPrivacy:
    """What is done to rows at this place; a clip without noise holds as well, as it does for DPZV."""
    method = spec.method
    assert isinstance(method, Vafl | ZooVfl | Czofo)
    if noised(method) != place:
        return RowPrivacy()
    key = Key(spec.seed)
    noise: RowNoise = SeededNoise(key) if spec.privacy.noise == "seeded" else SystemNoise()
    on = spec.privacy.mode != "none"
    layers = method.layer_noise if isinstance(method, Vafl) and place == "embedding" else ()
    return RowPrivacy(spec.privacy.clip, sigma, noise if on else None, layers if on else ())


def _zeroth_order(method: ZooVfl) -> ZerothOrder:
    return ZerothOrder(method.smoothing, method.lr, method.momentum, law=method.direction)
