"""Parties of DPZV's baselines on the small vertical problem."""

from __future__ import annotations

from typing import Any

from raydpzv.methods.vertical.czofo import CzofoServer
from raydpzv.methods.vertical.embedding_cache import EmbeddingCache
from raydpzv.methods.vertical.row_release import RowPrivacy
from raydpzv.methods.vertical.vafl import FirstOrder, Synchrony, VaflClient, VaflServer
from tests.helpers.vertical_parties import (
    BATCH,
    CLIENTS,
    KEY,
    ROWS,
    WIDTH,
    Data,
    batches,
    bottom_model,
    make_head,
)

SIZES: dict[str, Any] = {"clients": CLIENTS, "width": WIDTH, "batch": BATCH, "fixed_batches": True}


def vafl_clients(
    data: Data,
    settings: FirstOrder,
    privacy: RowPrivacy | None = None,
    *,
    shared: bool = False,
    how: str = "uniform",
) -> list[VaflClient]:
    return [
        VaflClient(
            m,
            bottom_model(m),
            data.x[m],
            data.x_test[m],
            batches("server" if shared else m, how),
            settings,
            privacy,
        )
        for m in range(CLIENTS)
    ]


def vafl_server(
    data: Data, synchrony: Synchrony | None = None, privacy: RowPrivacy | None = None, **sizes: Any
) -> VaflServer:
    head, table = make_head("sgd", lr=0.2, momentum=0.9), EmbeddingCache(ROWS, CLIENTS, WIDTH)
    return VaflServer(head, table, data.y, data.y_test, synchrony or Synchrony(), privacy, **(SIZES | sizes))


def czofo_server(data: Data, perturbations: int, smoothing: float = 1e-2) -> CzofoServer:
    head, table = make_head("sgd", lr=0.2), EmbeddingCache(ROWS, CLIENTS, WIDTH)
    return CzofoServer(
        head,
        table,
        data.y,
        data.y_test,
        Synchrony(),
        perturbations=perturbations,
        smoothing=smoothing,
        key=KEY,
        **SIZES,
    )
